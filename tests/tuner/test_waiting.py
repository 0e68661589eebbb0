"""Limits count only time in which the machine ran: a sleeping or stopped process has not hung."""

import os
import signal
import subprocess
import sys
import time

import pytest

from normtune.tests.commands import PATIENCE
from normtune.tests.tuner.store_faults import count
from normtune.tuner.device import worker

# As `python -m normtune`, but patient for four seconds only.
IMPATIENT = (
    "import normtune.tuner.device.bench as bench; bench.STEP_SECONDS = bench.STEPS_SECONDS = 4.0; "
    "from normtune.cli import main; main()"
)


class Connection:
    """Says after so many polls that there is an answer; each of them takes as long as it may, or as it is told."""

    def __init__(self, clock, answered, slept):
        self.clock, self.answered, self.slept, self.polls = clock, answered, slept, 0

    def poll(self, seconds):
        self.polls += 1
        if self.polls == self.answered:
            return True
        self.clock[0] += seconds + self.slept.get(self.polls, 0.0)
        return False


@pytest.mark.parametrize(
    ("answered", "slept", "expected"),
    [
        (3, {}, True),
        (5, {}, False),  # four polls of a second are all there is
        (5, {2: 60.0}, True),
        (7, {1: 60.0, 4: 3600.0}, False),
        (6, {1: 60.0, 4: 3600.0}, True),
        (5, {2: 0.5}, False),
    ],
)
def test_a_wait_that_took_far_too_long_is_no_time_that_the_other_had(monkeypatch, answered, slept, expected):
    clock = [0.0]
    monkeypatch.setattr(worker.time, "monotonic", lambda: clock[0])
    assert worker.answers(Connection(clock, answered, slept), 4.0) is expected


@pytest.mark.slow
@pytest.mark.long
def test_a_sweep_that_is_stopped_for_longer_than_its_limits_goes_on(tmp_path):
    path = tmp_path / "store.db"
    command = [sys.executable, "-c", IMPATIENT, "sweep", "--device", "replay:nvidia-h200", "--operator"]
    command += ["rms_norm_forward", "--dtype", "bfloat16", "--store", str(path)]
    sweep = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while sweep.poll() is None and not count(path):
        time.sleep(0.02)
    os.killpg(sweep.pid, signal.SIGSTOP)
    time.sleep(6)
    os.killpg(sweep.pid, signal.SIGCONT)
    _, errors = sweep.communicate(timeout=PATIENCE)
    assert sweep.returncode == 0, errors
    assert count(path) and not count(path, "WHERE status IN ('timeout', 'crashed')")
