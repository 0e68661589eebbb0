"""The declaration of a function of rows, from which this room makes its calls on a user's tensors.

In: the specs of its forward and its backward, if it has one, and its formula in torch's operations. Out: `Operation`.
By the names of the specs' buffers, `dy` is the gradient of the forward's output `y` and `dx` that of its input `x`; all
other inputs of the backward are inputs or outputs of the forward, and autograd saves them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor

from normtune.kernels.calling.dispatch import Cache, Tableless
from normtune.kernels.mode import Dweight, Mode, Rstd
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import (
    HIDDEN,
    IN_OUT,
    INPUT,
    OUTPUT,
    ROWS,
    ROWS_HIDDEN,
    WEIGHT,
    Buffer,
    Problem,
)
from normtune.kernels.target import Target


class Decomposition(Protocol):
    """An operation in torch's operations, differentiable, for any device and number of rows.

    All arithmetic is in `wide.wide_dtype` of the first tensor.
    """

    def forward(self, *arguments: Any) -> Sequence[Tensor]:
        """Outputs, of inputs and scalars; factors in the wide dtype. Without a backward, of all rows."""
        ...

    def factors(self, *arguments: Any) -> Sequence[Tensor]:
        """The outputs that are factors again, of the saved inputs and scalars."""
        ...

    def backward(self, *arguments: Any) -> Sequence[Tensor | None]:
        """Gradients, of the gradients of outputs, the saved tensors and scalars; None for that of a missing input."""
        ...


@dataclass(frozen=True, eq=False)
class Operation:
    """A function of rows.

    Attributes:
        name: of the public function.
        forward, backward: the specs of its operators. With a backward the forward has the mode `Rstd`, of the outputs
            that only the backward reads, and the backward the mode `Dweight`, of the gradients of inputs (hidden,).
            Without one a call returns a tuple of all outputs, of any shape and dtype, and nothing has a gradient.
        formula: a module or object; see `Decomposition`.
        optional: inputs (hidden,) that a call may leave out; with a backward they come last.
        defaults: of the scalars, in the order of the kernels; None for one that `derived` has.
        derived: functions of the first input that give a scalar for None.
        like: for an output or gradient (..., hidden) the input, or the saved tensor, that has its dtype, unless that is
            the first input, or the tensor that the gradient is of.
        in_place: for outputs, the inputs whose memory they may take; empty for an operation that cannot work in place.
        shared: for an input whose gradient is that of another one, the name of this gradient.
        scalars_of: scalars for the kernels, given (inputs, scalars): ones stand in for missing inputs.
        compiler_options: options of the forward's binaries, given the scalars.
        columns_alone: the launch of the gradients (hidden,) without those of rows, of the backward's tensors; None for
            a backward that is launched whole.
        modes: those that this function has fixed, of either spec.
        x_dtypes: dtypes of the first input, with the problem's dtype for each; none for those of the specs.
        checks: of the inputs, of which the first is a tensor: raises TypeError or ValueError for what this operation
            alone refuses.
        is_for_target: whether the kernels run on a target; elsewhere the formula serves.
        marked: outputs (rows,) of an operation without a backward that the backward of another one reads: in the
            batch-invariant mode they have the mark by which that recognises them.
        is_grouped: the kernels take rows as (outer, inner, groups, hidden) with any strides but the last, and columns
            of their own for each group.
    """

    name: str
    forward: OperatorSpec
    formula: Any
    defaults: Mapping[str, float | None]
    backward: OperatorSpec | None = None
    optional: tuple[str, ...] = ()
    derived: Mapping[str, Callable[[Tensor], float]] = field(default_factory=dict)
    like: Mapping[str, str] = field(default_factory=dict)
    in_place: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    scalars_of: Callable[[Sequence[Tensor | None], tuple[float, ...]], tuple[float, ...]] = lambda _, scalars: scalars
    compiler_options: Callable[[Mapping[str, float]], Mapping[str, Any] | None] = lambda _: None
    columns_alone: Tableless | None = None
    modes: tuple[Mode, ...] = ()
    x_dtypes: Mapping[torch.dtype, str] = field(default_factory=dict)
    checks: Callable[[Sequence[Any]], None] = lambda _: None
    is_for_target: Callable[[Target], bool] = lambda _: True
    marked: tuple[str, ...] = ()
    is_grouped: bool = False
    # Launches of the forward by `written_out.forward`'s key.
    plans: "Cache[Any]" = field(default_factory=Cache)

    @cached_property
    def axes(self) -> dict[str, str]:
        """The axes of each tensor: `ROWS_HIDDEN` for (..., hidden), `HIDDEN`, or `ROWS` for (...,).

        Columns, `HIDDEN`, of an operation on groups may also be (groups, hidden), of a first input (..., groups,
        hidden). An operation without a backward may have others, of the shape that the spec's buffers give them.
        """
        return {buffer.name: buffer.axes for spec in self._specs for buffer in self._buffers(spec)}

    @cached_property
    def variants(self) -> dict[str, tuple[str, str]]:
        """For each spec, by name, its variants with and without the output that `Rstd` or `Dweight` switches."""
        return {spec.name: (self._variant(spec, False), self._variant(spec, True)) for spec in self._specs}

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The forward's inputs."""
        return self._names(self.forward, INPUT, WEIGHT, IN_OUT)

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The inputs that the forward writes, too."""
        return self._names(self.forward, IN_OUT)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The forward's outputs, those that a call returns first."""
        return self._names(self.forward, OUTPUT)

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """The forward's outputs (rows,) that a backward reads."""
        return self.with_axes(self.outputs, ROWS) if self.backward else self.marked

    @cached_property
    def results(self) -> int:
        """Number of outputs that a call returns."""
        return sum(self.axes[name] == ROWS_HIDDEN or not self.backward for name in self.outputs)

    @cached_property
    def incoming(self) -> tuple[str, ...]:
        """The gradients that the backward reads."""
        return tuple(f"d{name}" for name in self.outputs[: self.results])

    @cached_property
    def saved(self) -> tuple[str, ...]:
        """The other tensors that the backward reads, inputs before outputs."""
        assert self.backward is not None
        return tuple(name for name in self._names(self.backward, INPUT, WEIGHT) if name not in self.incoming)

    @cached_property
    def saved_inputs(self) -> tuple[str, ...]:
        """The saved tensors without factors, which come last."""
        return tuple(name for name in self.saved if self.axes[name] != ROWS)

    @cached_property
    def gradients(self) -> tuple[str, ...]:
        """The gradients that the backward writes."""
        assert self.backward is not None
        return self._names(self.backward, OUTPUT)

    @cached_property
    def gradient_of(self) -> tuple[int, ...]:
        """For each input the index of its gradient."""
        return tuple(self.gradients.index(self.shared.get(name, f"d{name}")) for name in self.inputs)

    def needed(self, needs: Sequence[bool]) -> tuple[bool, bool]:
        """Whether a gradient (..., hidden) is needed, and one (hidden,), given whether each input needs its own."""
        axes = {self.axes[name] for name, need in zip(self.inputs, needs, strict=False) if need}
        return ROWS_HIDDEN in axes, HIDDEN in axes

    def divided(self, given: Mapping[str, Tensor | None]) -> tuple[dict[str, Any], dict[str, Tensor | None]]:
        """The inputs that a call writes (in place or not), and those that it only reads."""
        written = {name: given[name] for name in (*self.written, *self.in_place.values())}
        return written, {name: tensor for name, tensor in given.items() if name not in written}

    def like_of(self, name: str) -> str:
        """The tensor that has the shape and dtype of an output or gradient (..., hidden)."""
        if name in self.outputs:
            return self.like.get(name, self.inputs[0])
        return self.like.get(name, name[1:] if name[1:] in self.saved else self.incoming[0])

    def with_axes(self, names: Sequence[str], axes: str) -> tuple[str, ...]:
        """The names of tensors with these axes."""
        return tuple(name for name in names if self.axes[name] == axes)

    @cached_property
    def dtypes(self) -> dict[torch.dtype, str]:
        """The dtypes of rows that the kernels take, with their names."""
        return dict(self.x_dtypes) or {getattr(torch, name): name for name in self.forward.dtypes}

    @property
    def kernels_take(self) -> str:
        """Text on the inputs that the kernels take, for errors."""
        dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
        return f"kernels for {dtypes} on a GPU, rows of 1 to {self.forward.max_hidden} elements"

    def outputs_at(self, x: Tensor) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each output, of a first input (..., hidden), for an operation without a backward."""
        *leading, hidden = x.shape
        dtype = self.dtypes.get(x.dtype, str(x.dtype).removeprefix("torch."))
        # torch.Size.numel would fix a symbolic number of rows to that of the example.
        key = self.forward.key(dtype, self.variants[self.forward.name][True])
        problem = Problem(key, prod(leading), hidden)
        return {
            buffer.name: (x.shape if buffer.axes == ROWS_HIDDEN else buffer.shape, getattr(torch, buffer.dtype))
            for buffer in self.forward.buffers(problem)
            if buffer.role == OUTPUT
        }

    @property
    def _specs(self) -> tuple[OperatorSpec, ...]:
        return (self.forward,) if self.backward is None else (self.forward, self.backward)

    def _names(self, spec: OperatorSpec, *roles: str) -> tuple[str, ...]:
        return tuple(buffer.name for buffer in self._buffers(spec) if buffer.role in roles)

    def _buffers(self, spec: OperatorSpec) -> tuple[Buffer, ...]:
        return spec.buffers(spec.problem(1, 1, spec.dtypes[0], self.variants[spec.name][True]))

    def _variant(self, spec: OperatorSpec, is_whole: bool) -> str:
        fixed = (mode for mode in self.modes if type(mode) in spec.modes)
        if is_whole or self.backward is None:
            return spec.variant(*fixed)
        return spec.variant(Rstd.NONE if spec is self.forward else Dweight.NONE, *fixed)
