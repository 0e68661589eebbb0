"""Operators of torch's dispatcher, through which compilers, exporters, dispatch modes and tensor subclasses call.

In: the declaration of a `TorchOp`, whose functions take its arguments by name. Out: `torch.ops.normtune.NAME`, with a
fake implementation and autograd. `TorchOps` are the operators of an `Operation` with a backward: `NAME_forward`,
`NAME_backward` and, if it can work in place, `NAME_in_place`; `family` makes one of many operations. They launch what
eager calls launch, with the same bits; on a CPU they use the formula. In a compiled function they read the
batch-invariant mode at each call. With DTensors each rank calls the operators on its own shards: rows stay where they
are, a sharded hidden dimension is gathered first.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling import cached
from normtune.kernels.calling.arguments import check, check_backward
from normtune.kernels.calling.autograd import second_derivatives
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.eager import CallPlan, is_marked, new_of
from normtune.kernels.calling.layout import new_like
from normtune.kernels.calling.operation import Operation
from normtune.kernels.problem import HIDDEN, ROWS

NAMESPACE = "normtune"
# Operators live as long as this fragment: as long as the module.
_library = torch.library.Library(NAMESPACE, "DEF")
# The last argument of every operator that is not a flag of its own.
MODE = {"batch_invariant": "bool?"}

# Tensors, or other values, by name.
Named = Mapping[str, Any]


class TorchOp:
    """An operator of torch's dispatcher, with functions that take its arguments by name.

    Args:
        name: in the namespace.
        tensors: its tensors, each with its type in the schema: `Tensor`, `Tensor?` or `Tensor(a!)`.
        others: its other arguments likewise, such as `float` and `bool?`.
        outputs: of the results, likewise, each with its text in the schema; None for a list of any results.
        call: takes tensors and others; returns results by name. One that is missing or None becomes an empty tensor,
            since an operator must return tensors.
        shapes: the same for tensors without memory.
        gradients: takes gradients of results, of which one may be None; what was saved; others; and for each tensor
            whether its gradient is needed. Returns gradients by the names of tensors. None for an operator without.
        saved: takes others; returns the names of the tensors and results that are saved; None for all tensors.
        constant: names of the results without gradients.

    Attributes:
        operator: takes tensors and others, in order.
    """

    def __init__(
        self,
        name: str,
        tensors: dict[str, str],
        others: dict[str, str],
        outputs: dict[str, str] | None,
        call: Callable[[Named, Named], Named],
        shapes: Callable[[Named, Named], Named],
        gradients: Callable[[Named, Named, Named, Named], Named] | None = None,
        saved: Callable[[Named], Sequence[str]] | None = None,
        constant: Sequence[str] = (),
    ) -> None:
        self._tensors, self._others = tuple(tensors), tuple(others)
        self._outputs = None if outputs is None else tuple(outputs)
        self._call, self._shapes, self._gradients = call, shapes, gradients
        self._saved, self._constant = saved, constant
        arguments = ", ".join(f"{kind} {each}" for each, kind in (tensors | others).items())
        results = "Tensor[]" if outputs is None else f"({', '.join(outputs.values())})"
        _library.define(f"{name}({arguments}) -> {results}", tags=(torch.Tag.pt2_compliant_tag,))
        for backend in ("CPU", "CUDA"):
            _library.impl(name, self._launch, backend)
        qualified = f"{NAMESPACE}::{name}"
        torch.library.register_fake(qualified, self._fake, lib=_library)
        if gradients:
            torch.library.register_autograd(qualified, self._backward, setup_context=self._save, lib=_library)
        self.operator = getattr(torch.ops.normtune, name)

    def _launch(self, *arguments: Any) -> Any:
        return self._returned(self._call(*self._named(arguments)), arguments[0])

    def _fake(self, *arguments: Any) -> Any:
        return self._returned(self._shapes(*self._named(arguments)), arguments[0])

    def _named(self, arguments: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        count = len(self._tensors)
        tensors = zip(self._tensors, arguments[:count], strict=True)
        return dict(tensors), dict(zip(self._others, arguments[count:], strict=True))

    def _returned(self, results: Named, x: Tensor) -> Any:
        if self._outputs is None:
            return [*results.values()]
        present = map(results.get, self._outputs)
        every = tuple([x.new_empty(0) if tensor is None else tensor for tensor in present])
        return every if len(every) > 1 else every[0] if every else None

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        assert self._outputs
        tensors, ctx.others = self._named(inputs)
        results = dict(zip(self._outputs, output if len(self._outputs) > 1 else (output,), strict=True))
        every = tensors | results
        ctx.names = self._saved(ctx.others) if self._saved else self._tensors
        ctx.save_for_backward(*[every[name] for name in ctx.names])
        ctx.mark_non_differentiable(*[results[name] for name in self._constant])
        ctx.set_materialize_grads(False)

    def _backward(self, ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        gradients: Named = {}
        if any([gradient is not None for gradient in incoming]):
            assert self._outputs and self._gradients
            saved = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
            needs = dict(zip(self._tensors, ctx.needs_input_grad, strict=False))
            by_name = dict(zip(self._outputs, incoming, strict=True))
            gradients = self._gradients(by_name, saved, ctx.others, needs)
        return (*map(gradients.get, self._tensors), *(None,) * len(ctx.others))


def launched(
    operation: Operation,
    tensors: Named,
    others: Named,
    is_saving: bool = False,
    forward: Callable[..., tuple[Any, ...]] = cached.forward,
    **options: bool,
) -> dict[str, Tensor | None]:
    """The outputs of an operation by name, given the arguments of an operator; see `cached.forward`."""
    mode, scalars = others["batch_invariant"], tuple([others[name] for name in operation.defaults])
    mode = is_batch_invariant() if mode is None else mode
    inputs = tuple([tensors[name] for name in operation.inputs])
    *outputs, _ = forward(operation, inputs, scalars, mode, is_saving, **options)
    return dict(zip(operation.outputs, outputs, strict=True))


def shapes(operation: Operation, tensors: Named, others: Named, is_saving: bool = False) -> dict[str, Tensor]:
    """Checks of the arguments, and empty outputs by name, of which `is_saving` adds those that only a backward reads.

    Raises:
        TypeError, ValueError: as `check`.
    """
    inputs = {name: tensors[name] for name in operation.inputs}
    check(operation, tuple(inputs.values()), [others[name] for name in operation.defaults])
    outputs = operation.outputs if is_saving else operation.outputs[: operation.results]
    at = operation.outputs_at(inputs)
    return {name: new_of(inputs[operation.inputs[0]], *at[name]) for name in outputs}


class TorchOps:
    """The operators of an operation with a backward.

    Args:
        operation: the declaration.
        forward: of `cached`.

    Attributes:
        forward: takes inputs, scalars, batch_invariant or None, and whether to store what only the backward reads.
        backward: takes gradients, saved tensors, scalars, batch_invariant or None, and whether gradients (..., hidden)
            and gradients (hidden,) are needed.
        in_place: takes inputs, scalars, and batch_invariant or None; missing for an operation that cannot.
    """

    def __init__(self, operation: Operation, forward: Callable[..., tuple[Any, ...]]) -> None:
        self._operation, self._forward = operation, forward
        self._read = (*operation.incoming, *operation.saved)
        rows = next(name for name in operation.gradients if operation.axes[name] != HIDDEN)
        self._flags = (f"needs_{rows}", "needs_dweight")
        others = dict.fromkeys(operation.defaults, "float") | MODE
        types = {name: "Tensor?" if name in operation.optional else "Tensor" for name in operation.axes}
        inputs = {name: types[name] for name in operation.inputs}
        self.forward = TorchOp(
            name=f"{operation.name}_forward",
            tensors=inputs,
            others=others | {"store_rstd": "bool"},
            outputs=_results(operation.outputs),
            call=self._call_forward,
            shapes=lambda tensors, others: shapes(operation, tensors, others, others["store_rstd"]),
            gradients=self._forward_gradients,
            # Where outputs that only the backward reads were not stored, the inputs are saved to compute them later.
            saved=lambda others: operation.saved if others["store_rstd"] else operation.inputs,
            constant=operation.outputs[operation.results :],
        ).operator
        self.backward = TorchOp(
            name=f"{operation.name}_backward",
            tensors={name: types[name] for name in self._read},
            others=others | dict.fromkeys(self._flags, "bool"),
            outputs=_results(operation.gradients),
            call=self._call_backward,
            shapes=self._backward_shapes,
            gradients=self._backward_gradients,
        ).operator
        if operation.in_place:
            marks = zip("abcd", operation.in_place.values(), strict=False)
            self.in_place = TorchOp(
                name=f"{operation.name}_in_place",
                tensors=inputs | {source: f"Tensor({letter}!)" for letter, source in marks},
                others=others,
                outputs={},
                call=lambda tensors, others: launched(operation, tensors, others, is_in_place=True),
                shapes=lambda tensors, others: shapes(operation, tensors, others),
            ).operator

    def gradients(
        self, incoming: Sequence[Tensor], saved: Sequence[Any], options: Sequence[Any], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        """A gradient for each input, None where none is needed; `options` are the scalars and batch_invariant."""
        gradients = self.backward(*incoming, *saved, *options, *self._operation.needed(needs))
        pairs = zip(self._operation.gradient_of, needs, strict=True)
        return [gradients[index] if need else None for index, need in pairs]

    def _call_forward(self, tensors: Named, others: Named) -> Named:
        outputs = launched(self._operation, tensors, others, others["store_rstd"], self._forward)
        leading = tensors[self._operation.inputs[0]].shape[:-1]
        # The formula returns factors in any case.
        for name in self._operation.factors:
            factors = outputs[name]
            outputs[name] = factors.view(leading) if others["store_rstd"] and factors is not None else None
        return outputs

    def _call_backward(self, tensors: Named, others: Named) -> Named:
        operation, batch_invariant = self._operation, others["batch_invariant"]
        check_backward(operation, tuple(tensors.values()))
        factors = operation.with_axes(operation.saved, ROWS)
        if batch_invariant is None:
            batch_invariant = any([is_marked(tensors[name]) for name in factors]) or is_batch_invariant()
        flat = [tensor.reshape(-1) if name in factors else tensor for name, tensor in tensors.items()]
        scalars = tuple([others[name] for name in operation.defaults])
        scalars = operation.scalars_of([tensors.get(name) for name in operation.inputs], scalars)
        plan = CallPlan(operation, {name: tensors[name] for name in operation.saved_inputs}, scalars, batch_invariant)
        gradients = cached.backward(tuple(flat), plan, *map(others.__getitem__, self._flags))
        return dict(zip(operation.gradients, gradients, strict=True))

    def _backward_shapes(self, tensors: Named, others: Named) -> Named:
        read = tuple(tensors.values())
        check_backward(self._operation, read)
        are_needed = self._are_needed(others)
        likes = zip(are_needed.items(), self._operation.gradient_likes, strict=True)
        return {name: new_like(read[like]) if is_needed else None for (name, is_needed), (like, _) in likes}

    def _are_needed(self, others: Named) -> dict[str, bool]:
        return self._operation.are_needed(*[others[name] for name in self._flags])

    def _forward_gradients(self, incoming: Named, saved: Named, others: Named, needs: Named) -> Named:
        operation = self._operation
        *options, is_saving = others.values()
        results = [incoming[name] for name in operation.outputs[: operation.results]]
        present = next(gradient for gradient in results if gradient is not None)
        if not is_saving:  # the graph was traced without gradients
            outputs = self.forward(*saved.values(), *options, True)
            saved = {**saved, **dict(zip(operation.outputs, outputs, strict=True))}
        gradients = [torch.zeros_like(present) if gradient is None else gradient for gradient in results]
        read = [saved[name] for name in operation.saved]
        return dict(zip(needs, self.gradients(gradients, read, options, tuple(needs.values())), strict=True))

    def _backward_gradients(self, incoming: Named, saved: Named, others: Named, _: Named) -> Named:
        operation = self._operation
        needed = [incoming[name] if is_needed else None for name, is_needed in self._are_needed(others).items()]
        scalars = tuple([others[name] for name in operation.defaults])
        seconds = second_derivatives(operation, tuple(saved.values()), needed, scalars)
        return dict(zip(self._read, seconds, strict=True))


def _results(names: Sequence[str]) -> dict[str, str]:
    return {name: f"Tensor {name}" for name in names}


def registration_of(operation: Operation, ops: TorchOps) -> Callable[[], None]:
    """A function that registers the placements with torch, once; its first call imports DTensor."""
    is_registered = False

    def register() -> None:
        nonlocal is_registered
        if is_registered:
            return
        is_registered = True
        from torch.distributed.tensor.experimental import register_sharding

        @register_sharding(ops.forward.default)
        def forward(*arguments: Any) -> Any:
            stored = operation.outputs if arguments[-1] else operation.outputs[: operation.results]
            return _placements(
                operation, operation.inputs, arguments, {name: name in stored for name in operation.outputs}
            )

        @register_sharding(ops.backward.default)
        def backward(*arguments: Any) -> Any:
            are_needed = operation.are_needed(*arguments[-2:])
            likes = zip(are_needed.items(), operation.gradient_likes, strict=True)
            are_made = {name: is_needed and arguments[like] is not None for (name, is_needed), (like, _) in likes}
            return _placements(operation, (*operation.incoming, *operation.saved), arguments, are_made)

    # As `torch.compiler.assume_constant_result`, which would import the compiler: it is called, never traced.
    register._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return register


def _placements(
    operation: Operation, inputs: Sequence[str], arguments: Sequence[Any], outputs: Mapping[str, bool]
) -> list[tuple[list[Any], list[Any]]]:
    """Placements of outputs and inputs, for each way of sharding the rows; `outputs` says which are made."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    pairs = [*zip(inputs, arguments, strict=False)]
    dims = next(tensor.ndim for _, tensor in pairs if tensor is not None)
    # The dimensions of a weight stay whole: hidden, and groups if each group has a weight of its own.
    weights = [tensor.ndim for name, tensor in pairs if operation.axes[name] == HIDDEN and tensor is not None]
    results = []
    for rows, sums in [
        (Replicate(), Replicate()),
        *((Shard(dim), Partial()) for dim in range(dims - max([1, *weights]))),
    ]:
        written = [
            Replicate() if not is_made else sums if operation.axes[name] == HIDDEN else rows
            for name, is_made in outputs.items()
        ]
        read = [
            None if tensor is None else Replicate() if operation.axes[name] == HIDDEN else rows
            for name, tensor in pairs
        ]
        results.append((written, [*read, *(None,) * (len(arguments) - len(inputs))]))
    return results
