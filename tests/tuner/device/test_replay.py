"""Replay: the recorded rounds, and the outcome of configs that were not recorded."""

from types import SimpleNamespace

import numpy as np
import pytest

from normtune.errors import UsageError
from normtune.kernels.config import COPY
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.results.exchange import recording
from normtune.results.records import Device, Measurement, Run
from normtune.tuner.device import open as devices
from normtune.tuner.device import replay
from normtune.tuner.plan.plan import Task, candidates, plan
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.search.exhaustive import Exhaustive
from normtune.tuner.search.rounds import timed

TARGET = TARGETS["sm_90"]
SPEC = operator("rms_norm_forward")
PROBLEM = SPEC.problem(64, 128, "bfloat16")
FAST, SLOW, BROKEN, ABSENT = (RMSNormConfig("row", 1, warps) for warps in (1, 2, 4, 8))


def recorded():
    device = Device("Made Up", "sm_90", 132, 60 << 20, 1 << 37, "GPU-0", "1.0")
    run = Run("ab" * 16, device, {"triton": "1.2.3"}, "2026-01-01T00:00:00+00:00", {})
    rounds = np.arange(16, dtype=np.int32)
    rows = []
    for config, base in ((FAST, 1000), (SLOW, 2000), (COPY, 500)):
        # Each block has a luck of its own, the same for all configs.
        rows.append(Measurement(PROBLEM, config, run.id, "sha256:x", "ok", "", rounds, base + 10 * (rounds // 2)))
    empty = np.zeros(0, np.int32)
    rows.append(Measurement(PROBLEM, BROKEN, run.id, "sha256:x", "wrong_result", "y is off", empty, empty))
    return Evidence.from_measurements(rows, [run])


@pytest.fixture
def opened(monkeypatch):
    """Opens engines of the recording."""
    monkeypatch.setattr(replay, "recordings", lambda: ["made-up"])
    monkeypatch.setattr(replay, "load_recording", lambda name, regime: recorded())
    return lambda: replay.ReplayEngine("made-up")


@pytest.fixture
def engine(opened):
    return opened()


def measure(engine, search, configs=(FAST, SLOW, BROKEN, ABSENT), problem=PROBLEM):
    """Failures and samples, as a bench asks for them."""
    kept, _ = candidates(SPEC, configs, problem, TARGET)
    engine.begin(problem, kept)
    failed = dict(engine.warm_up([candidate.config for candidate in kept]))
    session = SimpleNamespace(block=lambda configs: engine.block(configs).times)
    return failed | timed(
        session, [c.config for c in kept if c.config not in failed], search((), {}).batches(Task(problem, tuple(kept)))
    )


def test_samples_are_recorded_ones_and_blocks_stay_paired(engine):
    found = measure(engine, Exhaustive)
    assert set(found) == {FAST, SLOW, BROKEN, ABSENT, COPY}
    fast, slow = np.array(found[FAST].nanoseconds), np.array(found[SLOW].nanoseconds)
    assert len(fast) == len(slow) == 16
    assert set(fast) <= {1000 + 10 * block for block in range(8)}
    assert (slow - fast == 1000).all()
    assert len(set(fast)) > 1


def test_each_task_of_a_problem_draws_on_and_every_replay_draws_the_same(opened):
    other = SPEC.problem(128, 128, "bfloat16")
    first, second = opened(), opened()
    tasks = [measure(first, Adaptive) for _ in range(3)]
    samples = [tuple(found[FAST].nanoseconds) for found in tasks]
    assert len(set(samples)) == 3
    again = []
    for _ in tasks:  # whatever other problem is measured between them
        again.append(measure(second, Adaptive))
        measure(second, Adaptive, problem=other)
    assert again == tasks


def test_failures_are_recorded_ones_and_absent_cells_say_so(engine):
    found = measure(engine, Adaptive)
    assert (found[BROKEN].status, found[BROKEN].reason) == ("wrong_result", "y is off")
    assert (found[ABSENT].status, found[ABSENT].reason) == ("not_recorded", "not in recording made-up")
    other = SPEC.problem(1, 8192, "bfloat16")
    outcomes = measure(engine, Adaptive, [FAST, ABSENT], other)
    assert {outcome.status for outcome in outcomes.values()} == {"not_recorded"}


def test_a_config_of_the_same_launch_is_the_same_measurement(opened):
    alias = RMSNormConfig("block_row", 1, 1)
    assert SPEC.resolve(alias, PROBLEM, TARGET, None) == SPEC.resolve(FAST, PROBLEM, TARGET, None)
    found = measure(opened(), Adaptive, [alias])[alias], measure(opened(), Adaptive, [FAST])[FAST]
    assert found[0].nanoseconds == found[1].nanoseconds


def test_the_space_of_a_replay_is_what_was_recorded(opened, monkeypatch):
    monkeypatch.setattr(recording, "load_recording", lambda name, regime: recorded().regime(regime))
    other = PROBLEM._replace(rows=65)
    found = devices.recorded([PROBLEM, other], opened().identify().device, "cold")
    assert found == {PROBLEM: [FAST, SLOW, BROKEN]}
    tasks = plan([PROBLEM, other], found, TARGET).tasks
    # Where nothing was recorded, a sweep says so of each config of the default space.
    assert [task.configs for task in tasks] == [[FAST, SLOW, BROKEN], plan([other], "default", TARGET).tasks[0].configs]
    assert not devices.recorded([PROBLEM], opened().identify().device, "warm")


def test_the_device_is_marked_as_a_replay(engine):
    assert engine.identify().device.uuid == "replay:made-up"
    assert engine.identify().device.label == "Made Up (replay)"
    assert engine.identify().target[:2] == ("sm_90", 132)
    assert engine.identify().software == {"triton": "1.2.3"}


def test_an_unknown_recording_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(replay, "recordings", lambda: ["made-up"])
    with pytest.raises(UsageError, match="unknown recording 'h300': expected one of made-up"):
        replay.ReplayEngine("h300")
