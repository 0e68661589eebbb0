"""Inputs and exact outputs of a decorated operator.

In: a problem, a generator, tensors. Out: tensors by name, and for each output its exact value with the allowed error.
Needs torch.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from normtune.kernels.custom_op.declaration import READ, Declaration
from normtune.kernels.problem import IN_OUT, OUTPUT, Buffer, Problem
from normtune.kernels.rounding import Expected, unit_in_last_place
from normtune.kernels.spec_faults import ReturnedError

# The allowed error of float32 arithmetic besides the last rounding, relative to the largest value of a row.
_SUMS = 2.0**-16
# The largest error, in units in the last place, that `advice` explains with several roundings: units of the value, or
# of the row's largest value where terms cancel.
_ROUNDINGS = 8


class DecoratedReference:
    """`inputs` and `reference`, as in a reference module."""

    def __init__(self, declared: Declaration) -> None:
        self._declared = declared

    def inputs(
        self, problem: Problem, generator: torch.Generator, device: torch.device, hostile: bool
    ) -> dict[str, Tensor]:
        """New tensors that are read: normal values; if hostile also rows of zeros, small and large values, outliers."""
        if self._declared.inputs is not None:
            return dict(self._declared.inputs(problem, generator, device))
        inputs = {}
        for buffer in self._declared.tensors(problem):
            if buffer.role not in READ:
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
        """The exact value of each output, from the rounded inputs; integers are passed unchanged.

        Raises:
            ReturnedError: the operator's reference returns another number of outputs than declared.
        """
        expected = {}
        for buffer, value in self.returned(problem, tensors, **scalars):
            if not isinstance(value, Expected):
                units = self._declared.tolerance.get(buffer.name, 1.0)
                value = _expected(value, getattr(torch, buffer.dtype), units)
            expected[buffer.name] = value
        return expected

    def returned(
        self, problem: Problem, tensors: Mapping[str, Tensor], **scalars: float
    ) -> list[tuple[Buffer, Expected | Tensor]]:
        """The outputs with the values that the operator's reference function returns; errors as `reference`."""
        buffers = self._declared.tensors(problem)
        inputs = {one.name: tensors[one.name] for one in buffers if one.role in READ}
        arguments = {name: one.double() if one.is_floating_point() else one for name, one in inputs.items()}
        extra = {"problem": problem, "dtype": getattr(torch, problem.dtype)}
        arguments |= {name: extra[name] for name in self._declared.reference_wants}
        returned = self._declared.reference(**arguments, **scalars)
        values = returned if isinstance(returned, tuple) and not isinstance(returned, Expected) else (returned,)
        outputs = [one for one in buffers if one.role in (OUTPUT, IN_OUT)]
        if len(values) != len(outputs):
            raise ReturnedError(f"returns {len(values)} outputs: expected {', '.join(one.name for one in outputs)}")
        for buffer, value in zip(outputs, values, strict=True):
            if not isinstance(value, Expected | Tensor):
                raise ReturnedError(f"returns {type(value).__name__} for {buffer.name}: expected a tensor")
        return list(zip(outputs, values, strict=True))

    def advice(self, name: str, output: Tensor, exact: Tensor) -> str:
        """A suggestion for the declaration of an output whose error is larger than allowed."""
        if not output.is_floating_point():
            wrong = int((output != exact).sum())
            return f"{wrong} of {exact.numel()} integers differ: a reference rounds and breaks ties as the kernel does"
        error = (output.double() - exact).abs_()
        unit = unit_in_last_place(exact, output.dtype)
        units = (error / unit).max().item()
        row = unit_in_last_place(exact.abs().amax(dim=-1, keepdim=True), output.dtype)
        difference = f"{units:.3g} units in the last place"
        if units <= _ROUNDINGS:
            needed = math.ceil(2 * units) / 2
            return f"{difference}, tolerance={{{name!r}: {needed:g}}} allows it if the kernel rounds on the way"
        if (error / row).max().item() <= _ROUNDINGS:
            return f"{difference}, a reference may take `dtype` and round to it where the kernel does"
        return "more than roundings explain"


def _expected(value: Tensor, dtype: torch.dtype, units: float) -> Expected:
    exact = value.double()
    if not dtype.is_floating_point:
        return Expected(exact, torch.zeros_like(exact))
    largest = value.abs().amax(dim=-1, keepdim=True)
    bound = units * unit_in_last_place(exact, dtype) + _SUMS * largest
    return Expected(exact, bound.expand_as(value).contiguous())
