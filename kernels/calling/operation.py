"""The declaration of a function of rows, from which this room makes its calls on a user's tensors.

In: the specs of its forward and its backward, and its formula in torch's operations. Out: `Operation`. By the names of
the specs' buffers, `dy` is the gradient of the forward's output `y` and `dx` that of its input `x`; all other inputs of
the backward are inputs or outputs of the forward, and autograd saves them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from normtune.kernels.calling.dispatch import Cache
from normtune.kernels.calling.launcher import Prepared
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import INPUT, OUTPUT, WEIGHT, Buffer

# The shape of a tensor of a call whose first input is (..., hidden): (..., hidden), (hidden,) or (...,). Columns of an
# operation on groups may also be (groups, hidden), of a first input (..., groups, hidden).
ROWS, COLUMNS, FACTORS = "rows", "columns", "factors"


class Formula(Protocol):
    """An operation in torch's operations, differentiable, for any device and number of rows.

    All arithmetic is in `wide.wide_dtype` of the first tensor.
    """

    def forward(self, *arguments: Any) -> Sequence[Tensor]:
        """Outputs, of inputs and scalars; factors in the wide dtype."""
        ...

    def factors(self, *arguments: Any) -> Sequence[Tensor]:
        """The outputs that are factors again, of the saved inputs and scalars."""
        ...

    def backward(self, *arguments: Any) -> Sequence[Tensor | None]:
        """Gradients, of the gradients of outputs, the saved tensors and scalars; None for that of a missing input."""
        ...


@dataclass(frozen=True, eq=False)
class Operation:
    """A differentiable function of rows.

    Attributes:
        name: of the public function.
        forward, backward: the specs of its operators. The first flag of each, switched off, leaves out the outputs that
            only the backward reads, and the gradients of inputs (hidden,).
        formula: a module or object; see `Formula`.
        optional: inputs (hidden,) that a call may leave out; they come last.
        defaults: of the scalars, in the order of the kernels; None for one that `derived` has.
        derived: functions of the first input that give a scalar for None.
        like: for an output or gradient (..., hidden) the input, or the saved tensor, that has its dtype, unless that is
            the first input, or the tensor that the gradient is of.
        in_place: for outputs, the inputs whose memory they may take; empty for an operation that cannot work in place.
        shared: for an input whose gradient is that of another one, the name of this gradient.
        scalars_of: scalars for the kernels, given (inputs, scalars): ones stand in for missing inputs.
        compiler_options: options of the forward's binaries, given the scalars.
        columns_alone: prepares the launch of the gradients (hidden,) without those of rows, given the backward's
            tensors by name; None for a backward that is launched whole.
        flags: values of the specs' other flags, those that this function has fixed.
        is_grouped: the kernels take rows as (outer, inner, groups, hidden) with any strides but the last, and columns
            of their own for each group.
    """

    name: str
    forward: OperatorSpec
    backward: OperatorSpec
    formula: Any
    defaults: Mapping[str, float | None]
    optional: tuple[str, ...] = ()
    derived: Mapping[str, Callable[[Tensor], float]] = field(default_factory=dict)
    like: Mapping[str, str] = field(default_factory=dict)
    in_place: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    scalars_of: Callable[[Sequence[Tensor | None], tuple[float, ...]], tuple[float, ...]] = lambda _, scalars: scalars
    compiler_options: Callable[[Mapping[str, float]], Mapping[str, Any] | None] = lambda _: None
    columns_alone: Callable[[dict[str, Tensor | None]], Prepared] | None = None
    flags: Mapping[str, bool] = field(default_factory=dict)
    is_grouped: bool = False
    # Launches of the forward by `written_out.forward`'s key.
    plans: "Cache[Any]" = field(default_factory=Cache)

    @cached_property
    def kinds(self) -> dict[str, str]:
        """`ROWS`, `COLUMNS` or `FACTORS` of each tensor."""
        shapes = {(2, 3): ROWS, (3,): COLUMNS, (2,): FACTORS}
        return {
            buffer.name: shapes[buffer.shape]
            for spec in (self.forward, self.backward)
            for buffer in self._buffers(spec)
        }

    @cached_property
    def variants(self) -> dict[str, tuple[str, str]]:
        """By the name of a spec its variants without and with what the first flag leaves out."""
        return {
            spec.name: (self._variant(spec, False), self._variant(spec, True)) for spec in (self.forward, self.backward)
        }

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The forward's inputs."""
        return self._names(self.forward, INPUT, WEIGHT)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The forward's outputs, those that a call returns first."""
        return self._names(self.forward, OUTPUT)

    @cached_property
    def results(self) -> int:
        """Number of outputs that a call returns."""
        return sum(self.kinds[name] == ROWS for name in self.outputs)

    @cached_property
    def incoming(self) -> tuple[str, ...]:
        """The gradients that the backward reads."""
        return tuple(f"d{name}" for name in self.outputs[: self.results])

    @cached_property
    def saved(self) -> tuple[str, ...]:
        """The other tensors that the backward reads, inputs before outputs."""
        return tuple(name for name in self._names(self.backward, INPUT, WEIGHT) if name not in self.incoming)

    @cached_property
    def saved_inputs(self) -> tuple[str, ...]:
        """The saved tensors without factors, which come last."""
        return tuple(name for name in self.saved if self.kinds[name] != FACTORS)

    @cached_property
    def gradients(self) -> tuple[str, ...]:
        """The gradients that the backward writes."""
        return self._names(self.backward, OUTPUT)

    @cached_property
    def gradient_of(self) -> tuple[int, ...]:
        """For each input the index of its gradient."""
        return tuple(self.gradients.index(self.shared.get(name, f"d{name}")) for name in self.inputs)

    def needed(self, needs: Sequence[bool]) -> tuple[bool, bool]:
        """Whether a gradient (..., hidden) is needed, and one (hidden,), given whether each input needs its own."""
        kinds = {self.kinds[name] for name, need in zip(self.inputs, needs, strict=False) if need}
        return ROWS in kinds, COLUMNS in kinds

    def like_of(self, name: str) -> str:
        """The tensor that has the shape and dtype of an output or gradient (..., hidden)."""
        if name in self.outputs:
            return self.like.get(name, self.inputs[0])
        return self.like.get(name, name[1:] if name[1:] in self.saved else self.incoming[0])

    def of_kind(self, names: Sequence[str], kind: str) -> tuple[str, ...]:
        """The names of tensors of one kind."""
        return tuple(name for name in names if self.kinds[name] == kind)

    @cached_property
    def dtypes(self) -> dict[torch.dtype, str]:
        """The dtypes of rows that the kernels take, with their names."""
        return {getattr(torch, name): name for name in self.forward.dtypes}

    @property
    def kernels_take(self) -> str:
        """Text on the inputs that the kernels take, for errors."""
        dtypes = ", ".join(self.forward.dtypes)
        return f"kernels for {dtypes} on a GPU, rows of 1 to {self.forward.max_hidden} elements"

    def _names(self, spec: OperatorSpec, *roles: str) -> tuple[str, ...]:
        return tuple(buffer.name for buffer in self._buffers(spec) if buffer.role in roles)

    def _buffers(self, spec: OperatorSpec) -> tuple[Buffer, ...]:
        """Tensors of rows of 3 elements, of which there are 2."""
        return spec.buffers(spec.problem(2, 3, spec.dtypes[0], self.variants[spec.name][True]))

    def _variant(self, spec: OperatorSpec, is_whole: bool) -> str:
        first, *others = (flag.name for flag in spec.flags)
        return spec.variant(**{first: is_whole}, **{name: self.flags.get(name, True) for name in others})
