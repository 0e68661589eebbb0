"""A sweep that is stopped goes on with all that is stored, on the replayed H200."""

import sqlite3

import pytest

from normtune.tests.commands import printed_sweep
from normtune.tuner.sweep.api import run
from normtune.tuner.sweep.progress import Silent
from normtune.tuner.sweep.request import Request

SIZES = {"rows": (1, 64, 1024, 16384), "hidden": (512, 1024, 4096, 8192)}
ASKED = {"operators": ["rms_norm_forward"], "device": "replay:nvidia-h200", "strategy": "plane", **SIZES}
ROWS = (
    "SELECT operator, rows, hidden, config.config, status, samples FROM measurement JOIN problem ON problem.id = "
    "problem_id JOIN config ON config.id = config_id ORDER BY measurement.id"
)


class Interrupting(Silent):
    """The user interrupts after so many tasks."""

    def __init__(self, tasks):
        self._left = tasks

    def measured(self, *_):
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


def rows(path):
    with sqlite3.connect(path) as connection:
        return connection.execute(ROWS).fetchall()


def sweep(path, **options):
    return printed_sweep(**{**ASKED, **options}, store=path)


def interrupted(path, tasks, **options):
    with pytest.raises(KeyboardInterrupt):
        run(Request(**ASKED, store=path, **options), Interrupting(tasks))


@pytest.mark.slow
def test_a_sweep_that_is_stopped_goes_on_and_is_complete_once(tmp_path):
    """Interrupted twice, once in its first task, then ended by its budget: nothing stored is lost or measured again."""
    path = tmp_path / "parts.db"
    interrupted(path, 1)
    interrupted(path, 9)
    stopped = rows(path)
    for seconds in range(3, 60):
        told = sweep(path, budget_seconds=seconds)
        if len(rows(path)) > len(stopped):
            break
    assert "complete: " in told or "complete: " in sweep(path)
    after = rows(path)
    assert after[: len(stopped)] == stopped
    anchors = len(after) - len({row[:4] for row in after})
    assert anchors < len(after) / 4
    assert "nothing to do: " in sweep(path) and rows(path) == after


@pytest.mark.slow
def test_the_same_request_stores_the_same_on_a_replay(tmp_path):
    one, other = tmp_path / "one.db", tmp_path / "other.db"
    for path in (one, other):
        assert "complete: " in sweep(path)
    assert rows(one) == rows(other)


@pytest.mark.slow
def test_another_request_between_and_another_seed_begin_with_all_that_is_stored(tmp_path):
    path = tmp_path / "store.db"
    interrupted(path, 4, seed=1)
    first = {row[:4] for row in rows(path)}
    sweep(path, space="portfolio", strategy="adaptive")
    second = {row[:4] for row in rows(path)}
    assert first < second
    assert "complete: " in sweep(path, seed=1)
    problems = len(SIZES["rows"]) * len(SIZES["hidden"])
    times = [row[:4] for row in rows(path)]
    # Only the best config of a problem is timed again, once with each task.
    assert len({row[:3] for row in times}) == problems and len(times) - len(set(times)) < len(times) / 4
