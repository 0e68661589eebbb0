"""The function that users call, made from an operation.

In: an `Operation`. Out: an `Op`, or, for operations without a backward, a `ForwardOnlyOp`. Each call takes one of three
paths: a cached launch for plain tensors (`cached`), torch's dispatcher for modes, exporters and tensor subclasses
(`torch_ops`), the formula for function transforms. Compilers see the second or the third (`compiled`).
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_variadic

from normtune.kernels.calling import cached, compiled
from normtune.kernels.calling.arguments import check, check_flag, check_kind, number
from normtune.kernels.calling.autograd import apply
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.eager import new_of
from normtune.kernels.calling.layout import PLAIN_TYPES
from normtune.kernels.calling.operation import Operation, picking
from normtune.kernels.calling.torch_ops import TorchOps, define, registration_of

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
        dispatched: for an operation without a backward, a function of (inputs, scalars, batch_invariant) that goes
            through torch's dispatcher.
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
        forward: Callable[..., tuple[Any, ...]] = cached.forward,
    ) -> None:
        self.operation, self.forward, self._dispatched = operation, forward, dispatched
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
        if is_grad_enabled() and operation.backward:
            for tensor in tensors:
                if tensor is not None and tensor.requires_grad:
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
            TypeError, ValueError: as `call` and `in_place.claim`; or an input needs a gradient.
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
        if self._dispatched:
            return self._dispatched(tensors, scalars, batch_invariant)
        if transforms() or forward_ad._current_level >= 0:
            return self._transformed(tensors, scalars, batch_invariant)
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
        if batch_invariant:
            inside = "inside of a transform of torch.func or a forward-mode derivative"
            raise ValueError(f"batch_invariant is on {inside}: expected it off")
        return self.operation.formula.forward(*tensors, *scalars)[self.picked]


class ForwardOnlyOp:
    """A function without gradients whose modes are strings, such as `rms_norm_quantize_fp8`.

    Each combination of modes is an `Operation` without a backward. torch's dispatcher knows all of them as one
    operator, or two, if some of them write an input.

    Args:
        name: of the operator in torch's dispatcher.
        inputs: names of all inputs that any operation has; the one with rows comes first.
        scalars: the same for scalars, each with a valid value.
        choices: names of the modes.
        operation_of: returns the operation, given the modes.
        written: name of one more input, which some operations write; None if none does.
        outputs: names of all outputs of the operations that write it.

    Attributes:
        outputs_of: returns the names of the outputs, given the modes.
        operator: takes inputs, scalars, modes, and batch_invariant or None; returns the list of the outputs.
        writing: as `operator`, with `written` after the other inputs. Returns a tuple of all `outputs`, with empty
            tensors for those that the operation lacks: compilers accept no list from what writes its inputs.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[str],
        scalars: Mapping[str, float],
        choices: tuple[str, ...],
        operation_of: Callable[..., Operation],
        written: str | None = None,
        outputs: Sequence[str] = (),
    ) -> None:
        self.inputs, self.scalars, self.operation_of = inputs, scalars, operation_of
        self._choices, self._written, self._outputs = len(choices), written, outputs
        self._ops: dict[tuple[str, ...], Op] = {}
        tensors = [f"Tensor {inputs[0]}", *(f"Tensor? {name}" for name in inputs[1:])]
        others = [*(f"float {name}" for name in scalars), *(f"str {name}" for name in choices), "bool? batch_invariant"]
        self.operator = define(name, f"({', '.join((*tensors, *others))}) -> Tensor[]", self._launch, self._shapes)
        if written:
            arguments = ", ".join((*tensors, f"Tensor(a!) {written}", *others))
            schema = f"({arguments}) -> ({', '.join('Tensor' for _ in outputs)})"
            launch, shapes = (partial(self._padded, call) for call in (self._launch, self._shapes))
            self.writing = define(f"{name}_{written}_in_place", schema, launch, shapes)

        def outputs_of(*choices: str) -> tuple[str, ...]:
            return self._op_of(choices).operation.outputs

        # Compilers call it instead of tracing it, since the result depends on strings only.
        outputs_of._dynamo_marked_constant = True  # type: ignore[attr-defined]
        self.outputs_of = outputs_of

    def call(
        self,
        choices: tuple[str, ...],
        inputs: Mapping[str, Any],
        scalars: Mapping[str, float],
        batch_invariant: bool | None,
    ) -> dict[str, Tensor]:
        """Call the operation of these modes; returns the outputs by name.

        `inputs` and `scalars` have a value for each name in the attributes, of which the operation reads its own.

        Raises:
            TypeError, ValueError: as `arguments.check`, or the batch-invariant mode is not available.
        """
        if is_compiling():
            outputs = self.dispatched(choices, inputs, scalars, batch_invariant)
            return dict(zip(self.outputs_of(*choices), outputs, strict=True))
        op = self._op_of(choices)
        operation = op.operation
        tensors = tuple([inputs[name] for name in operation.inputs])
        outputs = op.call(tensors, tuple([scalars[name] for name in operation.defaults]), batch_invariant)
        return dict(zip(operation.outputs, outputs, strict=True))

    def dispatched(
        self,
        choices: tuple[str, ...],
        inputs: Mapping[str, Tensor | None],
        scalars: Mapping[str, float],
        batch_invariant: bool | None,
    ) -> Sequence[Tensor]:
        """The outputs of a call through torch's dispatcher; missing inputs and scalars are those it does not read."""
        read = [inputs.get(name) for name in self.inputs]
        detached = [None if tensor is None else tensor.detach() for tensor in read]
        numbers = [number(name, scalars.get(name, value)) for name, value in self.scalars.items()]
        written = inputs.get(self._written or "")
        if written is None:
            outputs: list[Tensor] = self.operator(*detached, *numbers, *choices, batch_invariant)
            return outputs
        every = self.writing(*detached, written, *numbers, *choices, batch_invariant)
        named = dict(zip(self._outputs, every, strict=True))
        return [named[name] for name in self.outputs_of(*choices)]

    def _op_of(self, choices: tuple[str, ...]) -> Op:
        op = self._ops.get(choices)
        if op:
            return op
        operation = self.operation_of(*choices)

        def dispatched(tensors: Sequence[Any], scalars: Sequence[Any], batch_invariant: bool | None) -> Any:
            inputs, numbers = zip(operation.inputs, tensors, strict=True), zip(operation.defaults, scalars, strict=True)
            return self.dispatched(choices, dict(inputs), dict(numbers), batch_invariant)

        return self._ops.setdefault(choices, Op(operation, dispatched))

    def _parsed(self, arguments: Sequence[Any]) -> tuple[Op, list[Any], list[float], bool | None]:
        """The arguments of the operator as the op of their modes, its inputs, its scalars, and batch_invariant."""
        count = len(arguments) - len(self.scalars) - self._choices - 1
        tensors, rest = arguments[:count], arguments[count:]
        numbers, choices = rest[: len(self.scalars)], tuple(rest[len(self.scalars) : -1])
        op = self._op_of(choices)
        inputs = (*self.inputs, self._written)[:count]
        named = dict(zip((*inputs, *self.scalars), (*tensors, *numbers), strict=True))
        operation = op.operation
        return (
            op,
            [named[name] for name in operation.inputs],
            [named[name] for name in operation.defaults],
            rest[-1],
        )

    def _padded(self, call: Callable[..., list[Tensor]], *arguments: Any) -> tuple[Tensor, ...]:
        """All `outputs`: those of the call, else empty tensors."""
        outputs = dict(zip(self._parsed(arguments)[0].operation.outputs, call(*arguments), strict=True))
        return tuple(outputs[name] if name in outputs else arguments[0].new_empty(0) for name in self._outputs)

    def _launch(self, *arguments: Any) -> list[Tensor]:
        op, tensors, scalars, mode = self._parsed(arguments)
        mode = is_batch_invariant() if mode is None else mode
        *outputs, _ = cached.forward(op.operation, tuple(tensors), tuple(scalars), mode, False)
        return outputs

    def _shapes(self, *arguments: Any) -> list[Tensor]:
        op, tensors, scalars, _ = self._parsed(arguments)
        check(op.operation, tensors, scalars)
        outputs = op.operation.outputs_at(tensors[0])
        return [new_of(tensors[0], shape, dtype) for shape, dtype in outputs.values()]


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
