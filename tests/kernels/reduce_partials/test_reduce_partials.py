"""The operator at the door: problems, bytes, legality, spaces, and its kernel, which is that of RMSNorm's backward."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from normtune.errors import UsageError
from normtune.kernels.config import Config
from normtune.kernels.fake_tensor import FakeTensor
from normtune.kernels.operator import IllegalConfigError, operator, operators, read_config
from normtune.kernels.problem import MAX_ROWS
from normtune.kernels.reduce_partials.spec import ReduceConfig
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.spec_faults import faults
from normtune.kernels.target import TARGETS
from normtune.kernels.tiles.launch import reduce_tile
from normtune.tests.kernels.launching import compiled_within
from normtune.tuner.plan.plan import SPACES, plan, problems
from normtune.tuner.timing.gate import gate_launch

SPEC = operator("reduce_partials")
H200 = TARGETS["sm_90"]
INT32 = 2**31 - 1
row_counts = st.integers(1, MAX_ROWS)
hidden_sizes = st.integers(1, 65536) | st.integers(1, SPEC.max_hidden)
targets = st.sampled_from(list(TARGETS.values()))


def calls(problem, launch):
    tensors = {one.name: FakeTensor(one.dtype, one.shape) for one in SPEC.buffers(problem)}
    return SPEC.calls(launch, problem, tensors, FakeTensor("float32", (1,)), SPEC.scalars)


def test_commands_take_it_by_name_alone():
    assert "reduce_partials" in operators() and not list(faults(SPEC))
    assert all(problem.operator != "reduce_partials" for problem in problems([], ["float32"], [(8, 64)]))
    for space in SPACES:
        chosen = plan(problems(["reduce_partials"], ["bfloat16", "float32"], [(132, 4096), (1, 1)]), space, H200)
        assert len(chosen.tasks) == 4 and all(task.candidates for task in chosen.tasks)
    with pytest.raises(UsageError, match="unknown operator 'reduce_partial'"):
        operator("reduce_partial")


def test_bytes_are_those_of_float32_partial_sums_and_of_sums_in_the_dtype_of_the_problem():
    assert SPEC.bytes_moved(SPEC.problem(132, 300, "bfloat16")) == 132 * 300 * 4 + 300 * 2
    assert SPEC.bytes_moved(SPEC.problem(1, 300, "float32")) == 300 * 4 + 300 * 4


def test_a_config_is_stored_and_read_as_its_own():
    config = ReduceConfig(64, 32, 8)
    assert read_config("reduce_partials", config.to_json()) == config
    assert config.constant_name() == "BLOCK_ROW_64_BLOCK_COL_32_WARPS_8"
    assert SPEC.launch_of(RMSNormConfig("row"), SPEC.problem(8, 64, "float32"), H200) is None
    assert isinstance(read_config("reduce_partials", RMSNormConfig("row").to_json()), Config)


@example(rows=MAX_ROWS, hidden=1, target=H200)
@example(rows=1, hidden=SPEC.max_hidden, target=H200)
@given(rows=row_counts, hidden=hidden_sizes, target=targets)
def test_the_default_config_and_every_legal_one_cover_all_columns(rows, hidden, target):
    problem = SPEC.problem(rows, hidden, "bfloat16")
    default = SPEC.default_config(problem, target)
    assert default in SPEC.space("default", problem, target) and SPEC.is_legal(default, problem, target)
    for config in SPEC.space("full", problem, target):
        launch = SPEC.launch_of(config, problem, target)
        if launch is None:
            continue
        assert (launch.grid - 1) * launch.block_col < hidden <= launch.grid * launch.block_col
        assert launch.grid <= INT32 and rows + launch.block_row <= INT32
        assert launch.num_warps * target.warp_size <= target.max_threads
        assert launch.block_row * launch.block_col <= 64 * launch.num_warps * target.warp_size
        assert launch == SPEC.launch_of(config, problem._replace(rows=1), target)


powers = st.integers(0, 10).map(lambda power: 1 << power)


@given(
    config=st.builds(ReduceConfig, powers, powers, powers.filter(lambda warps: warps <= 32)),
    rows=row_counts,
    sizes=st.tuples(hidden_sizes, hidden_sizes).map(sorted),
    target=targets,
)
def test_legality_never_returns_as_shapes_grow(config, rows, sizes, target):
    few, many = (SPEC.problem(count, hidden, "float16") for count, hidden in zip((1, rows), sizes, strict=True))
    if SPEC.is_legal(config, many, target):
        assert SPEC.is_legal(config, few, target)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (ReduceConfig(512, 512, 4), "2048 elements a thread exceed 64"),
        (ReduceConfig(0, 16, 4), "a tile of 0 x 16 has no element"),
        (ReduceConfig(16, 16, 64), "2048 threads exceed 1024"),
    ],
)
def test_what_is_illegal_has_a_reason(config, reason):
    with pytest.raises(IllegalConfigError, match=reason):
        SPEC.launch(config, SPEC.problem(132, 64, "float32"), H200)


@pytest.mark.parametrize("partials", [1, 64, 132, 1000])
def test_its_kernel_is_the_one_that_ends_the_backward_of_rms_norm(partials):
    backward = operator("rms_norm_backward")
    problem = backward.problem(4096, 1024, "bfloat16")
    launch = backward.launch(RMSNormConfig("persistent", 1, 8, 1, 1, "reduce"), problem, H200)
    launch = launch._replace(grid=partials, workspace=partials * 1024)
    tensors = {one.name: FakeTensor(one.dtype, one.shape) for one in backward.buffers(problem)}
    *_, wanted = backward.calls(launch, problem, tensors, FakeTensor("float32", (launch.workspace,)), backward.scalars)
    own = SPEC.problem(partials, 1024, "bfloat16")
    (found,) = calls(own, SPEC.launch(ReduceConfig(*reduce_tile(partials, 1024)), own, H200))
    assert (found.kernel, found.grid, found.options) == (wanted.kernel, wanted.grid, wanted.options)


def test_the_gate_tries_the_binary_that_is_timed_with_many_rows():
    problem = SPEC.problem(3, 1000, "float32")
    config = SPEC.default_config(problem, H200)
    launch = SPEC.launch(config, problem, H200)
    tried, found = gate_launch(SPEC, problem, (config, launch), H200)
    assert found.binary == launch.binary and tried.rows > 1000


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_the_space_compiles_within_the_limits(target):
    wanted = problems(["reduce_partials"], ["bfloat16"], [(1024, 4096)])
    wanted += problems(["reduce_partials"], ["float16", "float32"], [(64, 100)])
    jobs = plan(wanted, "default", TARGETS[target]).jobs()[::4]
    assert len(jobs) >= 10
    assert all(len(compiled.binaries) == 1 for compiled in compiled_within(target, jobs=jobs))
