"""From an operation to the function that its users call.

In: an `Operation`. Out: `Entry`, with that function; `Family`, one of them for each choice of texts. An entry chooses
the path of a call: to a kept launch for plain tensors (`written_out`), through torch's dispatcher for compilers, modes
and subclasses (`ops`), or by the formula for function transforms.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_variadic

from normtune.kernels.calling.arguments import check, check_flag, check_kind, number
from normtune.kernels.calling.autograd import function_of
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.eager import new_of
from normtune.kernels.calling.layout import PLAIN
from normtune.kernels.calling.operation import Operation
from normtune.kernels.calling.ops import Ops, define
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
        dispatched: call with (inputs, scalars, batch_invariant) through torch's dispatcher; only for an operation
            without a backward.

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
        """`call` of a backward that reuses dy, generated at first use."""
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
        """The scalars, with a value computed from the first input for None."""
        operation = self.operation
        return tuple(
            operation.derived[name](tensors[0]) if value is None and name in operation.derived else value
            for name, value in zip(operation.defaults, scalars, strict=True)
        )

    def _special(self, tensors: tuple[Any, ...], scalars: tuple[Any, ...], batch_invariant: bool | None) -> Any:
        """Slow path: a call through torch's dispatcher, or with tensor subclasses."""
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
        if batch_invariant is None and not (_is_compiling() or _modes() or _is_traced()):
            batch_invariant = is_batch_invariant()  # in the graph, whatever copies what it saves
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


class Family:
    """Operations without a backward, one for each choice of texts: one function, and one operator to torch.

    Nothing has a gradient: no output has a graph.

    Args:
        name: of the operator of torch's dispatcher.
        inputs: those that any of the operations has, the one with rows first.
        scalars: those that any of them has, with values that they may have.
        choices: names of the texts.
        operation_of: the operation of such texts.
        written: an input besides, which some of the operations have, and write; None for none.
        outputs: those that any of these has.

    Attributes:
        outputs_of: of texts; names of the outputs.
        operator: of inputs, scalars, texts, and batch_invariant or None; returns a list of the outputs.
        writing: the same with the input that is written behind the others; returns all `outputs`, empty where an
            operation has none, as compilers take no list from what writes its inputs.
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
        self._members: dict[tuple[str, ...], Entry] = {}
        tensors = [f"Tensor {inputs[0]}", *(f"Tensor? {name}" for name in inputs[1:])]
        others = [*(f"float {name}" for name in scalars), *(f"str {name}" for name in choices), "bool? batch_invariant"]
        self.operator = define(name, f"({', '.join((*tensors, *others))}) -> Tensor[]", self._launch, self._shapes)
        if written:
            arguments = ", ".join((*tensors, f"Tensor(a!) {written}", *others))
            schema = f"({arguments}) -> ({', '.join('Tensor' for _ in outputs)})"
            launch, shapes = (partial(self._padded, call) for call in (self._launch, self._shapes))
            self.writing = define(f"{name}_{written}_in_place", schema, launch, shapes)

        def outputs_of(*choices: str) -> tuple[str, ...]:
            return self._member(choices).operation.outputs

        # Compilers call it in place of tracing it: what it returns depends on texts alone.
        outputs_of._dynamo_marked_constant = True  # type: ignore[attr-defined]
        self.outputs_of = outputs_of

    def call(
        self,
        choices: tuple[str, ...],
        given: Mapping[str, Any],
        scalars: Mapping[str, float],
        batch_invariant: bool | None,
    ) -> dict[str, Tensor]:
        """The outputs of one call, by name.

        Args:
            choices: the texts.
            given: values for all inputs of the family; an operation reads some of them.
            scalars: values for all scalars.
            batch_invariant: the mode; None for the one that is on.

        Raises:
            TypeError, ValueError: as `arguments.check`, or the batch-invariant mode is not available.
        """
        if _is_compiling():
            outputs = self.dispatched(choices, given, scalars, batch_invariant)
            return dict(zip(self.outputs_of(*choices), outputs, strict=True))
        member = self._member(choices)
        operation = member.operation
        numbers = [scalars[name] for name in operation.defaults]
        outputs = member.call(*[given[name] for name in operation.inputs], *numbers, batch_invariant)
        return dict(zip(operation.outputs, outputs, strict=True))

    def dispatched(
        self,
        choices: tuple[str, ...],
        given: Mapping[str, Tensor | None],
        scalars: Mapping[str, float],
        batch_invariant: bool | None,
    ) -> Sequence[Tensor]:
        """The outputs of a call through torch's dispatcher; inputs and scalars that are not given are not read."""
        read = [given.get(name) for name in self.inputs]
        detached = [None if tensor is None else tensor.detach() for tensor in read]
        numbers = [number(name, scalars.get(name, value)) for name, value in self.scalars.items()]
        written = given.get(self._written or "")
        if written is None:
            outputs: list[Tensor] = self.operator(*detached, *numbers, *choices, batch_invariant)
            return outputs
        every = self.writing(*detached, written, *numbers, *choices, batch_invariant)
        named = dict(zip(self._outputs, every, strict=True))
        return [named[name] for name in self.outputs_of(*choices)]

    def _member(self, choices: tuple[str, ...]) -> Entry:
        member = self._members.get(choices)
        if member:
            return member
        operation = self.operation_of(*choices)

        def dispatched(tensors: Sequence[Any], scalars: Sequence[Any], batch_invariant: bool | None) -> Any:
            given, numbers = zip(operation.inputs, tensors, strict=True), zip(operation.defaults, scalars, strict=True)
            return self.dispatched(choices, dict(given), dict(numbers), batch_invariant)

        return self._members.setdefault(choices, Entry(operation, dispatched))

    def _split(self, arguments: Sequence[Any]) -> tuple[Entry, list[Any], list[float], bool | None]:
        """The entry, inputs, scalars and batch_invariant of the operator's arguments."""
        count = len(arguments) - len(self.scalars) - self._choices - 1
        tensors, rest = arguments[:count], arguments[count:]
        numbers, choices = rest[: len(self.scalars)], tuple(rest[len(self.scalars) : -1])
        member = self._member(choices)
        inputs = (*self.inputs, self._written)[:count]
        named = dict(zip((*inputs, *self.scalars), (*tensors, *numbers), strict=True))
        operation = member.operation
        return (
            member,
            [named[name] for name in operation.inputs],
            [named[name] for name in operation.defaults],
            rest[-1],
        )

    def _padded(self, call: Callable[..., list[Tensor]], *arguments: Any) -> tuple[Tensor, ...]:
        """All `outputs`, those of a call and empty ones."""
        outputs = dict(zip(self._split(arguments)[0].operation.outputs, call(*arguments), strict=True))
        return tuple(outputs[name] if name in outputs else arguments[0].new_empty(0) for name in self._outputs)

    def _launch(self, *arguments: Any) -> list[Tensor]:
        member, tensors, scalars, mode = self._split(arguments)
        *outputs, _ = member.forward(*tensors, *scalars, is_batch_invariant() if mode is None else mode, False)
        return outputs

    def _shapes(self, *arguments: Any) -> list[Tensor]:
        member, tensors, scalars, _ = self._split(arguments)
        check(member.operation, tensors, scalars)
        outputs = member.operation.outputs_at(tensors[0])
        return [new_of(tensors[0], shape, dtype) for shape, dtype in outputs.values()]


def _apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`Function.apply` without support for function transforms, which take another path: saves 2 us."""
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


def is_proxy(value: object) -> bool:
    """Whether it is a proxy of a tensor, as `torch.fx` records calls with."""
    return not isinstance(value, Tensor) and has_torch_function((value,))


def _is_seeing(tensor: Tensor | None) -> bool:
    """Whether a tensor is of a subclass that intercepts operations."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__ if tensor is not None else False


def _is_sharded(tensor: object) -> bool:
    """Whether it is a DTensor, without an import of its class."""
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(tensor, tensors.DTensor)
