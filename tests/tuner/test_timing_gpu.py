"""The timing protocol and a whole sweep, on a GPU."""

import dataclasses
from statistics import median
from types import SimpleNamespace

import pytest
import torch

from normtune.kernels.operator import operator
from normtune.results.records import COPY
from normtune.results.store import Store
from normtune.tuner.grids import shapes
from normtune.tuner.planning import Task, candidates, plan, problems

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def bench():
    from normtune.tuner.cuda import CudaBench

    opened = CudaBench(0)
    yield opened
    opened.close()


def copy_rate(bench, nbytes):
    """Bytes per nanosecond of the yardstick beside a problem of about `nbytes`."""
    from normtune.tuner.timing import CudaSession

    spec = operator("rms_norm_forward")
    problem = spec.problem(nbytes // (4 * 1024), 1024, "bfloat16")
    session = CudaSession(bench.ready(), spec, problem, {})
    times = [time for _ in range(8) for time in session.block([COPY])[COPY]]
    return spec.bytes_moved(problem) / median(times)


@pytest.mark.parametrize("border", [128 << 20, 512 << 20])
def test_no_step_where_the_number_of_timed_launches_changes(bench, border):
    below, above = copy_rate(bench, border * 31 // 32), copy_rate(bench, border * 33 // 32)
    assert abs(above / below - 1) < 0.02


def test_small_problems_are_cold(bench):
    # A copy that found its data in the L2 would move more than the memory can: at most 4.8 bytes a picosecond.
    for nbytes in (8 << 20, 32 << 20, 96 << 20):
        assert copy_rate(bench, nbytes) < 4800


def test_a_kernel_that_is_wrong_in_one_shape_is_caught_after_timing(bench, monkeypatch):
    spec = operator("rms_norm_forward")
    real = spec.kernels()

    def calls(launch, problem, tensors, workspace, eps, offset):
        if problem.rows == 5000:
            offset += 0.5
        return real.calls(launch, problem, tensors, workspace, eps, offset)

    broken = dataclasses.replace(spec)
    object.__setattr__(broken, "kernels", lambda: SimpleNamespace(calls=calls))
    monkeypatch.setattr("normtune.tuner.cuda.operator", lambda name: broken)
    for rows, status in ((4999, "ok"), (5000, "wrong_result")):
        problem = spec.problem(rows, 256, "bfloat16")
        kept, _ = candidates(spec, spec.space("default", problem, bench.target), problem, bench.target)
        task = Task(problem, tuple(kept[:3]))
        list(bench.prepare([task]))
        outcomes = bench.measure(task, "adaptive")
        assert {outcomes[candidate.config].status for candidate in task.candidates} == {status}
        assert outcomes[COPY].status == "ok"


def test_a_sweep_is_stored_and_resumed(bench, tmp_path):
    from normtune.tuner.sweep import sweep

    wanted = problems([], ["bfloat16"], shapes("default", [1, 512], [64, 1024]))
    chosen = plan(wanted, "default", bench.target)
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        first = sweep(bench, store, chosen, "adaptive")
        assert first.problems == len(wanted) == 8 and set(first.statuses) == {"ok"}
        second = sweep(bench, store, chosen, "adaptive")
        assert (second.problems, second.known) == (0, 8)
        frame = store.load().frame
        assert len(frame) == chosen.cells() + len(wanted)
        assert min(len(samples) for samples in frame["samples"]) >= 6
        assert torch.tensor([int(s.min()) for s in frame["samples"]]).min() > 500
