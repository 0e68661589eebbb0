"""Rows in chunks of columns: what stays in registers, and which accesses have a mask."""

import re

import pytest

from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from tests.kernels.launching import compiled_within

H100 = TARGETS["sm_90"]


@pytest.mark.parametrize(
    ("hidden", "dtype", "variant", "held"),
    [
        (20480, "bfloat16", "", True),
        (22016, "bfloat16", "", False),
        (22016, "bfloat16", "no_dweight", True),
        (28672, "bfloat16", "no_dweight", True),
        (29568, "bfloat16", "no_dweight", False),
        (12288, "float32", "", True),
        (14336, "float32", "", False),
        (14336, "float32", "no_dweight", True),
        (16384, "float32", "no_dweight", False),
    ],
)
def test_longer_rows_stay_in_registers_where_there_are_no_sums(hidden, dtype, variant, held):
    spec = operator("rms_norm_backward")
    config = RMSNormConfig("split", 1, 16, 2, 1, "dependent", 2048)
    launch = spec.launch_of(config, Problem.of(spec.name, 4096, hidden, dtype, variant), H100)
    assert launch.held is held


@pytest.mark.slow
@pytest.mark.parametrize(
    "hidden", [5120, pytest.param(6144, marks=pytest.mark.slow), pytest.param(7168, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ["rms_norm_forward", pytest.param("rms_norm_gated_forward", marks=pytest.mark.slow)])
def test_only_loads_of_the_last_chunk_have_a_mask(name, hidden):
    spec, problem = operator(name), Problem.of(name, 4096, hidden, "bfloat16")
    pairs = [(config, spec.launch_of(config, problem, H100)) for config in spec.space("full", problem, H100)]
    of_chunks = [(config, launch) for config, launch in pairs if launch and config.schedule == "split"]
    launch = next(launch for config, launch in of_chunks if config.block_col == 2048)
    (compiled,) = compiled_within("sm_90", [(problem, launch)])
    loads = re.findall(r"(@%p\d+ )?ld\.global", compiled.binaries[0][1])
    assert len(loads) % launch.chunks == 0
    masked = sum(map(bool, loads))
    assert masked == (len(loads) // launch.chunks if hidden % 2048 else 0)
