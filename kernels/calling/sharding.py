"""An operation's operators on the shards of a DTensor.

In: nothing, before the first call with a DTensor. Out: placements, registered with torch, with which each rank may call
the operators on its own shards. Rows are computed where they are; a sharded hidden dimension is gathered first.
"""

from collections.abc import Callable, Sequence
from typing import Any

from normtune.kernels.calling.operation import Operation
from normtune.kernels.calling.ops import Ops
from normtune.kernels.problem import HIDDEN


def registration_of(operation: Operation, ops: Ops) -> Callable[[], None]:
    """A function that registers an operation's placements with torch, once; its first call imports DTensor."""
    is_registered = False

    def register() -> None:
        nonlocal is_registered
        if is_registered:
            return
        is_registered = True
        from torch.distributed.tensor import Partial, Replicate, Shard
        from torch.distributed.tensor.experimental import register_sharding

        def placements(
            inputs: Sequence[str], outputs: Sequence[str], arguments: Sequence[Any], is_made: dict[str, bool]
        ) -> list[tuple[list[Any], list[Any]]]:
            """Placements of outputs and inputs, for each way of sharding the rows."""
            results = []
            dims = next(tensor.ndim for tensor in arguments if tensor is not None)
            # Dimensions that columns have are whole: hidden, and groups where each has columns of its own.
            whole = max(
                tensor.ndim if operation.axes[name] == HIDDEN and tensor is not None else 1
                for name, tensor in zip(inputs, arguments, strict=False)
            )
            for rows, sums in [(Replicate(), Replicate()), *((Shard(dim), Partial()) for dim in range(dims - whole))]:
                written = [
                    (sums if operation.axes[name] == HIDDEN else rows) if is_made[name] else Replicate()
                    for name in outputs
                ]
                read = [
                    None if tensor is None else Replicate() if operation.axes[name] == HIDDEN else rows
                    for name, tensor in zip(inputs, arguments, strict=False)
                ]
                results.append((written, [*read, *(None,) * (len(arguments) - len(inputs))]))
            return results

        @register_sharding(ops.forward.default)
        def forward(*arguments: Any) -> Any:
            is_made = {
                name: arguments[-1] or number < operation.results for number, name in enumerate(operation.outputs)
            }
            return placements(operation.inputs, operation.outputs, arguments, is_made)

        @register_sharding(ops.backward.default)
        def backward(*arguments: Any) -> Any:
            names = (*operation.incoming, *operation.saved)
            needs_rows, needs_columns = arguments[-2:]
            there = dict(zip(names, arguments, strict=False))
            is_made = {
                name: needs_columns and there[name[1:]] is not None if operation.axes[name] == HIDDEN else needs_rows
                for name in operation.gradients
            }
            return placements(names, operation.gradients, arguments, is_made)

    # The effect of `torch.compiler.assume_constant_result`, without importing the compiler: a call, not a trace.
    register._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return register
