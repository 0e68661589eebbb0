"""The regimes on a GPU: effects of the cache and the host, and whole sweeps in each."""

from statistics import median

import pytest

from normtune.kernels.config import COPY
from normtune.kernels.operator import operator
from normtune.results.database.store import Store
from normtune.results.regimes import REGIMES
from normtune.tests.tuner.benches import sweep
from normtune.tuner.device.open import open_device
from normtune.tuner.plan.plan import candidates, plan, problems
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.timing.timing import CudaSession

pytestmark = pytest.mark.gpu

KEYS = ("rms_norm_forward", "rms_norm_forward:no_rstd", "rms_norm_backward", "rms_norm_backward:no_dweight")


def medians(engine, rows, hidden, label=None):
    """Nanoseconds of a config, or of the copy, in each regime, the sessions in turn."""
    spec = operator("rms_norm_forward")
    problem = spec.problem(rows, hidden, "bfloat16")
    (candidate,), _ = candidates(spec, [spec.default_config(problem, engine.target)], problem, engine.target)
    label = label or candidate.config
    sessions = {
        regime: CudaSession(engine.ready(), spec, problem, {candidate.config: candidate.launch}, regime)
        for regime in REGIMES
    }
    times = {regime: [] for regime in REGIMES}
    for session in sessions.values():
        assert session.warm_up([candidate.config]) == {}
    for _ in range(8):
        for regime, session in sessions.items():
            times[regime] += session.block([label])[label]
    found = {regime: median(samples) for regime, samples in times.items()}
    print(f"{rows} x {hidden}, {label}, {spec.bytes_moved(problem) / 1e6:.1f} MB:", found)
    return found


@pytest.mark.parametrize("share", [8, 4, 2])
def test_a_copy_that_fits_into_the_cache_is_not_slower_warm_than_cold(engine, share):
    found = medians(engine, engine.device.l2_bytes // share // (4 * 1024), 1024, COPY)
    assert found["warm"] <= 1.02 * found["cold"]


def test_what_is_far_larger_than_the_cache_is_never_warm(engine):
    found = medians(engine, 262144, 1024)
    assert abs(found["warm"] / found["cold"] - 1) < 0.05


@pytest.mark.parametrize("label", [None, COPY])
def test_a_tiny_eager_launch_takes_the_host_longer_than_the_gpu(engine, label):
    found = medians(engine, 1, 64, label)
    assert found["eager"] > 1.2 * found["cold"]


def test_a_long_eager_launch_takes_as_long_as_in_a_graph(engine):
    found = medians(engine, 65536, 1024)
    assert abs(found["eager"] / found["cold"] - 1) < 0.05


@pytest.mark.parametrize("regime", REGIMES)
def test_a_sweep_in_each_regime_times_all_that_it_wants(tmp_path, regime):
    bench = open_device("cuda:0", regime)
    try:
        wanted = plan(problems(KEYS, ["bfloat16"], [(64, 1024), (4096, 1024)]), "portfolio", bench.target)
        with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
            summary = sweep(bench, store, wanted, Adaptive)
            assert (summary.problems, summary.left, dict(summary.skipped)) == (8, 0, {})
            found = store.load(regime=regime)
    finally:
        bench.close()
    assert [run.protocol["regime"] for run in found.runs] == [regime]
    assert set(found.frame["status"]) == {"ok"}
    assert len(found.frame) == wanted.cells() + len(wanted.tasks)
    print(regime, summary.seconds, "s, of these", found.runs[0].protocol["seconds"])
