"""After a change of Triton only what compiles to other instructions is measured again, beside a control sample."""

import math
import re

import pytest

from normtune.kernels.config import COPY
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.results.database.store import Store
from normtune.results.records import Coverage, Outcome, TimedCode, launch_digest
from normtune.tests.tuner.benches import Heard
from normtune.tuner.compiling.pool import codes_of
from normtune.tuner.search.control import PROBLEMS, ControlSample, with_control
from normtune.tuner.search.exhaustive import Exhaustive
from normtune.tuner.sweep import api
from normtune.tuner.sweep.request import Request

TARGET = TARGETS["sm_90"]
REPLAY = {"device": "replay:nvidia-h200"}
SMALL = {"operators": ["rms_norm_forward"], "rows": [1, 4096], "hidden": [256, 1024], **REPLAY}
OLD = "0.1"


def measured_pairs(store, run):
    return {
        (item.problem, item.config) for item in store.load().measurements() if item.run == run and item.config != COPY
    }


def stale(path):
    """A sweep of what is stale: its result, its lines, and the pairs that it measured."""
    heard = Heard()
    with Store.open(path) as store:
        before = {run.id for run in store.runs()}
    done = api.run(Request(**REPLAY, stale=True, store=path), heard)
    with Store.open(path) as store:
        (new,) = [run.id for run in store.runs() if run.id not in before] or [""]
        return done, heard.lines, measured_pairs(store, new)


@pytest.mark.slow
@pytest.mark.long
def test_only_what_another_triton_compiles_to_other_instructions_is_measured_again(tmp_path):
    first, path = tmp_path / "first.db", tmp_path / "store.db"
    api.sweep(**SMALL, store=first)
    with Store.open(first) as store:
        evidence = store.load()
    spec = operator("rms_norm_forward")
    items = [item for item in evidence.measurements() if item.config != COPY]
    launches = {(item.problem, item.config): spec.launch_of(item.config, item.problem, TARGET) for item in items}
    compiled = codes_of([(problem, launch) for (problem, _), launch in launches.items()], "sm_90", is_compiled=True)
    planted = {pair for pair in launches if pair[1].schedule == "persistent"}
    codes = {
        pair: TimedCode(
            launch_digest(launch), b"x" * 16, b"y" * 16 if pair in planted else compiled[pair[0], launch].machine
        )
        for pair, launch in launches.items()
    }
    with Store.open(path) as store:
        for run in evidence.runs:
            store.begin_run(run._replace(software={**run.software, "triton": OLD}))
        store.add([item._replace(code=codes.get((item.problem, item.config))) for item in evidence.measurements()])
        medians = {pair: state.median_ns for pair, state in store.coverage(evidence.runs[0].device).items()}
    kept = {}
    for problem, config in sorted(set(launches) - planted, key=lambda pair: (medians[pair], pair[1])):
        kept.setdefault(problem, []).append((problem, config))
    control = {pair for pairs in kept.values() for pair in pairs[:2]}

    planned = api.sweep(**REPLAY, stale=True, dry_run=True, store=path).outlook
    assert {(task.problem, one.config) for task in planned.tasks for one in task.candidates} == planted | control
    done, lines, measured = stale(path)
    assert planted and measured == planted | control
    (told,) = [line for line in lines if "compiles" in line]
    assert f"compiles {len(launches) - len(planted)} of {len(launches)} stored measurements to the same" in told
    assert re.fullmatch(r"control sample: 4 problems take \d\.\d\d \(\d\.\d\d to \d\.\d\d\) times as long", lines[-1])
    assert 0.8 < done.control.low <= done.control.ratio <= done.control.high < 1.25
    assert done.to_plain()["control"]["problems"] == 4

    # The same again finds no stale measurement.
    _, _, measured = stale(path)
    assert not measured & planted and len(measured) == len(control)


def sample_of(count):
    spec = operator("rms_norm_forward")
    configs = [RMSNormConfig("row", num_warps=warps) for warps in (1, 2, 4)]
    stored = {
        (spec.problem(64, 32 * (number + 1), "bfloat16"), config): Coverage(
            "ok", fingerprint(spec), 16, 1000 + 10 * place
        )
        for number in range(count)
        for place, config in enumerate(configs)
    }
    return stored, ControlSample(stored, TARGET)


def test_a_control_sample_is_the_same_each_time_and_has_the_two_best_configs():
    stored, sample = sample_of(30)
    assert [task.problem for task in sample.tasks] == [task.problem for task in sample_of(30)[1].tasks]
    assert len(sample.tasks) == len({task.problem for task in sample.tasks}) == PROBLEMS
    assert all([config.num_warps for config in task.configs] == [1, 2] for task in sample.tasks)
    stale = {pair: state._replace(fingerprint="sha256:old") for pair, state in stored.items()}
    assert ControlSample(stale, TARGET).tasks == ()


def test_the_ratio_is_that_of_the_times_with_its_interval():
    _, sample = sample_of(3)
    assert sample.result() is None
    for task, factor in zip(sample.tasks, (1.0, 1.1, 1.21), strict=True):
        times = {config: [int(factor * (1000 + 10 * place))] * 3 for place, config in enumerate(task.configs)}
        sample.tell(task, {config: Outcome("ok", "", [0, 1, 2], time) for config, time in times.items()})
    found = sample.result()
    # t = 4.303 with two degrees of freedom.
    half = 4.303 * math.log(1.1) / math.sqrt(3)
    assert found.ratio == pytest.approx(1.1, abs=1e-3)
    assert (found.low, found.high) == (
        pytest.approx(1.1 * math.exp(-half), abs=3e-3),
        pytest.approx(1.1 * math.exp(half), abs=3e-3),
    )
    assert found.line() == f"control sample: 3 problems take 1.10 ({found.low:.2f} to {found.high:.2f}) times as long"


def test_the_sample_comes_first_and_the_other_search_hears_only_of_its_own_tasks():
    _, sample = sample_of(2)
    _, others = sample_of(4)
    rest = [task._replace(candidates=task.candidates[:1]) for task in others.tasks]
    search = with_control([*rest, *sample.tasks], {}, Exhaustive, sample)
    assert (search.name, len(search.pending())) == ("exhaustive", 6)
    assert list(search.ask())[:2] == list(sample.tasks)
    for task in list(search.ask()):
        batch = next(search.race(task))
        assert (list(batch.configs), batch.blocks) == (task.configs, 8)
        search.tell(task, {config: Outcome("ok", "", [0, 1], [2000, 2000]) for config in task.configs})
    assert list(search.pending()) == [] and sample.result().problems == 2
