"""The function that users call, made from an operation.

In: an `Operation`. Out: an `Op`. Each call takes one of three paths: a cached launch for plain tensors (`cached`),
torch's dispatcher for modes, exporters and tensor subclasses (`torch_ops`), the formula for function transforms.
Compilers see the second or the third (`compiled`).
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_variadic

from normtune.kernels.calling import cached, compiled
from normtune.kernels.calling.arguments import check, check_flag, check_kind, number
from normtune.kernels.calling.autograd import apply
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


class Op:
    """The calls of one operation.

    Args:
        operation: the declaration.
        dispatched: for an operation of a family, a function of (inputs, scalars, batch_invariant) that goes through
            torch's dispatcher.
        has_gradients: whether calls have gradients, those of the backward or of the family.
        forward: of `cached`, for the operation's number of inputs.

    Attributes:
        operation, forward: the arguments.
        picked: the index, or slice, of what a call returns of the outputs.
        saved: picks from inputs and outputs what a backward reads.
        of_inputs: picks from the gradients one for each input.
        ops: the operators of torch's dispatcher; only for an operation with a backward.
        public: the function that `__torch_function__` of a tensor subclass receives, where no caller sees to that.
    """

    public: Callable[..., Any]

    def __init__(
        self,
        operation: Operation,
        dispatched: Callable[..., Any] | None = None,
        has_gradients: bool = True,
        forward: Callable[..., tuple[Any, ...]] = cached.forward,
    ) -> None:
        self.operation, self.forward, self._dispatched = operation, forward, dispatched
        self._has_gradients = has_gradients
        self.picked: Any = slice(operation.results)
        if operation.backward:
            names = (*operation.inputs, *operation.outputs)
            self.saved = picking(tuple(map(names.index, operation.saved)))
            self.of_inputs = picking(operation.gradient_of)
            if operation.results == 1:
                self.picked = 0
            operation.needed(())  # compilers cannot trace a cached property before it has its value
            self.ops = TorchOps(operation, forward)
            self._register = registration_of(operation, self.ops)

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
        if self._has_gradients and is_grad_enabled():
            for tensor in tensors:
                if tensor is not None and tensor.requires_grad:
                    if self._dispatched:
                        return self._dispatched(tensors, scalars, batch_invariant)
                    return apply(self, scalars, batch_invariant, reuse_dy, *tensors)
        return self.forward(operation, tensors, scalars, batch_invariant, False)[self.picked]

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
        if self._has_gradients and (transforms() or forward_ad._current_level >= 0):
            return self._transformed(tensors, scalars, batch_invariant)
        if self._dispatched:
            return self._dispatched(tensors, scalars, batch_invariant)
        if not (is_compiling() or modes() or is_traced() or any(map(_intercepts, tensors))):
            # A subclass that does not intercept operations.
            base_tensors = tuple(None if tensor is None else tensor.as_subclass(Tensor) for tensor in tensors)
            return self.call(base_tensors, scalars, batch_invariant)
        if any(map(_is_sharded, tensors)):
            self._register()
        if batch_invariant is None and not (is_compiling() or modes() or is_traced()):
            batch_invariant = is_batch_invariant()  # the graph keeps it; saved tensors may be copied
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

    def _transformed(self, tensors: tuple[Any, ...], scalars: tuple[float, ...], batch_invariant: bool | None) -> Any:
        if batch_invariant is None and not is_compiling():
            batch_invariant = is_batch_invariant()
        if batch_invariant or self.operation.written:
            switch = "batch_invariant" if batch_invariant else "in_place"
            inside = "inside of a transform of torch.func or a forward-mode derivative"
            raise ValueError(f"{switch} is on {inside}: expected it off")
        return self.operation.formula.forward(*tensors, *scalars)[self.picked]


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
