"""RMSNorm's operators on the shards of a DTensor.

In: nothing, before the first call with a DTensor. Out: placements, registered with torch, with which each rank may call
the operators on its own shards. Rows are normalized where they are; a sharded hidden dimension is gathered first.
"""

from typing import Any

import torch

_is_registered = False


def register() -> None:
    """Register the placements with torch, once. Imports DTensor, so only a call with a DTensor calls it."""
    global _is_registered
    if _is_registered:
        return
    _is_registered = True
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    def of_rows(x: Any) -> list[tuple[Any, Any]]:
        """Placements of tensors with rows, and of sums over them, for each way of sharding x."""
        return [(Replicate(), Replicate()), *((Shard(dim), Partial()) for dim in range(x.ndim - 1))]

    def of_weight(weight: Any) -> Any:
        return None if weight is None else Replicate()

    @register_sharding(torch.ops.normtune.rms_norm_forward.default)
    def forward(x: Any, weight: Any, *options: Any) -> Any:
        store_rstd = options[-1]
        unused = [None] * len(options)
        return [
            ([rows, rows if store_rstd else Replicate()], [rows, of_weight(weight), *unused]) for rows, _ in of_rows(x)
        ]

    @register_sharding(torch.ops.normtune.rms_norm_backward.default)
    def backward(dy: Any, x: Any, weight: Any, rstd: Any, *options: Any) -> Any:
        needs_dx, needs_dweight = options[-2], options[-1] and weight is not None
        unused = [None] * len(options)
        return [
            (
                [rows if needs_dx else Replicate(), sums if needs_dweight else Replicate()],
                [rows, rows, of_weight(weight), rows, *unused],
            )
            for rows, sums in of_rows(x)
        ]


# The effect of `torch.compiler.assume_constant_result`, without importing the compiler: a call, not a trace.
register._dynamo_marked_constant = True  # type: ignore[attr-defined]
