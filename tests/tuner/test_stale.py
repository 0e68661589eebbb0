"""After a change of Triton only what compiles to other code is measured again."""

import pytest

from normtune.kernels.config import COPY
from normtune.kernels.operator import operator
from normtune.kernels.target import TARGETS
from normtune.results.database.store import Store
from normtune.results.records import TimedCode, launch_digest
from normtune.tests.tuner.benches import Heard
from normtune.tuner.compiling.pool import codes_of
from normtune.tuner.sweep import api
from normtune.tuner.sweep.report import NOTHING_STALE
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
    """A sweep of what is stale: its lines, and the pairs that it measured."""
    heard = Heard()
    with Store.open(path) as store:
        before = {run.id for run in store.runs()}
    api.run(Request(**REPLAY, stale=True, store=path), heard)
    with Store.open(path) as store:
        (new,) = [run.id for run in store.runs() if run.id not in before] or [""]
        return heard.lines, measured_pairs(store, new)


@pytest.mark.slow
@pytest.mark.long
def test_only_what_another_triton_compiles_to_other_code_is_measured_again(tmp_path):
    first, path = tmp_path / "first.db", tmp_path / "store.db"
    api.sweep(**SMALL, store=first)
    with Store.open(first) as store:
        evidence = store.load()
    spec = operator("rms_norm_forward")
    items = [item for item in evidence.measurements() if item.config != COPY]
    launches = {(item.problem, item.config): spec.launch_of(item.config, item.problem, TARGET) for item in items}
    compiled = codes_of([(problem, launch) for (problem, _), launch in launches.items()], "sm_90")
    planted = {pair for pair in launches if pair[1].schedule == "persistent"}
    codes = {
        pair: TimedCode(launch_digest(launch), b"y" * 16 if pair in planted else compiled[pair[0], launch].assembly)
        for pair, launch in launches.items()
    }
    with Store.open(path) as store:
        for run in evidence.runs:
            store.begin_run(run._replace(software={**run.software, "triton": OLD}))
        store.add([item._replace(code=codes.get((item.problem, item.config))) for item in evidence.measurements()])

    planned = api.sweep(**REPLAY, stale=True, dry_run=True, store=path).backlog
    assert {(task.problem, one.config) for task in planned.tasks for one in task.candidates} == planted
    lines, measured = stale(path)
    assert planted and measured == planted
    (told,) = [line for line in lines if "compiles" in line]
    assert f"compiles {len(launches) - len(planted)} of {len(launches)} stored measurements to the same" in told

    # The same again finds no stale measurement.
    lines, measured = stale(path)
    assert not measured and NOTHING_STALE in lines
