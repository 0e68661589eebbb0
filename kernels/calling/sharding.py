"""How the operators of an operation treat the shards of DTensors.

In: an operation and its operators. Out: placements, registered with torch at the first call with a DTensor, with which
each rank calls the operators on its own shards. Rows stay where they are; a sharded hidden dimension is gathered first.
"""

from collections.abc import Callable, Sequence
from typing import Any

from normtune.kernels.calling.operation import Operation
from normtune.kernels.calling.torch_ops import TorchOps
from normtune.kernels.problem import HIDDEN


def registration_of(operation: Operation, ops: TorchOps) -> Callable[[], None]:
    """A function that registers the placements with torch, once; its first call imports DTensor."""
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
            # The dimensions of a weight stay whole: hidden, and groups if each group has a weight of its own.
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

    # As `torch.compiler.assume_constant_result`, which would import the compiler: it is called, never traced.
    register._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return register
