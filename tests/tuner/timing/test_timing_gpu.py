"""The timing protocol on a GPU."""

from statistics import median

import pytest
import torch

from normtune.kernels.config import COPY
from normtune.kernels.operator import operator
from normtune.tuner.plan.plan import candidates, peak_bytes

pytestmark = pytest.mark.gpu


def copy_rate(engine, nbytes):
    """Bytes per nanosecond of the yardstick beside a problem of about `nbytes`."""
    spec = operator("rms_norm_forward")
    problem = spec.problem(nbytes // (4 * 1024), 1024, "bfloat16")
    engine.begin(problem, [])
    times = [time for _ in range(8) for time in engine.block([COPY]).times[COPY]]
    return spec.bytes_moved(problem) / median(times)


@pytest.mark.parametrize(
    ("operator_name", "dtype"), [("rms_norm_forward", "float32"), ("rms_norm_backward", "bfloat16")]
)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 64), (4096, 4096), (262144, 1024), (8192, 32768)])
def test_a_problem_takes_the_memory_that_was_foretold(engine, operator_name, dtype, rows, hidden):
    spec = operator(operator_name)
    problem = spec.problem(rows, hidden, dtype)
    configs = [spec.default_config(problem, engine.target)]
    kept, _ = candidates(spec, configs, problem, engine.target)
    engine._release()
    torch.cuda.reset_peak_memory_stats()
    engine.begin(problem, kept)
    assert not engine.warm_up(configs)
    engine.block([COPY, *configs])
    assert not engine.compare(configs, configs)
    taken = torch.cuda.max_memory_reserved()
    print(problem, "took", taken, "foretold", peak_bytes(problem), taken / peak_bytes(problem))
    assert taken <= peak_bytes(problem)


@pytest.mark.parametrize("border", [128 << 20, 512 << 20])
def test_no_step_where_the_number_of_timed_launches_changes(engine, border):
    below, above = copy_rate(engine, border * 31 // 32), copy_rate(engine, border * 33 // 32)
    assert abs(above / below - 1) < 0.02


def test_small_problems_are_cold(engine):
    # A copy that found its data in the L2 would move more than the memory can: at most 4.8 bytes a picosecond.
    for nbytes in (8 << 20, 32 << 20, 96 << 20):
        assert copy_rate(engine, nbytes) < 4800


def test_lines_that_a_kernel_keeps_in_the_cache_are_evicted(engine):
    # A row in chunks is read with evict_last; the other config found it in the L2 and took 0.90 of its cold time.
    spec = operator("rms_norm_forward")
    problem = spec.problem(64, 4096, "bfloat16")
    row = spec.config(schedule="row", num_warps=8)
    chunks = spec.config(schedule="split", num_warps=8, block_col=1024)
    kept, _ = candidates(spec, [row, chunks], problem, engine.target)
    engine.begin(problem, kept)
    assert not engine.warm_up([row, chunks])
    alone = [time for _ in range(6) for time in engine.block([row]).times[row]]
    beside = [time for _ in range(6) for time in engine.block([row, chunks]).times[row]]
    assert median(beside) > 0.95 * median(alone)
