"""The layout that a launch says its row has is the one that the compiler chooses for sm_90."""

import random

import pytest

from normtune.kernels.operator import operator
from normtune.tests.kernels.row_layouts import TARGET, row_sums

NAMES = (
    *("rms_norm_forward", "rms_norm_backward", "fused_add_rms_norm_forward", "fused_add_rms_norm_backward"),
    *("rms_norm_gated_forward", "rms_norm_gated_backward"),
)
# Every alignment, powers of two, rows that fill no tile, and chunks with a rest.
SIZES = (1, 250, 1000, 1001, 4096, 20001)
# Launches of a size and dtype that are compiled, each in a tenth of a second.
MOST = 2


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("hidden", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_rows_lie_as_launches_say(name, hidden, dtype, request):
    spec = operator(name)
    launches = {}
    for rows in (1, 4096):
        problem = spec.problem(rows, hidden, dtype)
        for config in spec.space("default", problem, TARGET):
            launch = spec.launch_of(config, problem, TARGET)
            if launch:
                launches.setdefault(launch.binary, (config, launch, problem))
    several = list(launches.values())
    random.Random(request.node.name).shuffle(several)
    for config, launch, problem in several[:MOST]:
        assert {*row_sums(spec, launch, problem)} == {launch.row_layout}, config
        # Of rows in chunks a float32 weight may be the widest access, and is for all launches alike.
        vector, *others = launch.row_layout
        most = max(4, launch.alignment) if launch.chunks else vector
        assert {*row_sums(spec, launch, problem, ("weight",))} == {(min(vector, most), *others)}, config


def test_of_rows_that_another_dtype_is_stored_beside_no_layout_is_claimed():
    spec = operator("rms_norm_quantize_fp8_static")
    problem = spec.problem(64, 4096, "bfloat16")
    launches = [spec.launch_of(config, problem, TARGET) for config in spec.space("full", problem, TARGET)]
    assert {launch.row_layout for launch in launches if launch} == {None}
