"""Operators of torch's dispatcher, through which compilers, exporters, dispatch modes and tensor subclasses call.

In: an `Operation`. Out: `torch.ops.normtune.NAME_forward`, `NAME_backward` and, for an operation that can work in
place, `NAME_in_place`, with fake implementations and autograd. They launch what eager calls launch, with the same bits;
on a CPU they use the formula. In a compiled function they read the batch-invariant mode at each call. With DTensors
each rank calls the operators on its own shards: rows stay where they are, a sharded hidden dimension is gathered first.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling import cached
from normtune.kernels.calling.arguments import check, check_backward
from normtune.kernels.calling.autograd import second_derivatives
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.eager import CallPlan, is_marked
from normtune.kernels.calling.fallback import compute_dtype
from normtune.kernels.calling.operation import Operation
from normtune.kernels.problem import HIDDEN, ROWS

NAMESPACE = "normtune"
# Operators live as long as this fragment: as long as the module.
_library = torch.library.Library(NAMESPACE, "DEF")


class TorchOps:
    """The operators of one operation, registered with torch.

    Args:
        operation: the declaration.
        forward: of `cached`.

    Attributes:
        forward: takes inputs, scalars, batch_invariant or None, and whether to store what only the backward reads.
        backward: takes gradients, saved tensors, scalars, batch_invariant or None, and whether gradients (..., hidden)
            and gradients (hidden,) are needed.
        in_place: takes inputs, scalars, and batch_invariant or None; missing for an operation that cannot.
    """

    def __init__(
        self,
        operation: Operation,
        forward: Callable[..., tuple[Any, ...]],
    ) -> None:
        self._operation, self._forward = operation, forward
        self._inputs = len(operation.inputs)
        self._read = len(operation.incoming) + len(operation.saved)
        of_forward, of_backward = self._schemas()
        self.forward = define(
            *(f"{operation.name}_forward", of_forward, self._call_forward, self._forward_shapes),
            *(self._forward_gradient, self._save_forward),
        )
        self.backward = define(
            *(f"{operation.name}_backward", of_backward, self._call_backward, self._backward_shapes),
            *(self._backward_gradient, self._save_backward),
        )
        if operation.in_place:
            self.in_place = self._in_place()

    def _in_place(self) -> Any:
        operation = self._operation
        marks = {source: f"({letter}!)" for letter, source in zip("abcd", operation.in_place.values(), strict=False)}
        schema = f"{self._arguments(operation.inputs, (), marks)} -> ()"

        def launch(*arguments: Any) -> None:
            tensors, (*scalars, mode) = arguments[: self._inputs], arguments[self._inputs :]
            cached.forward(operation, tensors, tuple(scalars), _mode_of(mode), False, is_in_place=True)

        def nothing(*arguments: Any) -> None:
            check(operation, arguments[: self._inputs], arguments[self._inputs : -1])

        return define(f"{operation.name}_in_place", schema, launch, nothing)

    def _schemas(self) -> tuple[str, str]:
        operation = self._operation
        assert operation.backward is not None
        rows = next(name for name in operation.gradients if operation.axes[name] != HIDDEN)

        def schema(inputs: Sequence[str], flags: Sequence[str], outputs: Sequence[str]) -> str:
            return f"{self._arguments(inputs, flags)} -> ({', '.join(f'Tensor {name}' for name in outputs)})"

        return (
            schema(operation.inputs, ["store_rstd"], operation.outputs),
            schema((*operation.incoming, *operation.saved), [f"needs_{rows}", "needs_dweight"], operation.gradients),
        )

    def _arguments(self, inputs: Sequence[str], flags: Sequence[str], marks: Mapping[str, str] = {}) -> str:
        """The arguments of a schema; `marks` has the alias annotations of tensors that are written."""
        tensors = [f"Tensor{marks.get(name, '')}{'?' * (name in self._operation.optional)} {name}" for name in inputs]
        scalars = [f"float {name}" for name in self._operation.defaults]
        return f"({', '.join((*tensors, *scalars, 'bool? batch_invariant', *(f'bool {name}' for name in flags)))})"

    def _call_forward(self, *arguments: Any) -> tuple[Tensor, ...]:
        tensors, (*scalars, mode, is_saving) = arguments[: self._inputs], arguments[self._inputs :]
        *outputs, _ = self._forward(self._operation, tensors, tuple(scalars), _mode_of(mode), is_saving)
        x = tensors[0]
        shaped = [
            out if out is None or self._operation.axes[name] != ROWS else out.view(x.shape[:-1]) if is_saving else None
            for name, out in zip(self._operation.outputs, outputs, strict=True)
        ]
        return tuple(or_nothing(out, x) for out in shaped)

    def _call_backward(self, *arguments: Any) -> tuple[Tensor, ...]:
        operation = self._operation
        read, (*scalars, batch_invariant, needs_rows, needs_columns) = arguments[: self._read], arguments[self._read :]
        check_backward(operation, read)
        named = dict(zip((*operation.incoming, *operation.saved), read, strict=True))
        factors = operation.with_axes(operation.saved, ROWS)
        if batch_invariant is None:
            batch_invariant = any(is_marked(named[name]) for name in factors) or is_batch_invariant()
        flat = tuple(tensor.reshape(-1) if name in factors else tensor for name, tensor in named.items())
        inputs = {name: named[name] for name in operation.saved_inputs}
        numbers = operation.scalars_of([named.get(name) for name in operation.inputs], tuple(scalars))
        plan = CallPlan(operation, inputs, numbers, batch_invariant)
        gradients = cached.backward(flat, plan, needs_rows, needs_columns)
        return tuple(or_nothing(gradient, read[0]) for gradient in gradients)

    def _forward_shapes(self, *arguments: Any) -> tuple[Tensor, ...]:
        operation, x, is_saving = self._operation, arguments[0], arguments[-1]
        check(operation, arguments[: self._inputs], arguments[self._inputs : -2])
        return tuple(
            arguments[operation.inputs.index(operation.like_of(name))].new_empty(x.shape)
            if operation.axes[name] != ROWS
            else x.new_empty(x.shape[:-1], dtype=compute_dtype(x))
            if is_saving
            else or_nothing(None, x)
            for name in operation.outputs
        )

    def _backward_shapes(self, *arguments: Any) -> tuple[Tensor, ...]:
        operation, read = self._operation, arguments[: self._read]
        check_backward(operation, read)
        named = dict(zip((*operation.incoming, *operation.saved), read, strict=True))
        needs_rows, needs_columns = arguments[-2:]
        x = named[operation.incoming[0]]
        gradients = []
        for name in operation.gradients:
            is_column = operation.axes[name] == HIDDEN
            like = named[name[1:] if is_column else operation.like_of(name)]
            is_wanted = needs_columns if is_column else needs_rows
            gradients.append(or_nothing(like.new_empty(like.shape) if is_wanted and like is not None else None, x))
        return tuple(gradients)

    def _save_forward(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        operation = self._operation
        tensors, (*ctx.options, is_saving) = inputs[: self._inputs], inputs[self._inputs :]
        named = dict(zip((*operation.inputs, *operation.outputs), (*tensors, *output), strict=True))
        # Where outputs that only the backward reads were not stored, the inputs are saved to compute them later.
        ctx.is_saving = is_saving
        ctx.save_for_backward(*((named[name] for name in operation.saved) if is_saving else tensors))
        ctx.mark_non_differentiable(*output[operation.results :])
        ctx.set_materialize_grads(False)

    def _forward_gradient(self, ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        operation = self._operation
        results = incoming[: operation.results]
        present = next((gradient for gradient in results if gradient is not None), None)
        if present is None:
            return (None,) * (self._inputs + len(ctx.options) + 1)
        saved = ctx.saved_tensors
        if not ctx.is_saving:  # the graph was traced without gradients
            named = dict(
                zip(
                    (*operation.inputs, *operation.outputs),
                    (*saved, *self.forward(*saved, *ctx.options, True)),
                    strict=True,
                )
            )
            saved = [named[name] for name in operation.saved]
        gradients = [torch.zeros_like(present) if gradient is None else gradient for gradient in results]
        of_inputs = self.gradients(gradients, saved, ctx.options, ctx.needs_input_grad[: self._inputs])
        return (*of_inputs, *(None,) * (len(ctx.options) + 1))

    def gradients(
        self, incoming: Sequence[Tensor], saved: Sequence[Any], options: Sequence[Any], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        """A gradient for each input, None where none is needed; `options` are the scalars and batch_invariant."""
        gradients = self.backward(*incoming, *saved, *options, *self._operation.needed(needs))
        pairs = zip(self._operation.gradient_of, needs, strict=True)
        return [gradients[index] if need else None for index, need in pairs]

    def _save_backward(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.scalars, (_, ctx.needs_rows, ctx.needs_columns) = inputs[self._read : -3], inputs[-3:]
        ctx.save_for_backward(*inputs[: self._read])
        ctx.set_materialize_grads(False)

    def _backward_gradient(self, ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        operation = self._operation
        needed_gradients = [
            gradient if (ctx.needs_columns if operation.axes[name] == HIDDEN else ctx.needs_rows) else None
            for name, gradient in zip(operation.gradients, gradients, strict=True)
        ]
        seconds = second_derivatives(operation, ctx.saved_tensors, needed_gradients, ctx.scalars)
        return (*seconds, *(None,) * (len(ctx.scalars) + 3))


def _mode_of(batch_invariant: bool | None) -> bool:
    return is_batch_invariant() if batch_invariant is None else batch_invariant


def define(
    name: str,
    schema: str,
    call: Callable[..., Any],
    shapes: Callable[..., Any],
    gradient: Callable[..., Any] | None = None,
    save: Callable[..., None] | None = None,
) -> Any:
    """Register an operator of torch's dispatcher.

    Args:
        name: in the namespace.
        schema: its arguments and results.
        call: the implementation.
        shapes: the fake implementation, for tensors without memory.
        gradient: takes ctx and the gradients of the results; None for an operator without gradients.
        save: takes (ctx, inputs, output), and saves what `gradient` reads.
    """
    qualified = f"{NAMESPACE}::{name}"
    _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    for backend in ("CPU", "CUDA"):
        _library.impl(name, call, backend)
    torch.library.register_fake(qualified, shapes, lib=_library)
    if gradient:
        torch.library.register_autograd(qualified, gradient, setup_context=save, lib=_library)
    return getattr(torch.ops.normtune, name)


def or_nothing(tensor: Tensor | None, x: Tensor) -> Tensor:
    """The tensor, or an empty one for None, since an operator must return tensors."""
    return x.new_empty(0) if tensor is None else tensor


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
