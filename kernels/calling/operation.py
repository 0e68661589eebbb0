"""The declaration of a function of rows, from which this room makes its calls.

In: the specs of the forward and, if there is one, of the backward; the formula in torch's operations. Out: an
`Operation`. Names of buffers have a meaning: `dy` is the gradient of the forward's output `y`, `dx` that of its input
`x`. All other inputs of a backward are inputs or outputs of the forward, which autograd saves.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from operator import itemgetter
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from normtune.kernels.calling.dispatch import Cache
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

# What a compiler sees of a call: the formula, the formula with the kernels of its backward, or the operators.
Way = Literal["formula", "backward", "kernel"]


def picking(indices: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """A function that picks the elements with these indices, one or more."""
    first, *others = indices
    return itemgetter(first, *others) if others else itemgetter(slice(first, first + 1))


class Decomposition(Protocol):
    """The formula of an operation in torch's operations: differentiable, for any device and number of rows.

    All arithmetic is in `fallback.compute_dtype` of the first tensor.
    """

    def forward(self, *arguments: Any) -> Sequence[Tensor]:
        """Takes inputs and scalars; returns outputs, of which factors are in the compute dtype."""
        ...

    def factors(self, *arguments: Any) -> Sequence[Tensor]:
        """Takes saved inputs and scalars; returns those outputs of `forward` that are factors of rows."""
        ...

    def backward(self, *arguments: Any) -> Sequence[Tensor | None]:
        """Takes gradients of outputs, saved tensors and scalars; returns gradients, None for missing inputs."""
        ...


@dataclass(frozen=True, eq=False)
class Operation:
    """A function of rows.

    Attributes:
        name: of the public function.
        forward, backward: the specs of the operators. If there is a backward, the forward has the mode `Rstd`, which
            leaves out the outputs that only a backward reads, and the backward the mode `Dweight`, which leaves out the
            gradients (hidden,). If not, a call returns a tuple of all outputs, of any shape and dtype.
        formula: a module or object; see `Decomposition`.
        optional: inputs (hidden,) that a call may leave out; with a backward they come last.
        defaults: of the scalars, in the order of the kernels; None for one that is in `derived`.
        derived: by the name of a scalar, a function of the first input that computes it where it is None.
        like: by the name of an output or gradient (..., hidden), the tensor that has its dtype, where that is neither
            the first input nor the tensor that the gradient belongs to.
        in_place: by the name of an output, the input whose memory it may take; empty if nothing works in place.
        shared: by the name of an input, the gradient that it shares with another input.
        scalars_of: (inputs, scalars) to the scalars of the kernels, which read ones where an input is missing.
        compiler_options: scalars to compiler options of the forward.
        modes: fixed modes, of either spec.
        x_dtypes: dtypes of the first input, and the problem's dtype for each; empty for the dtypes of the specs.
        checks: takes the inputs, the first of which is a tensor; raises TypeError or ValueError for those that this
            operation refuses.
        is_for_target: whether the kernels run on a target; on others the formula is used.
        marked: outputs (rows,) of an operation without a backward which the backward of another operation reads: in the
            batch-invariant mode they get the mark that `eager.is_marked` recognises.
        compiled: what is fastest in a compiled function, given hidden and whether gradients are wanted.
        is_grouped: whether the kernels read rows as (outer, inner, groups, hidden), with any strides but the last, and
            weights (groups, hidden).
        heads: of hidden elements each, in a row of the first input and of the tensors of its shape.
        written_heads: how many of them a call in place writes, the first ones.
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
    modes: tuple[Mode, ...] = ()
    x_dtypes: Mapping[torch.dtype, str] = field(default_factory=dict)
    checks: Callable[[Sequence[Any]], None] = lambda _: None
    is_for_target: Callable[[Target], bool] = lambda _: True
    marked: tuple[str, ...] = ()
    compiled: Callable[[int, bool], Way] = lambda hidden, needs_gradients: "kernel" if needs_gradients else "formula"
    is_grouped: bool = False
    heads: int = 1
    written_heads: int = 1
    # Plans of the forward, by the key of a call.
    plans: "Cache[Any]" = field(default_factory=Cache)

    @cached_property
    def axes(self) -> dict[str, str]:
        """The axes of each tensor: `ROWS_HIDDEN` for (..., hidden), `HIDDEN` for (hidden,), `ROWS` for (...,).

        With heads, `ROWS_HIDDEN` is (..., heads * hidden). With groups, the first input may be (..., groups, hidden),
        and tensors with `HIDDEN` (groups, hidden). Without a backward, tensors may have other axes, with the shapes of
        the spec's buffers.
        """
        return {buffer.name: buffer.axes for spec in self._specs for buffer in self._buffers(spec)}

    @cached_property
    def variants(self) -> dict[str, tuple[str, str]]:
        """By the name of each spec, its variant without and with the outputs that `Rstd` or `Dweight` leaves out."""
        return {spec.name: (self._variant(spec, False), self._variant(spec, True)) for spec in self._specs}

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The forward's inputs."""
        return self._names(self.forward, INPUT, WEIGHT, IN_OUT)

    @cached_property
    def written(self) -> tuple[str, ...]:
        """The inputs that the forward also writes."""
        return self._names(self.forward, IN_OUT)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The forward's outputs; those that a call returns come first."""
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
        """The saved tensors but the factors, which come last."""
        return tuple(name for name in self.saved if self.axes[name] != ROWS)

    @cached_property
    def gradients(self) -> tuple[str, ...]:
        """The gradients that the backward writes."""
        assert self.backward is not None
        return self._names(self.backward, OUTPUT)

    @cached_property
    def gradient_of(self) -> tuple[int, ...]:
        """For each input, the index of its gradient."""
        return tuple(self.gradients.index(self.shared.get(name, f"d{name}")) for name in self.inputs)

    @cached_property
    def first_factor(self) -> int:
        """The index of the first factor among the tensors that the backward reads, where factors come last."""
        return len(self.incoming) + len(self.saved_inputs)

    @cached_property
    def gradient_likes(self) -> tuple[tuple[int, bool], ...]:
        """For each gradient, which tensor that the backward reads it is like, and whether it is (hidden,)."""
        read = (*self.incoming, *self.saved)
        are_columns = [self.axes[name] == HIDDEN for name in self.gradients]
        return tuple(
            (read.index(name[1:] if is_column else self.like_of(name)), is_column)
            for name, is_column in zip(self.gradients, are_columns, strict=True)
        )

    @cached_property
    def written_of(self) -> Callable[[Sequence[Any]], Sequence[Tensor]]:
        """Picks from the inputs those that a call writes."""
        return picking(tuple(map(self.inputs.index, (*self.written, *self.in_place.values()))))

    @cached_property
    def _row_inputs(self) -> int:
        """Number of inputs (..., hidden), which come before those (hidden,)."""
        return len(self.with_axes(self.inputs, ROWS_HIDDEN))

    def needed(self, needs: Sequence[bool]) -> tuple[bool, bool]:
        """Whether gradients (..., hidden) and gradients (hidden,) are needed, given `needs_input_grad`."""
        return True in needs[: self._row_inputs], True in needs[self._row_inputs :]

    def are_needed(self, needs_rows: bool, needs_columns: bool) -> dict[str, bool]:
        """For each gradient, whether it is needed, given whether those (..., hidden) and those (hidden,) are."""
        return {name: needs_columns if self.axes[name] == HIDDEN else needs_rows for name in self.gradients}

    def divided(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The inputs that a call in place writes, and those that it only reads."""
        read = dict(inputs)
        written = {name: read.pop(name) for name in (*self.written, *self.in_place.values())}
        if self.written_heads == self.heads:
            return written, read
        columns = {name: row.shape[-1] // self.heads * self.written_heads for name, row in written.items()}
        return {f"{name}[..., :{end}]": written[name][..., :end] for name, end in columns.items()}, read

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
        """The dtypes of rows that the kernels take, and the problem's dtype for each."""
        return dict(self.x_dtypes) or {getattr(torch, name): name for name in self.forward.dtypes}

    @property
    def kernels_take(self) -> str:
        """What the kernels take, for errors."""
        dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
        rows = "rows" if self.heads == 1 else "heads"
        return f"kernels for {dtypes} on a GPU, {rows} of 1 to {self.forward.max_hidden} elements"

    def outputs_at(self, inputs: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each output, given the inputs by name; factors of a backward are (...,).

        Of float64 inputs, outputs in float32 are in float64.
        """
        x = inputs[self.inputs[0]]
        *leading, width = x.shape
        dtype = self.dtypes.get(x.dtype, str(x.dtype).removeprefix("torch."))
        # torch.Size.numel would specialise a symbolic number of rows.
        key = self.forward.key(dtype, self.variants[self.forward.name][True])
        problem = Problem(key, prod(leading), width // self.heads)
        return {
            buffer.name: (
                x.shape if self.axes[buffer.name] == ROWS_HIDDEN else x.shape[:-1] if self.backward else buffer.shape,
                inputs[self.like[buffer.name]].dtype
                if buffer.name in self.like
                else x.dtype
                if (x.dtype, buffer.dtype) == (torch.float64, "float32")
                else getattr(torch, buffer.dtype),
            )
            for buffer in self.forward.buffers(problem)
            if buffer.role == OUTPUT
        }

    @property
    def _specs(self) -> tuple[OperatorSpec, ...]:
        return (self.forward,) if self.backward is None else (self.forward, self.backward)

    def _names(self, spec: OperatorSpec, *roles: str) -> tuple[str, ...]:
        return tuple(buffer.name for buffer in self._buffers(spec) if buffer.role in roles)

    def _buffers(self, spec: OperatorSpec) -> tuple[Buffer, ...]:
        return spec.buffers(spec.problem(1, spec.max_hidden, spec.dtypes[0], self.variants[spec.name][True]))

    def _variant(self, spec: OperatorSpec, is_whole: bool) -> str:
        fixed = (mode for mode in self.modes if type(mode) in spec.modes)
        if is_whole or self.backward is None:
            return spec.variant(*fixed)
        return spec.variant(Rstd.NONE if spec is self.forward else Dweight.NONE, *fixed)
