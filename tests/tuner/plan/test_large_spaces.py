"""Plans of spaces with too many configs to ask each for its launch."""

import math
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Annotated

import numpy as np
import pytest

from normtune.kernels.config import COPY, Config, Implementation
from normtune.kernels.config_space import KnobProduct
from normtune.kernels.operator import IllegalConfigError, OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.target import TARGETS
from normtune.results.records import SEARCHED, Coverage, Outcome
from normtune.tuner.plan import plan as module
from normtune.tuner.plan.plan import plan, warm_start
from normtune.tuner.plan.pool import SUBSET_SIZE, Pool
from normtune.tuner.plan.portfolio import CONFIGS
from normtune.tuner.search.registry import search
from normtune.tuner.search.rounds import timed
from normtune.tuner.sweep import run_writer
from normtune.tuner.sweep.report import pruned_lines

H200 = TARGETS["sm_90"]
VALUES = {
    "order": ("column", "row", "snake"),
    "width": tuple(1 << power for power in range(14)),
    "height": tuple(1 << power for power in range(10)),
    "depth": tuple(range(1, 21)),
    "unused": tuple(range(6)),
}
SHAPES = [(1 << power, 64 << octave) for power in range(10) for octave in range(10)]


class Tile(Config):
    order: Annotated[str, "order."]
    width: Annotated[int, "columns."]
    height: Annotated[int, "rows."]
    depth: Annotated[int, "steps."]
    unused: Annotated[int, "no part of a launch, from 3 on."]


@dataclass(frozen=True)
class Launch:
    binary: tuple
    grid: int
    workspace: int = 0


@dataclass
class Asked:
    """How often the functions of the operator were asked."""

    of: Counter = field(default_factory=Counter)

    def resolve(self, config, problem, target, alignment=None):
        self.of["launch"] += 1
        if config.width * config.height > 1 << 16:
            raise IllegalConfigError(f"a tile of {config.width * config.height} elements")
        return Launch((*config[:4], min(config.unused, 3)), -(-problem.rows // config.height))

    def leaves_out(self, config, problem, target):
        self.of["leaves_out"] += 1
        return config.height > 4 * problem.rows


def made(monkeypatch, space, **more):
    """A spec of `large`, known under its name, and the counts of its calls."""
    asked = Asked()
    spec = OperatorSpec(
        name="large",
        modes=(),
        config=Tile,
        dtypes=("float32",),
        max_hidden=1 << 20,
        buffers=lambda problem: (
            problem.buffer("x", "rows,hidden", "input"),
            problem.buffer("y", "rows,hidden", "output"),
        ),
        space=space,
        resolve=asked.resolve,
        default_config=lambda problem, target: Tile("row", 64, 1, 1, 0),
        kernel_calls=f"{__name__}:calls",
        reference_module=__name__,
        leaves_out=asked.leaves_out,
        **more,
    )
    monkeypatch.setattr(module, "operator", lambda name: spec)
    monkeypatch.setattr(module, "MOST_PAIRS", 10_000)
    return spec, asked.of


PRODUCT = KnobProduct(Tile, VALUES)


@pytest.fixture
def large(monkeypatch):
    return made(monkeypatch, lambda *_: PRODUCT)


def problems(spec, shapes=SHAPES):
    return [spec.problem(*shape, "float32") for shape in shapes]


def slowness(problem, tile):
    """Nanoseconds; each launch has a place, so that equal launches have equal times."""
    away = abs(math.log2(tile.width) - 3 - math.log2(problem.hidden) / 4) + abs(math.log2(tile.height) - 2)
    return 1e5 * math.exp(0.1 * away + 0.02 * abs(tile.depth - 5) + 0.05 * (tile.order != "row"))


class Session:
    """Times of one problem."""

    def __init__(self, problem, random):
        self._problem, self._random = problem, random

    def block(self, configs):
        return {
            config: [
                int(
                    (9e4 if config == COPY else slowness(self._problem, config))
                    * math.exp(self._random.normal(0, 0.003))
                )
                for _ in range(2)
            ]
            for config in configs
        }


def searched(chosen, stop=math.inf):
    """Measure what a search asks for, at most `stop` tasks; the tasks."""
    random, tasks = np.random.default_rng(0), []
    while len(tasks) < stop and (task := next(iter(chosen.ask()), None)):
        samples = timed(Session(task.problem, random), task.configs, chosen.race(task))
        chosen.tell(task, {config: Outcome("ok", "", one.rounds, one.nanoseconds) for config, one in samples.items()})
        tasks.append(task)
    return tasks


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plane", "optuna:TPESampler"])
def test_50_400_configs_at_100_shapes_are_planned_and_searched_with_few_of_them_asked(large, name):
    spec, asked = large
    wanted = problems(spec)
    assert len(PRODUCT) == 50_400 and len(wanted) == 100
    always = {problem: [spec.default_config(problem, H200)] for problem in wanted}
    chosen = plan(wanted, "full", H200, always, is_sampled=True)
    advice = warm_start(chosen, always, H200)
    assert asked["launch"] == 100 and advice == always and not chosen.is_empty
    chosen_search = search(name)(chosen.tasks, {}, advice=advice, seed=1)
    # Those that the search chooses among; none of the five million others.
    tasks = searched(chosen_search)
    assert asked["launch"] <= 100 * 2 * SUBSET_SIZE and not chosen_search.pending()
    assert {task.problem for task in tasks} == set(wanted)
    assert run_writer.searched(chosen)[SEARCHED] == {"large float32": {"pairs": 100 * 50_400}}
    for problem in wanted:
        launches = {}
        for task in tasks:
            if task.problem == problem:
                for candidate in task.candidates:
                    assert launches.setdefault(candidate.launch, candidate.config) == candidate.config


@pytest.mark.slow
def test_what_a_search_finds_in_a_large_space_is_close_to_the_best_of_a_thousand(large):
    spec, _ = large
    wanted = problems(spec, SHAPES[::33])
    chosen = plan(wanted, "full", H200, is_sampled=True)
    tasks = searched(search("plane")(chosen.tasks, {}, seed=0))
    random = Random(5)
    for problem in wanted:
        best = min(slowness(problem, config) for task in tasks if task.problem == problem for config in task.configs)
        thousand = Pool(spec, problem, H200, PRODUCT).draw(SUBSET_SIZE, random)
        ranked = sorted(slowness(problem, candidate.config) for candidate in thousand)
        assert best <= 1.02 * ranked[SUBSET_SIZE // 100]


def test_problems_of_one_operator_get_the_same_random_configs(large):
    spec, _ = large
    chosen = plan(problems(spec, SHAPES[70::3]), "full", H200, is_sampled=True)
    first, *others = ({candidate.config for candidate in task.subset((), 3).candidates} for task in chosen.tasks)
    assert len(first) >= SUBSET_SIZE and all(len(first & other) > 0.9 * SUBSET_SIZE for other in others)
    assert {candidate.config for candidate in chosen.tasks[0].subset((), 4).candidates} != first


@pytest.mark.slow
def test_a_plan_of_a_large_space_is_the_same_as_a_small_one_where_all_of_it_is_asked(large):
    spec, _ = large
    wanted = [spec.problem(8, 64, "float32")]
    always = {wanted[0]: [Tile("row", 3, 3, 3, 3), Tile("row", 64, 1, 1, 0)]}
    whole = plan(wanted, "full", H200, always)
    (task,), (reasons,) = whole.tasks, [whole.pruned]
    assert not whole.pools and Tile("row", 3, 3, 3, 3) in task.configs
    legal = {(o, w, h) for o, w, h, *_ in PRODUCT if w * h <= 1 << 16 and h <= 32}
    assert len(task.candidates) == len(legal) * 20 * 4 + 1
    assert reasons["same launch as another config"] == len(legal) * 20 * 2
    pooled = plan(wanted, "full", H200, always, is_sampled=True)
    assert [pool.size for pool in pooled.pools] == [50_400]
    assert {c.launch for c in pooled.tasks[0].candidates} == {c.launch for c in task.candidates}
    assert pooled.cells() == whole.cells()


def test_a_large_space_of_lists_is_shared_by_the_problems(monkeypatch):
    some = [*PRODUCT][::12]
    spec, _ = made(monkeypatch, lambda *_: some[::-1])
    chosen = plan(problems(spec, SHAPES[:3]), "full", H200, is_sampled=True)
    first, *others = (pool.space for pool in chosen.pools)
    assert [*first] == some and all(other is first for other in others)


def test_only_configs_of_the_space_are_candidates_and_equal_launches_one(large):
    spec, _ = large
    pool = Pool(spec, spec.problem(2, 64, "float32"), H200, PRODUCT)
    assert pool.of(Tile("row", 3, 1, 1, 1)) is None  # no value of a knob
    assert pool.of(Tile("row", 1, 16, 1, 1)) is None  # left out at two rows
    assert pool.of(Tile("row", 1 << 13, 8, 1, 4)).config == Tile("row", 1 << 13, 8, 1, 4)
    assert pool.of(Tile("row", 1 << 13, 8, 1, 3)).config == Tile("row", 1 << 13, 8, 1, 4)
    assert pool.pruned == {"same launch as another config": 1} and pool.requested == 2
    (admitted,) = pool.admit([Tile("row", 3, 1, 1, 1)])
    assert pool.of(Tile("row", 3, 1, 1, 1)) == admitted


def test_implementations_stand_beside_what_is_drawn(monkeypatch):
    spec, _ = made(monkeypatch, lambda *_: PRODUCT, implementations={"other": math.sqrt})
    (task,) = plan(problems(spec)[:1], "full", H200, is_sampled=True).tasks
    assert Implementation("other") in task.subset().configs and task.size == 50_401


def test_the_lines_of_a_plan_say_that_most_configs_were_not_asked(large):
    spec, _ = large
    chosen = plan(problems(spec, SHAPES[::10]), "full", H200, is_sampled=True)
    searched(search("plane")(chosen.tasks, {}), stop=20)
    first, *others = pruned_lines(chosen)
    asked = sum(pool.requested for pool in chosen.pools)
    assert first.startswith(f"  {asked} of 504000 configs at 10 problems were resolved to a launch")
    assert "how many of the others are illegal is unknown" in first
    assert any("illegal: a tile of elements" in line and f"of these {asked}" in line for line in others)


def test_the_portfolio_of_a_large_space_without_tables_is_drawn(large):
    spec, asked = large
    for is_sampled in (False, True):
        chosen = plan(problems(spec), "portfolio", H200, is_sampled=is_sampled)
        assert all(len(task.candidates) == CONFIGS for task in chosen.tasks) and len(chosen.pools) == 100
    assert asked["launch"] < 2 * 100 * 8 * CONFIGS


@pytest.mark.slow
def test_a_search_of_a_large_space_goes_on_with_what_was_measured(large):
    spec, _ = large
    wanted = problems(spec, SHAPES[::50])
    chosen = plan(wanted, "full", H200, is_sampled=True)
    tasks = searched(search("plane")(chosen.tasks, {}, seed=0), stop=8)
    known: dict[Problem, dict[Config, Coverage]] = {}
    for task in tasks:
        for config in task.configs:
            state = Coverage(**dict.fromkeys(Coverage._fields) | {"status": "ok", "samples": 6})
            median = round(slowness(task.problem, config))
            known.setdefault(task.problem, {})[config] = state._replace(median_ns=median)
    again = plan(wanted, "full", H200, is_sampled=True)
    rest = searched(search("plane")(again.tasks, known, seed=0))
    for task in rest:
        new = [config for config in task.configs if config not in known.get(task.problem, {})]
        assert new, "a task of nothing new"
