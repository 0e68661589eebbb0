"""The configs that a sweep times at each of its shapes, whatever its search."""

import pytest

from normtune import load_table
from normtune.kernels.operator import operator
from normtune.kernels.target import target_for
from normtune.results.records import Device
from normtune.tuner.sweep.incumbents import always, always_on_any

PROBLEM = operator("rms_norm_backward").problem(1024, 2304, "bfloat16")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["NVIDIA H200", pytest.param("NVIDIA H100 80GB HBM3", marks=pytest.mark.slow)])
def test_binaries_for_an_architecture_are_those_of_the_tables_of_its_gpus(name: str) -> None:
    """Or a sweep that has the binaries would compile those of its own table where it runs."""
    target = target_for("sm_90", 132)
    absent = Device("no GPU here", target.name, target.sms, target.l2_bytes, 0, "absent", "none")
    here = always([PROBLEM], absent._replace(name=name), target)[PROBLEM]
    assert load_table(name.lower().replace(" ", "-")).lookup(PROBLEM.operator, PROBLEM.dtype, *PROBLEM.shape) in here
    assert {*here} <= {*always_on_any([PROBLEM], absent, target)[PROBLEM]}
