"""Launches of clusters that loop over rows: the chunks of a row, and that each of them compiles."""

import pytest

from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import compiled_within

TARGET = TARGETS["sm_90"]


def looped(name, variant, schedule, warps, hidden, dtype="bfloat16"):
    """A problem of many rows, and the launch of it with a fixed grid of clusters; None where that is illegal."""
    problem = Problem.of(name, 4096, hidden, dtype, variant)
    config = RMSNormConfig(schedule, 1, warps, 2, 1, "dependent")
    return problem, operator(name).launch_of(config, problem, TARGET)


@pytest.mark.parametrize("schedule", ["cluster_2", "cluster_4"])
@pytest.mark.parametrize("warps", [1, 2, 4, 8, 16, 32])
def test_a_row_has_at_most_four_chunks_in_a_loop(schedule, warps):
    for hidden in range(8, 65536, 488):
        _, launch = looped("rms_norm_backward", "", schedule, warps, hidden)
        if launch:
            assert launch.looped and launch.chunks <= 4
            assert launch.parts * launch.chunks * launch.block_col >= hidden


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rms_norm_backward", "fused_add_rms_norm_backward"])
def test_all_numbers_of_chunks_compile(name):
    pairs = [
        looped(name, variant, "cluster_2", 8, hidden)
        for variant in ("", "rounded_product")
        for hidden in (8192, 12288, 16384, 20464, 28656, 28672, 32768)
    ]
    assert {launch.chunks for _, launch in pairs} == {1, 2, 3, 4}
    compiled_within("sm_90", pairs)
