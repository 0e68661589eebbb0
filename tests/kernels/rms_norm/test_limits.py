"""No legal launch overflows a counter, at any number of rows and any hidden size."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from normtune.kernels.operator import operators
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.rms_norm.launch import MAX_COLUMNS_ROWS
from normtune.kernels.rms_norm.operator import FINISHES, MAX_HIDDEN, SCHEDULES, RMSNormConfig
from normtune.kernels.target import TARGETS

INT32 = 2**31 - 1
# What CUDA's driver and HIP's take as the first extent of a grid.
MAX_GRID = 2**31 - 1
# Of operators on rows that run on every target: FP8 needs sm_89.
SPECS = tuple(spec for spec in operators().values() if spec.config is RMSNormConfig)
rows_counts = st.integers(1, MAX_ROWS) | st.sampled_from([1, 2, 4096, 4097, 2**24, MAX_ROWS - 1, MAX_ROWS])
ENDS = [1, 2, 64, 4096, MAX_HIDDEN - 1, MAX_HIDDEN]
hidden_sizes = st.integers(1, MAX_HIDDEN) | st.sampled_from(ENDS)
powers = st.integers(0, 7).map(lambda power: 1 << power)
configs = st.builds(
    RMSNormConfig,
    st.sampled_from(SCHEDULES),
    powers,
    powers.filter(lambda warps: warps <= 32),
    st.integers(1, 5),
    st.integers(0, 64),
    st.sampled_from(FINISHES),
    st.sampled_from([0, 16, 32, 64, 512, 1024, 4096, 8192]),
)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(
    spec=st.sampled_from(SPECS),
    config=configs,
    rows=rows_counts,
    hidden=hidden_sizes,
    target=st.sampled_from(list(TARGETS.values())),
    data=st.data(),
)
def test_every_legal_launch_counts_in_int32(spec, config, rows, hidden, target, data):
    hidden = min(hidden, spec.max_hidden)
    problem = Problem.of(
        spec.name, rows, hidden, data.draw(st.sampled_from(spec.dtypes)), data.draw(st.sampled_from(spec.variants))
    )
    if launch := spec.launch_of(config, problem, target):
        check(launch, rows, hidden)


@example(rows=MAX_ROWS, hidden=1)
@given(rows=rows_counts, hidden=hidden_sizes)
def test_the_default_configs_are_legal_and_count_in_int32_everywhere(rows, hidden):
    for spec in SPECS:
        length = min(hidden, spec.max_hidden)
        for target in TARGETS.values():
            for dtype in spec.dtypes:
                problem = Problem.of(spec.name, rows, length, dtype)
                check(spec.resolve(spec.default_config(problem, target), problem, target, None), rows, length)


def check(launch, rows, hidden):
    assert 1 <= launch.grid <= MAX_GRID
    assert launch.workspace * 4 <= 64 << 20
    # tl.cdiv(rows, BLOCK_ROW), as the loops over blocks and the reduction of partial sums have it.
    assert rows + launch.block_row - 1 <= INT32
    width = launch.slice_col * launch.parts  # of a cluster, a slice for each of its blocks
    covered = launch.grid - (-(-hidden // width) if launch.slice_row else 0)
    if launch.looped:
        # The pipeline asks for blocks up to its depth ahead of the last one, a grid apart.
        blocks = -(-rows // launch.block_row)
        assert blocks - 1 + launch.num_stages * launch.grid <= INT32
    else:
        assert covered * launch.block_row >= rows
    if launch.slice_row:
        assert rows <= MAX_COLUMNS_ROWS and rows + launch.num_stages * launch.slice_row <= INT32
