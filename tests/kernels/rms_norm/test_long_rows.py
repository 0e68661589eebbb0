"""Rows of several programs: legality, launches, spaces and binaries, without a GPU."""

from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from normtune.heuristics.regret.legality import Legality, served_variants
from normtune.kernels.fake_tensor import FakeTensor
from normtune.kernels.operator import operator, operators
from normtune.kernels.problem import ITEMSIZE, MAX_ROWS, Problem
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.rms_norm.long_rows import MAX_HIDDEN, MAX_TILED_HIDDEN
from normtune.kernels.tablefile import locate
from normtune.kernels.target import TARGETS
from normtune.tuner.compiling.pool import compile_all
from normtune.tuner.plan.plan import SPACES, candidates, plan, problems
from normtune.tuner.timing.gate import gate_launch

NAMES = tuple(name for name in operators() if name.startswith(("rms_norm_forward", "rms_norm_backward", "fused_add")))
SPECS = [operator(name) for name in NAMES]
KEYS = [f"{spec.name}{variant and ':'}{variant}" for spec in SPECS for variant in spec.variants]
H200 = TARGETS["sm_90"]
TABLES = {path.stem: locate.load(path) for path in locate.shipped()}
TABLES = {name: table for name, table in TABLES.items() if {key.operator for key in table.tables} <= set(NAMES)}
long_rows = st.integers(MAX_TILED_HIDDEN + 1, MAX_HIDDEN)
row_counts = st.integers(1, MAX_ROWS)
targets = st.sampled_from(list(TARGETS.values()))
dtypes = st.sampled_from(list(ITEMSIZE))


@cache
def whole_space(spec, target):
    """Configs of the full spaces of short, tiled and long rows."""
    sizes = (64, 4096, MAX_TILED_HIDDEN, MAX_HIDDEN)
    return sorted({one for hidden in sizes for one in spec.space("full", spec.problem(64, hidden, "bfloat16"), target)})


@pytest.mark.long
@given(data=st.data(), spec=st.sampled_from(SPECS), target=targets, dtype=dtypes, rows=row_counts, hidden=long_rows)
def test_a_config_is_legal_for_long_rows_exactly_if_it_is_for_the_longest_tiled_one(
    data, spec, target, dtype, rows, hidden
):
    config = data.draw(st.sampled_from(whole_space(spec, target)))
    variant = data.draw(st.sampled_from(spec.variants))
    problem = spec.problem(rows, hidden, dtype, variant)
    tiled = problem._replace(hidden=MAX_TILED_HIDDEN)
    assert spec.is_legal(config, problem, target) == spec.is_legal(config, tiled, target)


@pytest.mark.slow
@example(rows=1, hidden=MAX_TILED_HIDDEN + 1)
@example(rows=MAX_ROWS, hidden=MAX_HIDDEN)
@settings(deadline=None)
@given(rows=row_counts, hidden=long_rows)
def test_the_default_config_and_every_space_are_legal(rows, hidden):
    for spec in SPECS:
        for target in TARGETS.values():
            for variant in spec.variants:
                problem = spec.problem(rows, hidden, "float32", variant)
                default = spec.default_config(problem, target)
                assert default == spec.default_config(problem._replace(hidden=MAX_TILED_HIDDEN), target)
                for config in (default, *(one for name in SPACES for one in spec.space(name, problem, target))):
                    launch = spec.launch(config, problem, target)
                    threads = launch.num_warps * target.warp_size
                    assert 8 * threads <= launch.block_col <= 16 * threads and launch.num_stages == 1


@pytest.mark.parametrize("name", TABLES)
@settings(deadline=None)
@given(rows=row_counts, hidden=long_rows)
def test_what_a_shipped_table_answers_is_launched(name, rows, hidden):
    table = TABLES[name].bound(H200.sms, H200.l2_bytes)
    for key, look_up in table.tables.items():
        config = RMSNormConfig(*look_up(rows, hidden))
        assert operator(key.operator).is_legal(config, Problem(key.usual, rows, hidden), H200), (key, config)


def test_shipped_functions_are_legal_for_all_integers():
    for key, function in TABLES["nvidia_h200"].tables.items():
        spec = operator(key.operator)
        legality = Legality(spec, H200, [key.dtype], served_variants(spec, key))
        for rows in (1, 19, 20, 159, 160, 4096, MAX_ROWS):
            assert legality.reaches(RMSNormConfig(*function(rows, MAX_HIDDEN)), (rows, MAX_HIDDEN))


@settings(deadline=None)
@given(spec=st.sampled_from(SPECS), rows=row_counts, hidden=long_rows, target=targets)
def test_the_memory_beside_the_tensors_is_bounded(spec, rows, hidden, target):
    problem = spec.problem(rows, hidden, "bfloat16")
    for config in spec.space("full", problem, target):
        launch = spec.launch(config, problem, target)
        partials = launch.workspace - rows * launch.chunks
        assert 0 <= 4 * partials <= 64 << 20
        assert rows * launch.chunks <= -(-rows * hidden // 2048)
        if partials:
            assert launch.grid * launch.chunks <= max(1, config.programs_per_sm) * target.sms


def test_a_single_row_occupies_many_programs_and_its_gradient_needs_no_reduction():
    for spec in SPECS:
        problem = spec.problem(1, MAX_HIDDEN, "bfloat16")
        launch = spec.launch(spec.default_config(problem, H200), problem, H200)
        assert launch.chunks >= 128
        assert len(calls(spec, problem, launch)) == 2
    backward = operator("rms_norm_backward")
    problem = backward.problem(64, 1 << 17, "bfloat16")
    launch = backward.launch(backward.default_config(problem, H200), problem, H200)
    assert len(calls(backward, problem, launch)) == 3 and launch.grid * launch.chunks == 128


def calls(spec, problem, launch):
    tensors = {one.name: FakeTensor(one.dtype, one.shape) for one in spec.buffers(problem)}
    return spec.calls(launch, problem, tensors, FakeTensor("float32", (launch.workspace,)), spec.scalars)


def test_a_sweep_takes_long_rows_on_demand():
    for space in SPACES:
        chosen = plan(problems(KEYS, ["bfloat16"], [(64, 1 << 17), (3, 100_000)]), space, H200)
        assert len(chosen.tasks) == 2 * len(KEYS)
        assert all(2 <= len(task.candidates) <= 16 for task in chosen.tasks)


@pytest.mark.parametrize("rows", [1, 100, 100_000])
def test_the_gate_tries_the_binary_that_is_timed(rows):
    for spec in SPECS:
        problem = spec.problem(rows, 100_000, "bfloat16")
        kept, _ = candidates(spec, spec.space("default", problem, H200), problem, H200)
        for candidate in kept:
            tried, launch = gate_launch(spec, problem, candidate, H200)
            assert launch.binary == candidate.launch.binary and launch == spec.launch(candidate.config, tried, H200)
            # In the backward a single row has no partial sums to reduce.
            assert tried.rows > 30 or (rows == tried.rows == 1 and launch.finish == "none")


@pytest.mark.one_in(3)
@pytest.mark.long
@pytest.mark.parametrize(("target", "hidden"), [("sm_90", 65537), ("sm_90", 1 << 17), ("gfx942", 100_000)])
@pytest.mark.slow
def test_the_space_compiles_within_the_limits(target, hidden):
    limits = TARGETS[target]
    wanted = problems(KEYS, ["bfloat16"], [(257, hidden)]) + problems(NAMES, ["float32"], [(257, hidden)])
    jobs = plan(wanted, "default", limits).jobs()
    held = {}
    for job in sorted(jobs, key=lambda job: job.launch.block_col):
        held[job.problem.key, job.problem.dtype] = job
    done = list(compile_all(sorted(held.values()), target, workers=1, keep_assembly=True))
    assert len(done) == len(KEYS) + len(NAMES)
    for compiled in done:
        assert compiled.status == "ok", compiled
        assert 0 <= compiled.shared_bytes <= limits.shared_bytes
        assert 0 < compiled.threads <= limits.max_threads
        assert len(compiled.binaries) == (3 if compiled.job.launch.finish == "reduce" else 2)
        if hidden == 1 << 17:
            assert all("ld.global.v4.b32" in text for _, text in compiled.binaries[:2])
