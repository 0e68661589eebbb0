"""A sweep on a GPU of AMD, as far as a CPU can: binaries are compiled for it, launches interpreted, torch is faked."""

import pytest

import normtune
from normtune.kernels.config import COPY
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.results.database.store import Store
from normtune.tests.tuner.benches import sweep
from normtune.tuner.device.bench import Bench
from normtune.tuner.plan.plan import Plan, Task, candidates
from normtune.tuner.search.registry import search

SPEC, TARGET = operator("rms_norm_forward"), TARGETS["gfx942"]._replace(sms=4)
CONFIGS = [RMSNormConfig("row", 1, 2), RMSNormConfig("row", 1, 4), RMSNormConfig("row", 1, 32)]


@pytest.mark.slow
def test_a_sweep_and_its_table(tmp_path):
    task_of = lambda rows: SPEC.problem(rows, 96, "float32")  # noqa: E731
    kept = {problem: candidates(SPEC, CONFIGS, problem, TARGET)[0] for problem in map(task_of, (2, 5))}
    plan = Plan(tuple(Task(problem, tuple(them)) for problem, them in kept.items()), {})
    assert {candidate.config for task in plan.tasks for candidate in task.candidates} == set(CONFIGS[:2])
    bench = Bench(("normtune.tests.tuner.rocm_engine", "open_rocm", ()))
    with Store.open(f"sqlite:///{tmp_path / 'rocm.db'}") as store:
        bench.open()
        summary = sweep(bench, store, plan, search("adaptive"))
        assert summary.failures == {} and summary.problems == 2
        (run,) = store.runs()
        device, software = run.device, run.software
        assert (device.name, device.target, device.sms) == ("AMD Instinct MI300X", "gfx942", 4)
        assert (device.driver, software["rocm"]) == ("6.12.12", "6.4.43484") and "cuda" not in software
        assert run.protocol["sm_clock_mhz"] == [2100, 2100, 2100]
        assert run.protocol["warnings"]["other_processes"] == "1 other process on the GPU"
        found = [one for (_, config), one in store.coverage(device).items() if config != COPY]
        assert len(found) == 4 and all(one.status == "ok" and one.samples >= 6 for one in found)
        # Binaries were compiled for the GPU of AMD, not for the interpreter.
        assert all(one.code and one.code.assembly for one in found)
        table = normtune.fit(store, leaves=2)
    assert table.lookup("rms_norm_forward", "float32", 2, 96) in CONFIGS[:2]
