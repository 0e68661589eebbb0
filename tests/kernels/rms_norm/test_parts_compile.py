"""The order in which the compiler sums a row for sm_90: the same in parts as in whole rows, or as in chunks."""

import pytest

from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.tests.kernels.row_layouts import TARGET, row_sums

NAMES = ("rms_norm_forward", "fused_add_rms_norm_forward", "rms_norm_gated_forward")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("hidden", "warps"), [(4096, 8), (4096, 32), (5001, 8), (12288, 16), (32768, 32)])
@pytest.mark.parametrize("name", NAMES)
def test_a_row_in_parts_is_summed_as_a_whole_one(name, hidden, warps, dtype):
    spec = operator(name)
    problem = spec.problem(1, hidden, dtype)
    launches = [spec.launch(RMSNormConfig(schedule, 1, warps, 1, 1), problem, TARGET) for schedule in ("row", "parts")]
    assert [bool(launch.slice_col) for launch in launches] == [False, True]
    for wide in ((), ("weight", "residual", "s")):
        whole, parts = (row_sums(spec, launch, problem, wide) for launch in launches)
        assert whole == parts and len(whole) == 1


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("hidden", "warps", "block_col"),
    [(4096, 8, 4096), (5001, 8, 2048), (5004, 8, 2048), (20480, 16, 4096), (32768, 32, 4096)],
)
@pytest.mark.parametrize("name", NAMES[:2])
def test_a_row_in_parts_is_summed_as_in_chunks(name, hidden, warps, block_col, dtype):
    spec = operator(name)
    for rows in (1, 40):  # parts of chunks, and of several
        problem = spec.problem(rows, hidden, dtype)
        configs = [RMSNormConfig(schedule, 1, warps, 1, 1, block_col=block_col) for schedule in ("split", "parts")]
        launches = [spec.launch(config, problem, TARGET) for config in configs]
        assert [bool(launch.slice_col) for launch in launches] == [False, True]
        assert launches[0].row_sum == launches[1].row_sum
        for wide in ((), ("weight", "residual", "s")):
            whole, parts = (row_sums(spec, launch, problem, wide) for launch in launches)
            assert whole == parts and len(whole) == 1
