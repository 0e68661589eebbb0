"""From an operation to the function that its users call.

In: an `Operation`. Out: `Entry`, with that function. It chooses the path of a call: to a kept launch for plain tensors
(`written_out`), through torch's dispatcher for compilers, modes and subclasses (`ops`), or by the formula for function
transforms.
"""

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_variadic

from normtune.kernels.calling.arguments import check, check_flag, check_kind
from normtune.kernels.calling.autograd import function_of
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.layout import PLAIN
from normtune.kernels.calling.operation import Operation
from normtune.kernels.calling.ops import Ops
from normtune.kernels.calling.sharding import registration_of
from normtune.kernels.calling.written_out import backward_of, call_of, forward_of, in_place_of

_is_compiling = torch.compiler.is_compiling
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active
_is_traced = torch._C._get_tracing_state


class Entry:
    """The calls of an operation.

    Args:
        operation: that is called.
        dispatched: of inputs, scalars and batch_invariant, through torch's dispatcher; only for an operation without a
            backward.

    Attributes:
        operation: that is called.
        forward: of `written_out.forward_of`.
        call: of inputs, scalars and batch_invariant, with gradients of any order.
        ops: the operators of torch's dispatcher, of an operation with a backward.
        public: the function that subclasses which override torch's functions see; `call` unless it is set.
    """

    def __init__(self, operation: Operation, dispatched: Callable[..., Any] | None = None) -> None:
        self.operation, self.forward, self._dispatched = operation, forward_of(operation), dispatched
        differentiable = None
        if operation.backward:
            self._backward = backward_of(operation)
            self._in_place = in_place_of(operation) if operation.in_place else None
            differentiable = _apply_of(function_of(operation, self.forward, self._backward))
            self.ops = Ops(operation, self.forward, self._backward, self._in_place)
            self._register = registration_of(operation, self.ops)
        self.call = call_of(operation, self._special, self.forward, differentiable)
        self.public: Callable[..., Any] = self.call

    def calling(self, reuse_dy: bool) -> Callable[..., Any]:
        """`call`, or with `reuse_dy` one whose backward writes dx into the memory of dy where it may.

        Raises:
            TypeError: `reuse_dy` is not a bool.
        """
        check_flag("reuse_dy", reuse_dy)
        return self._reusing if reuse_dy and not _is_compiling() else self.call

    @cached_property
    def _reusing(self) -> Callable[..., Any]:
        """Written out at its first use: few processes have one."""
        operation = self.operation
        first = backward_of(operation, reuses_dy=True)
        function = function_of(operation, self.forward, self._backward, first)
        call = call_of(operation, self._special, self.forward, _apply_of(function))
        call.__name__, call.__qualname__ = self.call.__name__, self.call.__qualname__
        return call

    def backward(self, *arguments: Any) -> Any:
        """`ops.backward`, of shards, too."""
        if any(map(_is_sharded, arguments)):
            self._register()
        return self.ops.backward(*arguments)

    def call_in_place(
        self, tensors: Sequence[Any], scalars: Sequence[float | None], batch_invariant: bool | None
    ) -> None:
        """A call that writes its results into inputs, in the way of `Operation.in_place`; without gradients.

        Raises:
            TypeError, ValueError: as `call`; or a gradient is needed; or as `reusing.claim`.
        """
        operation = self.operation
        if torch.is_grad_enabled() and any(getattr(tensor, "requires_grad", False) for tensor in tensors):
            raise ValueError(f"{operation.name} in place has no gradients: expected inputs that need none")
        is_plain = all(tensor is None or type(tensor) in PLAIN for tensor in tensors)
        if is_plain and not (_is_compiling() or _modes() or _transforms() or _is_traced()):
            mode = is_batch_invariant() if batch_invariant is None else batch_invariant
            assert self._in_place
            self._in_place(*tensors, *self._derived(tensors, scalars), mode)
            return
        for name, tensor in zip(operation.inputs, tensors, strict=True):
            if tensor is not None or name not in operation.optional:
                check_kind(name, tensor)
        first, *others = (tensors[operation.inputs.index(name)] for name in operation.in_place.values())
        if any(first is other for other in others):  # compilers would give each its own memory
            names = " and ".join(operation.in_place.values())
            raise ValueError(f"{names} share memory: expected tensors apart, as results are written into both")
        settled = self._derived(tensors, scalars)
        check(operation, tensors, settled)
        self.ops.in_place(*tensors, *settled, batch_invariant)

    def _derived(self, tensors: Sequence[Any], scalars: Sequence[Any]) -> tuple[Any, ...]:
        """The scalars, with those that are None derived of the first input."""
        operation = self.operation
        return tuple(
            operation.derived[name](tensors[0]) if value is None and name in operation.derived else value
            for name, value in zip(operation.defaults, scalars, strict=True)
        )

    def _special(self, tensors: tuple[Any, ...], scalars: tuple[Any, ...], batch_invariant: bool | None) -> Any:
        """A call through torch's dispatcher, or of tensors that are more than their memory."""
        operation = self.operation
        for name, tensor in zip(operation.inputs, tensors, strict=True):
            if not is_proxy(tensor) and (tensor is not None or name not in operation.optional):
                check_kind(name, tensor)
        if has_torch_function_variadic(*tensors):
            named = dict(zip(operation.defaults, scalars, strict=True)) | {"batch_invariant": batch_invariant}
            return handle_torch_function(self.public, tensors, *tensors, **named)
        scalars = self._derived(tensors, scalars)
        if not _is_traced():  # traced sizes are tensors; the operator checks them
            check(operation, tensors, scalars)
        if self._dispatched:
            return self._dispatched(tensors, scalars, batch_invariant)
        if _transforms() or forward_ad._current_level >= 0:
            return self._transformed(tensors, scalars, batch_invariant)
        if not (_is_compiling() or _modes() or _is_traced() or any(map(_is_seeing, tensors))):
            # Of a subclass that adds nothing to its memory.
            plain = [None if tensor is None else tensor.as_subclass(Tensor) for tensor in tensors]
            return self.call(*plain, *scalars, batch_invariant)
        if any(map(_is_sharded, tensors)):
            self._register()
        # torch.jit.trace compares its recordings with and without gradients.
        is_saving = (_is_traced() or torch.is_grad_enabled()) and any(
            tensor is not None and tensor.requires_grad for tensor in tensors
        )
        return self._results(self.ops.forward(*tensors, *scalars, batch_invariant, is_saving))

    def _transformed(self, tensors: tuple[Any, ...], scalars: tuple[float, ...], batch_invariant: bool | None) -> Any:
        if batch_invariant is None and not _is_compiling():
            batch_invariant = is_batch_invariant()
        if batch_invariant:
            inside = "inside of a transform of torch.func or a forward-mode derivative"
            raise ValueError(f"batch_invariant is on {inside}: expected it off")
        return self._results(self.operation.formula.forward(*tensors, *scalars))

    def _results(self, outputs: Any) -> Any:
        results = self.operation.results
        return outputs[0] if results == 1 else tuple(outputs[:results])


def _apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`Function.apply` without its work for function transforms, which take another path: 2 us."""
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def is_proxy(value: object) -> bool:
    """Whether it stands for a tensor, as the proxies with which `torch.fx` records calls."""
    return not isinstance(value, Tensor) and has_torch_function((value,))


def _is_seeing(tensor: Tensor | None) -> bool:
    """Whether the type of a tensor intercepts operations."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__ if tensor is not None else False


def _is_sharded(tensor: object) -> bool:
    """Whether it is a DTensor, without an import of its class."""
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(tensor, tensors.DTensor)
