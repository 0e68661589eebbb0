"""A sweep that is stopped and goes on stores what one without a stop stores, through commands on the replayed H200."""

import sqlite3

import pytest

from normtune.tests.commands import succeed
from normtune.tuner.sweep import prepare
from normtune.tuner.sweep.api import run
from normtune.tuner.sweep.progress import Silent
from normtune.tuner.sweep.request import Request

SIZES = {"rows": (1, 64, 1024, 16384), "hidden": (512, 1024, 4096, 8192)}
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


def sweep(path, *more, strategy="plane"):
    sizes = [word for name, values in SIZES.items() for word in (f"--{name}", ",".join(map(str, values)))]
    asked = ["sweep", "--device", "replay:nvidia-h200", "--operator", "rms_norm_forward", *sizes]
    return succeed(*asked, "--strategy", strategy, "--store", path, *more)


def interrupted(path, tasks, **options):
    request = Request(
        operators=["rms_norm_forward"], device="replay:nvidia-h200", strategy="plane", store=path, **SIZES, **options
    )
    with pytest.raises(KeyboardInterrupt):
        run(request, Interrupting(tasks))


@pytest.mark.slow
def test_a_search_that_goes_on_after_many_measurements_says_so_before(tmp_path, monkeypatch):
    path = tmp_path / "parts.db"
    interrupted(path, 9)
    monkeypatch.setattr(prepare, "BRIEF", 0.0)
    told = []
    request = Request(
        operators=["rms_norm_forward"], device="replay:nvidia-h200", strategy="plane", store=path, dry_run=True, **SIZES
    )
    run(request, Silent(), announce=told.append)
    (line,) = [line for line in told if "goes on" in line]
    assert line.startswith(f"the search goes on after its {len(rows(path))} stored measurements, which takes about ")


@pytest.mark.slow
def test_a_sweep_that_is_stopped_stores_in_the_end_what_one_without_a_stop_stores(tmp_path):
    """After a sweep of some configs: interrupted twice, once in its first task, then ended by its budget."""
    whole, parts = tmp_path / "whole.db", tmp_path / "parts.db"
    for path in (whole, parts):
        sweep(path, "--space", "portfolio", strategy="adaptive")
    before = len(rows(whole))
    assert "complete: " in sweep(whole)
    assert len(rows(whole)) > before > 0
    interrupted(parts, 1)
    interrupted(parts, 9)
    stopped = rows(parts)
    assert before < len(stopped) < len(rows(whole))
    for seconds in range(3, 60):
        told = sweep(parts, "--budget", f"{seconds}s")
        if len(rows(parts)) > len(stopped):
            break
    assert "complete: " in told or "complete: " in sweep(parts)
    assert rows(parts) == rows(whole)
    assert "nothing to do: " in sweep(parts)


@pytest.mark.slow
def test_another_request_between_and_another_seed_begin_with_all_that_is_stored(tmp_path):
    path = tmp_path / "store.db"
    interrupted(path, 4, seed=1)
    first = {row[:4] for row in rows(path)}
    sweep(path, "--space", "portfolio", strategy="adaptive")
    second = {row[:4] for row in rows(path)}
    assert first < second
    assert "complete: " in sweep(path, "--seed", "1")
    problems = len(SIZES["rows"]) * len(SIZES["hidden"])
    times = [row[:4] for row in rows(path)]
    # Only the best config of a problem is timed again, once with each task.
    assert len({row[:3] for row in times}) == problems and len(times) - len(set(times)) < len(times) / 4
