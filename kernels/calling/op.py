"""The function that users call, made from an operation.

In: an `Operation`. Out: an `Op`. Each call takes one of three paths: a cached launch for plain tensors (`cached`),
torch's dispatcher for modes, exporters and tensor subclasses (`torch_ops`), the formula for function transforms.
Compilers see the second or the third (`compiled`).
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_variadic

from normtune.kernels.calling import cached, compiled
from normtune.kernels.calling.arguments import check, check_flag, check_kind, number
from normtune.kernels.calling.autograd import UNGRADED, apply, differentiable
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.layout import PLAIN_TYPES
from normtune.kernels.calling.operation import Operation, picking
from normtune.kernels.calling.torch_ops import TorchOps, registration_of

# What intercepts calls of plain tensors.
is_compiling = torch.compiler.is_compiling
modes = torch._C._len_torch_dispatch_stack
transforms = torch._C._are_functorch_transforms_active
is_traced = torch._C._get_tracing_state
_PLAIN_OR_NONE = PLAIN_TYPES | {type(None)}


class Op(ABC):
    """The calls of one operation.

    Args:
        operation: the declaration.
        differentiable: number of inputs, the first ones, that have gradients.
        forward: of `cached`, for the operation's number of inputs.

    Attributes:
        operation, forward: the arguments.
        picked: the index, or slice, of what a call returns of the outputs.
        saved: picks from inputs and outputs what a backward reads.
        public: the function that `__torch_function__` of a tensor subclass receives, where no caller sees to that.
    """

    public: Callable[..., Any]
    saved: Callable[[Sequence[Any]], Sequence[Any]]

    def __init__(
        self,
        operation: Operation,
        differentiable: int,
        forward: Callable[..., tuple[Any, ...]] = cached.forward,
    ) -> None:
        self.operation, self.forward, self._differentiable = operation, forward, differentiable
        self.picked: Any = slice(operation.results)

    @abstractmethod
    def dispatched(self, tensors: tuple[Any, ...], scalars: tuple[Any, ...], batch_invariant: bool | None) -> Any:
        """The results of checked arguments through torch's dispatcher, or what compilers see of them."""

    @abstractmethod
    def gradients(self, ctx: Any, incoming: tuple[Any, ...]) -> Sequence[Tensor | None]:
        """A gradient for each input, given those of the results; they have a graph while grad mode is on.

        `ctx` is of `autograd.Function`: its `call` has this object, the plan of the forward and `reuse_dy`.
        """

    def call(
        self, tensors: tuple[Any, ...], scalars: tuple[Any, ...], batch_invariant: Any, reuse_dy: Any = False
    ) -> Any:
        """The results, which have gradients of any order.

        Args:
            tensors: inputs; None for missing ones.
            scalars: of the operation, finite numbers; None for one that is derived.
            batch_invariant: True, False, or None for the setting.
            reuse_dy: let the backward write dx into the memory of dy where that is safe.

        Raises:
            TypeError, ValueError: as `arguments.check`, or a flag is no bool.
        """
        if reuse_dy is not False:
            check_flag("reuse_dy", reuse_dy)
        if (
            is_compiling()
            or not _PLAIN_OR_NONE.issuperset(map(type, tensors))
            or tensors[0] is None
            or has_torch_function_variadic(*tensors)
            or modes()
            or transforms()
            or forward_ad._current_level >= 0
            or is_traced()
        ):
            return self.special(tensors, scalars, batch_invariant)
        operation = self.operation
        for scalar in scalars:
            if type(scalar) is not float:
                scalars = tuple(map(number, operation.defaults, self._derived(tensors, scalars)))
                break
        if batch_invariant is None:
            batch_invariant = is_batch_invariant()
        elif batch_invariant is not True and batch_invariant is not False:
            check_flag("batch_invariant", batch_invariant, is_optional=True)
        if self._differentiable and is_grad_enabled():
            for tensor in tensors[: self._differentiable]:
                if tensor is not None and tensor.requires_grad:
                    return apply(self, scalars, batch_invariant, reuse_dy, *tensors)
        return self.forward(operation, tensors, scalars, batch_invariant, False)[self.picked]

    def _derived(self, tensors: Sequence[Any], scalars: Sequence[Any]) -> tuple[Any, ...]:
        """The scalars; None is replaced by the value that `Operation.derived` computes from the first input."""
        for value in scalars:
            if value is None:
                break
        else:
            return tuple(scalars)
        derived = self.operation.derived
        return tuple(
            derived[name](tensors[0]) if value is None and name in derived else value
            for name, value in zip(self.operation.defaults, scalars, strict=True)
        )

    def special(self, tensors: tuple[Any, ...], scalars: tuple[Any, ...], batch_invariant: bool | None) -> Any:
        """Calls with anything but plain tensors, and calls under compilers, modes or function transforms."""
        operation = self.operation
        for name, tensor in zip(operation.inputs, tensors, strict=True):
            if not is_proxy(tensor) and (tensor is not None or name not in operation.optional):
                check_kind(name, tensor)
        if has_torch_function_variadic(*tensors):
            named = dict(zip(operation.defaults, scalars, strict=True)) | {"batch_invariant": batch_invariant}
            return handle_torch_function(self.public, tensors, *tensors, **named)
        scalars = self._derived(tensors, scalars)
        if not is_traced():  # traced sizes are tensors; the operator checks them
            check(operation, tensors, scalars)
        is_recorded = is_compiling() or modes() or is_traced()
        if batch_invariant is None and not is_recorded:
            batch_invariant = is_batch_invariant()  # the graph keeps it; saved tensors may be copied
        if self._differentiable and (transforms() or forward_ad._current_level >= 0):
            return self._transformed(tensors, scalars, batch_invariant)
        return self.dispatched(tensors, scalars, batch_invariant)

    def _transformed(self, tensors: tuple[Any, ...], scalars: tuple[float, ...], batch_invariant: bool | None) -> Any:
        if batch_invariant or self.operation.written:
            switch = "batch_invariant" if batch_invariant else "in_place"
            inside = "inside of a transform of torch.func or a forward-mode derivative"
            raise ValueError(f"{switch} is on {inside}: expected it off")
        return self.operation.formula.forward(*tensors, *scalars)[self.picked]


class BackwardOp(Op):
    """The calls of an operation with a backward.

    Attributes:
        ops: the operators of torch's dispatcher.
    """

    def __init__(self, operation: Operation, forward: Callable[..., tuple[Any, ...]] = cached.forward) -> None:
        super().__init__(operation, len(operation.inputs), forward)
        names = (*operation.inputs, *operation.outputs)
        self.saved = picking(tuple(map(names.index, operation.saved)))
        self._of_inputs = picking(operation.gradient_of)
        if operation.results == 1:
            self.picked = 0
        operation.needed(())  # compilers cannot trace a cached property before it has its value
        self.ops = TorchOps(operation, forward)
        self._register = registration_of(operation, self.ops)

    def dispatched(self, tensors: tuple[Any, ...], scalars: tuple[Any, ...], batch_invariant: bool | None) -> Any:
        """As in `Op`; `compiled` chooses what compilers see."""
        operation = self.operation
        if not (is_compiling() or modes() or is_traced() or any(map(_intercepts, tensors))):
            # A subclass that does not intercept operations.
            base_tensors = tuple(None if tensor is None else tensor.as_subclass(Tensor) for tensor in tensors)
            return self.call(base_tensors, scalars, batch_invariant)
        if any(map(_is_sharded, tensors)):
            self._register()
        # torch.jit.trace compares its recordings with and without gradients.
        is_saving = (is_traced() or is_grad_enabled()) and any(
            tensor is not None and tensor.requires_grad for tensor in tensors
        )
        way = compiled.way_of(operation, tensors[0], is_saving, batch_invariant)
        if way == "backward":
            return compiled.FusedForward.apply(self, scalars, *tensors)  # type: ignore[no-untyped-call]
        if way == "formula":
            return operation.formula.forward(*tensors, *scalars)[self.picked]
        return self.ops.forward(*tensors, *scalars, batch_invariant, is_saving)[self.picked]

    def gradients(self, ctx: Any, incoming: tuple[Any, ...]) -> Sequence[Tensor | None]:
        """As in `Op`, by the backward."""
        _, plan, reuse_dy = ctx.call
        needs = self.operation.needed(ctx.needs_input_grad[UNGRADED:])
        if is_grad_enabled():
            return self._of_inputs(differentiable(plan, incoming, ctx.saved_tensors, needs))
        return self._of_inputs(cached.backward(incoming + ctx.saved_tensors, plan, *needs, reuse_dy))

    def call_backward(self, *arguments: Any) -> Any:
        """`ops.backward`, also for DTensors."""
        if any(map(_is_sharded, arguments)):
            self._register()
        return self.ops.backward(*arguments)

    def call_in_place(
        self, tensors: Sequence[Any], scalars: Sequence[float | None], batch_invariant: bool | None
    ) -> None:
        """Write the results into the inputs that `Operation.in_place` names; there are no gradients.

        Raises:
            TypeError, ValueError: as `call` and `in_place.check_written`; or an input needs a gradient.
        """
        operation = self.operation
        if is_grad_enabled() and any([getattr(tensor, "requires_grad", False) for tensor in tensors]):
            raise ValueError(f"{operation.name} in place has no gradients: expected inputs that need none")
        is_plain = _PLAIN_OR_NONE.issuperset(map(type, tensors))
        if is_plain and not (is_compiling() or modes() or transforms() or is_traced()):
            mode = is_batch_invariant() if batch_invariant is None else batch_invariant
            cached.forward(operation, tuple(tensors), self._derived(tensors, scalars), mode, False, is_in_place=True)
            return
        for name, tensor in zip(operation.inputs, tensors, strict=True):
            if tensor is not None or name not in operation.optional:
                check_kind(name, tensor)
        first, *others = (tensors[operation.inputs.index(name)] for name in operation.in_place.values())
        if any(first is other for other in others):  # compilers would give each its own memory
            names = " and ".join(operation.in_place.values())
            raise ValueError(f"{names} share memory: expected tensors apart, as results are written into both")
        numbers = self._derived(tensors, scalars)
        check(operation, tensors, numbers)
        if compiled.way_of(operation, tensors[0], False, batch_invariant) == "kernel":
            self.ops.in_place(*tensors, *numbers, batch_invariant)
            return
        outputs = dict(zip(operation.outputs, operation.formula.forward(*tensors, *numbers), strict=True))
        for name, source in operation.in_place.items():
            tensors[operation.inputs.index(source)].copy_(outputs[name])


def is_proxy(value: object) -> bool:
    """Whether a value stands for a tensor, as the proxies with which `torch.fx` records calls do."""
    return not isinstance(value, Tensor) and has_torch_function((value,))


def _intercepts(tensor: Tensor | None) -> bool:
    """Whether a tensor is of a subclass with a `__torch_dispatch__` of its own."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__ if tensor is not None else False


def _is_sharded(tensor: object) -> bool:
    """Whether a value is a DTensor; does not import that class."""
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(tensor, tensors.DTensor)
