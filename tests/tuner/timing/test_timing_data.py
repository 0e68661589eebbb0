"""References on the data of the timing, where every input is normal, also one that a forward would never give."""

import pytest
import torch

from normtune.kernels.operator import operators
from normtune.tuner.timing.arena import Arena

OPERATORS = operators()


@pytest.mark.parametrize("name", OPERATORS)
def test_tolerances_are_no_less_than_zero(name):
    spec = OPERATORS[name]
    arena = Arena(torch.device("cpu"), 0)
    for variant in spec.variants:
        problem = spec.problem(40, 96, "bfloat16", variant)
        (tensors,) = arena.slices(spec.buffers(problem), 1)
        expected = spec.references().reference(problem, tensors, **spec.scalars)
        assert expected
        for value, tolerance in expected.values():
            assert (tolerance >= 0).all() and value.isfinite().all()
