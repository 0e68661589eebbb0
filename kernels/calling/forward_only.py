"""The calls of operations without a backward that are one function to users and one operator to torch's dispatcher.

In: a function from texts, such as the name of a scaling, to an `Operation`. Out: `Family`, with an `Entry` for each.
Nothing has a gradient: no output has a graph.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling.arguments import check, number
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.eager import new_of
from normtune.kernels.calling.entry import Entry
from normtune.kernels.calling.library import define
from normtune.kernels.calling.operation import Operation


class Family:
    """Operations without a backward, one for each choice of texts.

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
            given: values for all inputs of the family, of which an operation takes its own.
            scalars: values for all scalars.
            batch_invariant: the mode; None for the one that is on.

        Raises:
            TypeError, ValueError: as `arguments.check`, or the batch-invariant mode is not available.
        """
        if torch.compiler.is_compiling():
            made = self.dispatched(choices, given, scalars, batch_invariant)
            return dict(zip(self.outputs_of(*choices), made, strict=True))
        member = self._member(choices)
        operation = member.operation
        numbers = [scalars[name] for name in operation.defaults]
        made = member.call(*[given[name] for name in operation.inputs], *numbers, batch_invariant)
        return dict(zip(operation.outputs, made, strict=True))

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
            made: list[Tensor] = self.operator(*detached, *numbers, *choices, batch_invariant)
            return made
        every = self.writing(*detached, written, *numbers, *choices, batch_invariant)
        named = dict(zip(self._outputs, every, strict=True))
        return [named[name] for name in self.outputs_of(*choices)]

    def _member(self, choices: tuple[str, ...]) -> Entry:
        found = self._members.get(choices)
        if found:
            return found
        operation = self.operation_of(*choices)

        def dispatched(tensors: Sequence[Any], scalars: Sequence[Any], batch_invariant: bool | None) -> Any:
            given, numbers = zip(operation.inputs, tensors, strict=True), zip(operation.defaults, scalars, strict=True)
            return self.dispatched(choices, dict(given), dict(numbers), batch_invariant)

        return self._members.setdefault(choices, Entry(operation, dispatched))

    def _split(self, arguments: Sequence[Any]) -> tuple[Entry, list[Any], list[float], bool | None]:
        """The operation that the arguments of the operator ask for, with its inputs and scalars, and the mode."""
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
        made = dict(zip(self._split(arguments)[0].operation.outputs, call(*arguments), strict=True))
        return tuple(made[name] if name in made else arguments[0].new_empty(0) for name in self._outputs)

    def _launch(self, *arguments: Any) -> list[Tensor]:
        member, tensors, scalars, mode = self._split(arguments)
        *made, _ = member.forward(*tensors, *scalars, is_batch_invariant() if mode is None else mode, False)
        return made

    def _shapes(self, *arguments: Any) -> list[Tensor]:
        member, tensors, scalars, _ = self._split(arguments)
        check(member.operation, tensors, scalars)
        made = member.operation.outputs_at(tensors[0])
        return [new_of(tensors[0], shape, dtype) for shape, dtype in made.values()]
