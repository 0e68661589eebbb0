"""Inputs and exact outputs of an operator in the short form.

In: a problem, a generator, tensors. Out: tensors by name, and for each output its exact value with the error that it
may have. Needs torch.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from normtune.kernels.problem import IN_OUT, INPUT, OUTPUT, WEIGHT, Problem
from normtune.kernels.rounding import Expected, unit_in_last_place
from normtune.kernels.spec_faults import ReturnedError

if TYPE_CHECKING:
    from normtune.kernels.short_form.decorator import _Short

# What float32 arithmetic may be off by, besides the last rounding: of the largest value of a row.
_SUMS = 2.0**-16


class ShortReference:
    """As a reference module: `inputs` and `reference`."""

    def __init__(self, spec: "_Short") -> None:
        self._spec = spec

    def inputs(
        self, problem: Problem, generator: torch.Generator, device: torch.device, hostile: bool
    ) -> dict[str, Tensor]:
        """Fresh tensors that are read: normal values; if hostile also rows of zeros, small, large, outliers."""
        if self._spec.make_inputs is not None:
            return dict(self._spec.make_inputs(problem, generator, device))
        inputs = {}
        for buffer in self._spec.buffers(problem):
            if buffer.role not in (INPUT, WEIGHT, IN_OUT):
                continue
            values = torch.randn(buffer.shape, generator=generator, device=device, dtype=torch.float32)
            if hostile and len(buffer.shape) == 2:
                values[1::5] = 0.0
                values[2::5] *= 1e-3
                values[3::5] *= 30.0
                values[4::5, buffer.shape[1] // 3] = 100.0
            inputs[buffer.name] = values.to(getattr(torch, buffer.dtype))
        return inputs

    def reference(self, problem: Problem, tensors: Mapping[str, Tensor], **scalars: float) -> dict[str, Expected]:
        """What each output should be, from the rounded inputs.

        Raises:
            ReturnedError: the operator's reference returns another number of outputs than was declared.
        """
        buffers = self._spec.buffers(problem)
        inputs = {one.name: tensors[one.name].double() for one in buffers if one.role in (INPUT, WEIGHT, IN_OUT)}
        returned = self._spec.exact(**inputs, **scalars)
        values = returned if isinstance(returned, tuple) and not isinstance(returned, Expected) else (returned,)
        outputs = [one for one in buffers if one.role in (OUTPUT, IN_OUT)]
        if len(values) != len(outputs):
            raise ReturnedError(f"returns {len(values)} outputs: expected {', '.join(one.name for one in outputs)}")
        expected = {}
        for buffer, value in zip(outputs, values, strict=True):
            if not isinstance(value, Expected):
                largest = value.abs().amax(dim=-1, keepdim=True)
                bound = unit_in_last_place(value, getattr(torch, buffer.dtype)) + _SUMS * largest
                value = Expected(value.double(), bound.expand_as(value).contiguous())
            expected[buffer.name] = value
        return expected
