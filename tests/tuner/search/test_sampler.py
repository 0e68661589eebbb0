"""Searches by samplers of Optuna: what they propose and what they learn."""

import math
from functools import partial
from importlib.util import find_spec
from typing import Annotated

import numpy as np
import pytest

from normtune.benchmarks.lib.simulation import Space, simulate
from normtune.errors import UsageError
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.results.records import Coverage
from normtune.tests.commands import one_line
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.search.registry import search as search_of
from normtune.tuner.search.sampler import PROPOSALS


class Tile(Config):
    layout: Annotated[str, "order."]
    width: Annotated[int, "columns."]
    height: Annotated[int, "rows."]
    fixed: Annotated[int, "the same for all."] = 1


TPE = search_of("optuna:TPESampler")


# Illegal where width and height are both large: the sampler must learn that.
TILES = [
    Tile(layout, 1 << width, height)
    for layout in ("row", "column")
    for width in range(8)
    for height in range(8)
    if width + height < 10
]
BROKEN = Tile("row", 1, 0)


def slowness(tile, peak):
    return 1 + 0.1 * abs(math.log2(tile.width) - peak) + 0.05 * abs(tile.height - 3) + 0.2 * (tile.layout == "column")


def space(peak=5, rows=64, noise=0.001):
    random = np.random.default_rng(0)
    blocks = {}
    for tile in TILES:
        if tile != BROKEN:
            times = 1e5 * slowness(tile, peak) * np.exp(random.normal(0, noise, (8, 2)))
            blocks[tile] = times.astype(np.int64)
    task = Task(Problem.of("made_up", rows, 64, "float32"), tuple(Candidate(tile, None) for tile in TILES))
    return Space(task, blocks, dict.fromkeys(TILES, 1.0))


class Watching:
    """Keeps the tasks that were begun."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        Watching.tasks, Watching.last = [], self

    def race(self, task):
        self.tasks.append(task)
        return super().race(task)


class Watched(Watching, TPE):
    pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "most"),
    [
        (TPE, 30),
        (search_of("optuna:NSGAIISampler"), 30),
        (search_of("optuna:QMCSampler"), 30),
        pytest.param(search_of("optuna:GPSampler"), 14, marks=pytest.mark.long),
    ],
)
def test_a_search_is_repeated_by_its_seed_and_times_no_config_twice_but_the_best(kind, most):
    class Kept(Watching, kind):
        pass

    found = []
    for seed in (1, 1, 2):
        result = simulate(partial(Kept, seed=seed, most=most), [space()], 0, math.inf)
        new = [config for task in Watching.tasks for config in task.configs]
        assert len(set(new)) == result.timed == most and result.is_done
        # Beside the proposals each task holds the best so far.
        assert len(new) - len(set(new)) <= len(Watching.tasks) - 1
        assert all(len(task.configs) <= PROPOSALS + 1 for task in Watching.tasks)
        found.append([task.configs for task in Watching.tasks])
    assert found[0] == found[1] != found[2]


@pytest.mark.slow
def test_tpe_finds_the_best_of_a_smooth_space_in_half_of_its_configs():
    ranks = sorted(TILES, key=lambda tile: slowness(tile, 5))
    for seed in range(3):
        result = simulate(partial(TPE, seed=seed, most=50), [space()], seed, math.inf)
        assert result.moments[-1].best in ranks[:3]


def test_a_whole_small_space_is_measured_once_and_the_search_ends():
    whole, some = space(), TILES[::4]
    task = whole.task._replace(candidates=whole.task.candidates[::4])
    few = Space(task, {tile: whole.blocks[tile] for tile in some if tile != BROKEN}, whole.overhead)
    result = simulate(partial(TPE, most=10**9), [few], 0, math.inf)
    assert result.is_done and result.timed == len(some)
    assert result.moments[-1].best == min(some, key=lambda tile: slowness(tile, 5))


@pytest.mark.slow
def test_what_fails_is_illegal_or_was_timed_has_a_value_and_is_not_measured_again():
    simulate(partial(Watched, seed=3, most=60), [space()], 0, math.inf)
    (of_problem,) = Watching.last._studies.values()
    trials = [trial for trial in of_problem.study().get_trials() if trial.value is not None]
    illegal = [trial.value for trial in trials if trial.params["width"] + trial.params["height"] >= 10]
    assert len(illegal) >= 2 and min(illegal) > min(trial.value for trial in trials)
    assert len(trials) > 60 and len(of_problem.logs) == 60


def known(statuses):
    """Coverage of configs by their median times; None for a failure."""
    rest = dict.fromkeys(Coverage._fields)
    return {
        config: Coverage(**{**rest, "status": "ok" if median else "crashed", "samples": 6, "median_ns": median})
        for config, median in statuses.items()
    }


def test_problems_take_turns_and_each_has_its_own_best_beside_new_configs():
    tasks = [space(rows=rows).task for rows in (1, 64, 128, 4096)]
    search = TPE(tasks, {task.problem: known({TILES[n]: 100, TILES[9]: 200}) for n, task in enumerate(tasks) if n != 2})
    asked = {task.problem.rows: task.configs for task in search.ask()}
    assert [len(asked[rows]) for rows in (1, 64, 128, 4096)] == [PROPOSALS + 1, PROPOSALS + 1, PROPOSALS, PROPOSALS + 1]
    assert [TILES[n] in asked[rows] for n, rows in ((0, 1), (1, 64), (3, 4096))] == [True] * 3
    assert not any(TILES[9] in configs for rows, configs in asked.items() if rows != 128)
    simulate(Watched, [space(rows=rows) for rows in (1, 64, 128)], 0, math.inf)
    assert len({task.problem for task in Watching.tasks[:3]}) == 3


def test_what_the_store_knows_is_not_proposed_again():
    before = known({TILES[0]: None} | dict.fromkeys(TILES[1:20], 1000))
    task = space().task
    search = Watched([task], {task.problem: before}, most=24)
    assert [len(left.candidates) for left in search.pending()] == [4]
    (asked,) = search.ask()
    assert len(set(asked.configs) & set(before)) == 1 and len(asked.configs) == PROPOSALS + 1
    assert next(iter(search.ask())) == asked
    search.tell(asked, {})
    assert not search.pending() and not list(search.ask())
    assert not TPE([task], {task.problem: before}, most=20).pending()


@pytest.mark.parametrize("name", ["GridSampler", "BaseSampler", "BruteForceSampler", "nsgaii", "", "TPE"])
def test_a_sampler_that_optuna_lacks_or_that_needs_more_than_a_seed_is_refused_in_a_line(name):
    with one_line(UsageError, "GPSampler, NSGAIIISampler, NSGAIISampler, QMCSampler, RandomSampler, TPESampler"):
        search_of(f"optuna:{name}")


def test_a_sampler_without_its_package_is_refused_in_a_line():
    if find_spec("cmaes"):
        pytest.skip("cmaes is installed")
    with one_line(UsageError, "strategy optuna:CmaEsSampler needs a package that is not installed"):
        simulate(search_of("optuna:CmaEsSampler"), [space()], 0, math.inf)
