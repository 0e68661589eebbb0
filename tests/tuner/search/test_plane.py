"""The search `plane`: what it times, what it learns from nearby shapes, and when it stops."""

import itertools
import math
from collections import Counter
from functools import partial
from random import Random
from time import sleep
from typing import Annotated

import numpy as np
import pytest

from normtune.benchmarks.lib.landscapes import Landscape
from normtune.benchmarks.lib.simulation import Space, simulate
from normtune.kernels.call import ImplementationLaunch
from normtune.kernels.config import COPY, Config
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.tablefile import locate
from normtune.kernels.target import target_for
from normtune.results.records import Coverage, Device, Outcome
from normtune.tests.commands import printed_sweep
from normtune.tuner.plan.plan import SPACES as SPACE_NAMES
from normtune.tuner.plan.plan import Task, plan, warm_start
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.search.paired import chained
from normtune.tuner.search.plane import shape as shape_module
from normtune.tuner.search.plane.group import LEAST, NEIGHBOURS, point
from normtune.tuner.search.plane.plane import Plane, short_race
from normtune.tuner.search.plane.shape import MOST
from normtune.tuner.search.protocol import Samples
from normtune.tuner.search.registry import search
from normtune.tuner.sweep.incumbents import always


class Tile(Config):
    layout: Annotated[str, "order."]
    width: Annotated[int, "columns."]
    height: Annotated[int, "rows."]


TILES = [
    Tile(layout, 1 << width, 1 << height) for layout in ("row", "column") for width in range(9) for height in range(9)
]
BROKEN = {Tile("row", 256, 1 << height) for height in range(9)}
SHAPES = [(1 << rows, 1 << hidden) for rows in range(0, 18, 3) for hidden in range(6, 15)]


def slowness(tile, problem):
    """The best width grows with hidden, the best height with rows; where it lies no two shapes agree quite."""
    width = 0.5 * math.log2(problem.hidden) - 0.1 * math.log2(problem.rows)
    away = abs(math.log2(tile.width) - width) + 0.7 * abs(math.log2(tile.height) - 0.45 * math.log2(problem.rows))
    return 1 + 0.15 * away**1.5 + 0.1 * (tile.layout == "column") * (problem.hidden < 2048)


def space(rows, hidden):
    problem = Problem.of("made_up", rows, hidden, "float32")
    random = np.random.default_rng(rows + hidden)
    blocks = {
        tile: (1e5 * slowness(tile, problem) * np.exp(random.normal(0, 0.002, (8, 2)))).astype(np.int64)
        for tile in TILES
        if tile not in BROKEN
    }
    task = Task(problem, tuple(Candidate(tile, ImplementationLaunch("", rows // tile.height + 1)) for tile in TILES))
    return Space(task, blocks, dict.fromkeys(TILES, 0.0))


SPACES = [space(*shape) for shape in SHAPES]
FEW = SPACES[::5]


@pytest.fixture(scope="module")
def found():
    return simulate(Plane, SPACES, 0, math.inf)


@pytest.fixture(scope="module")
def found_of_few():
    return simulate(Plane, FEW, 0, math.inf)


def measured_in(found):
    """Times of each configs at each problem, as (problem, config) to medians; None where it failed."""
    return {
        (task.problem, config): float(np.median(outcome.nanoseconds)) if len(outcome.nanoseconds) else None
        for task, outcomes in found.measured
        for config, outcome in outcomes.items()
        if config != COPY
    }


@pytest.mark.slow
def test_it_finds_the_best_config_of_each_shape_and_times_few(found):
    assert found.is_done
    cells = measured_in(found)
    assert len(cells) < 0.25 * len(SPACES) * len(TILES)
    losses = []
    for one in SPACES:
        problem = one.task.problem
        own = [config for name, config in cells if name == problem and config not in BROKEN]
        assert len(own) >= LEAST // 2
        best = min(slowness(tile, problem) for tile in TILES if tile not in BROKEN)
        losses.append(min(slowness(config, problem) for config in own) / best - 1)
    assert np.mean(losses) < 0.005 and max(losses) < 0.05


@pytest.mark.slow
def test_it_finds_more_than_as_many_random_configs(found):
    random = np.random.default_rng(1)
    counts = Counter(problem for problem, _ in measured_in(found))
    good = [tile for tile in TILES if tile not in BROKEN]
    drawn = []
    for one in SPACES:
        problem = one.task.problem
        chosen = random.choice(len(good), counts[problem], replace=False)
        best = min(slowness(tile, problem) for tile in good)
        drawn.append(min(slowness(good[index], problem) for index in chosen) / best - 1)
    assert np.mean(drawn) > 0.02


def test_no_config_is_timed_twice_but_to_compare_with_and_none_after_it_failed(found_of_few):
    found = found_of_few
    times = Counter((task.problem, config) for task, _ in found.measured for config in task.configs)
    assert all(count == 1 for (_, config), count in times.items() if config in BROKEN)
    tasks = Counter(task.problem for task, _ in found.measured)
    repeated = Counter(problem for (problem, _), count in times.items() for _ in range(count - 1))
    assert all(repeated[problem] <= tasks[problem] - 1 for problem in tasks)
    assert max(len(task.configs) for task, _ in found.measured) <= MOST + 1


def test_the_best_configs_of_the_nearest_shapes_are_timed_at_each(found_of_few):
    cells = {cell: time for cell, time in measured_in(found_of_few).items() if time is not None}
    problems = [one.task.problem for one in FEW]
    for problem in problems:
        near = sorted(
            (one for one in problems if one != problem), key=lambda one: (math.dist(point(problem), point(one)), one)
        )
        for other in near[:NEIGHBOURS]:
            best = min(slowness(config, other) for name, config in cells if name == other)
            ties = [config for name, config in cells if name == other and slowness(config, other) < 1.02 * best]
            assert any((problem, config) in cells for config in ties)


def stored(*runs):
    """Coverage of what was measured, as a store has it."""
    rest = dict.fromkeys(Coverage._fields)
    known = {}
    for found in runs:
        for task, outcomes in found.measured:
            for config, outcome in outcomes.items():
                median = int(np.median(outcome.nanoseconds)) if len(outcome.nanoseconds) else None
                entry = {**rest, "status": outcome.status, "samples": len(outcome.nanoseconds), "median_ns": median}
                known.setdefault(task.problem, {})[config] = Coverage(**entry)
    return known


def resumed(known, spaces=SPACES, seconds=math.inf, seed=1):
    return simulate(lambda tasks, _: Plane(tasks, known), spaces, seed, seconds)


def mean_loss(known, spaces=SPACES):
    """Of the best config of each shape, where none of them was measured as if it were 10 times as slow as the best."""
    losses = []
    for one in spaces:
        times = {tile: slowness(tile, one.task.problem) for tile in one.blocks}
        tried = [times[tile] for tile in known.get(one.task.problem, {}) if tile in times]
        losses.append(math.log(min(tried, default=10.0) / min(times.values())))
    return np.mean(losses)


def cells_of(known):
    return sum(config != COPY for configs in known.values() for config in configs)


@pytest.mark.slow
def test_what_is_stored_is_not_looked_for_again(found):
    tasks, known = [one.task for one in SPACES], stored(found)
    left = Plane(tasks, known).pending()
    # What was measured later says more of the first shapes.
    assert len(left) < 0.3 * len(tasks)
    more = measured_in(resumed(known)).keys() - measured_in(found).keys()
    assert len(more) < 0.1 * cells_of(known)
    half = {problem: known[problem] for problem in list(known)[: len(known) // 2]}
    assert set(known) - set(half) <= {task.problem for task in Plane(tasks, half).pending()}
    few = {problem: dict(list(configs.items())[: LEAST // 2]) for problem, configs in known.items()}
    again = Plane(tasks, few)
    assert len(again.pending()) == len(tasks)
    asked = next(iter(again.ask()))
    free = [config for config in asked.configs if config not in few[asked.problem]]
    assert free and len(asked.configs) - len(free) <= 1


@pytest.mark.slow
def test_a_quick_sweep_ends_no_problem(found):
    some = dict.fromkeys(TILES[::14])
    spaces = [one._replace(task=one.task._replace(candidates=one.task.candidates[::14])) for one in SPACES]
    quick = stored(simulate(Adaptive, spaces, 0, math.inf))
    assert all(some.keys() == configs.keys() - {COPY} for configs in quick.values()) and len(some) >= LEAST
    assert mean_loss(quick) > 0.05
    more = resumed(quick)
    assert len({task.problem for task, _ in more.measured}) == len(SPACES)
    assert mean_loss(stored(more)) < mean_loss(stored(found)) + 0.003


def failing(one):
    """A space in which 70 % of the configs fail, those of large tiles and some others."""
    draw = np.random.default_rng(1).random(len(TILES))
    kept = [tile for tile, number in zip(TILES, draw, strict=True) if tile.width * tile.height < 2048 and number < 0.45]
    return one._replace(blocks={tile: one.blocks[tile] for tile in kept if tile in one.blocks})


@pytest.mark.slow
def test_configs_that_fail_say_where_others_fail():
    spaces = [failing(one) for one in SPACES[::2]]
    share = 1 - len(spaces[0].blocks) / len(TILES)
    assert 0.65 < share < 0.75
    found = simulate(Plane, spaces, 0, math.inf)
    cells = measured_in(found)
    assert np.mean([time is None for time in cells.values()]) < 0.85 * share
    random, counts = np.random.default_rng(2), Counter(problem for problem, _ in cells)
    drawn = {p: dict.fromkeys(TILES[i] for i in random.permutation(len(TILES))[:n]) for p, n in counts.items()}
    assert mean_loss(stored(found), spaces) < 0.4 * mean_loss(drawn, spaces)


@pytest.mark.parametrize(
    ("kind", "says_nothing"),
    [
        ("needle", True),
        pytest.param("rough", False, marks=pytest.mark.slow),
        pytest.param("rugged", False, marks=pytest.mark.slow),
    ],
)
def test_it_says_where_knobs_do_not_tell_which_configs_are_fast(kind, says_nothing):
    searches = []

    def search(tasks, known):
        searches.append(Plane(tasks, known, seed=1))
        return searches[0]

    simulate(search, Landscape(kind, 2000, 4, 1).spaces(), 1, math.inf)
    assert searches[0].report() == {"unguided": ["made_up float32"] if says_nothing else []}


@pytest.mark.slow
def test_where_all_of_a_kind_failed_at_other_shapes_few_of_it_are_tried():
    """At a shape without any time, after thirty random configs of other shapes, of which each wide tile failed."""
    works = {tile for tile in TILES if tile.width <= 16}
    spaces = [one._replace(blocks={tile: one.blocks[tile] for tile in works if tile in one.blocks}) for one in SPACES]
    asked = []
    for seed in range(6):
        draw = Random(seed)
        some = [
            (one, one.task._replace(candidates=tuple(sorted(draw.sample(one.task.candidates, 30)))))
            for one in spaces[:-1:4]
        ]
        known = stored(simulate(Adaptive, [one._replace(task=task) for one, task in some], 0, math.inf))
        search = Plane([one.task for one in spaces[::4]] + [spaces[-1].task], known)
        new = search._shapes[spaces[-1].task.problem]
        assert new.task.problem not in known
        new.look()
        asked += new.next().configs
    assert len(works) < 0.6 * len(TILES) and sum(config in works for config in asked) >= 0.8 * len(asked) >= 24


def test_what_was_skipped_is_no_failure():
    search = Plane([one.task for one in SPACES[:2]], {})
    task = next(iter(search.ask()))
    search.tell(task, {})
    assert not search._shapes[task.problem].measured
    assert all(other.problem != task.problem for other in search.ask())


def test_a_problem_whose_configs_all_fail_ends_and_so_does_one_that_is_skipped():
    tasks = [one.task for one in SPACES[:3]]
    search = Plane(tasks, {})
    asked = 0
    while (task := next(iter(search.ask()), None)) is not None:
        asked += 1
        race = search.race(task)
        next(race)
        if task.problem == tasks[0].problem:
            search.tell(task, {})
        else:
            search.tell(task, {config: Outcome("crashed", "made up") for config in task.configs})
        assert asked < 50
    assert not search.pending() and asked > 3


@pytest.mark.slow
def test_the_same_seed_times_the_same(found):
    again = simulate(Plane, SPACES, 0, math.inf)
    assert [task.configs for task, _ in again.measured] == [task.configs for task, _ in found.measured]


@pytest.mark.parametrize("most", [5, 40])
def test_no_more_configs_are_timed_than_asked_for(most):
    spaces = SPACES[::18]
    found = simulate(partial(Plane, most=most, until=0.0), spaces, 0, math.inf)
    assert [*Counter(problem for problem, _ in measured_in(found)).values()] == [most] * len(spaces)


@pytest.mark.slow
def test_with_a_bound_of_the_loss_configs_are_timed_until_it_is_reached():
    spaces = SPACES[::6]
    cells = {until: stored(simulate(partial(Plane, until=until), spaces, 0, math.inf)) for until in (0.2, 0.02, 0.002)}
    assert cells_of(cells[0.2]) < cells_of(cells[0.02]) < cells_of(cells[0.002]) < 0.8 * len(spaces) * len(TILES)
    assert mean_loss(cells[0.2], spaces) > mean_loss(cells[0.002], spaces) <= 0.002


def test_with_nothing_to_stop_it_all_configs_are_timed():
    found = simulate(partial(Plane, until=0.0), SPACES[:1], 0, math.inf)
    assert found.is_done and set(measured_in(found)) == {(s.task.problem, t) for s in SPACES[:1] for t in TILES}


@pytest.mark.slow
def test_a_replayed_sweep_ends_and_is_complete(tmp_path):
    def run():
        sizes = {"rows": [64, 1024, 16384], "hidden": [512, 1024, 4096]}
        asked = {"device": "replay:nvidia-h200", "strategy": "plane", "operators": "rms_norm_forward"}
        return printed_sweep(**asked, **sizes, store=tmp_path / "store.db")

    assert "complete: " in run()
    assert "nothing to do: all 9 problems are measured" in run()


@pytest.mark.parametrize("kind", [Plane, search("optuna:TPESampler")])
def test_the_advised_configs_are_measured_first(kind):
    advised = {one.task.problem: [TILES[40], TILES[100]] for one in SPACES[:4]}
    begun = kind([one.task for one in SPACES[:8]], {}, advice=advised)
    asked = {}
    while (task := next(iter(begun.ask()), None)) is not None:
        asked[task.problem] = task.configs
        begun.tell(task, {})
    assert sum(problem in advised for problem in asked) >= 2
    assert all({TILES[40], TILES[100]} <= {*configs} for problem, configs in asked.items() if problem in advised)


@pytest.mark.long
@pytest.mark.parametrize("kind", [Plane, search("optuna:TPESampler")])
def test_a_finished_search_goes_on_for_a_config_that_came_into_use(kind):
    spaces = SPACES[:3]
    known = stored(simulate(kind, spaces, 0, math.inf))
    new = [tile for tile in TILES if not any(tile in configs for configs in known.values())][-1]
    advised = {one.task.problem: [new] for one in spaces}
    more = stored(simulate(lambda tasks, _: kind(tasks, known, advice=advised), spaces, 0, math.inf))
    assert all(new in more[one.task.problem] for one in spaces)


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "sms"), [("NVIDIA H200", 132), ("NVIDIA L40S", 142)])
def test_what_a_call_would_launch_and_the_default_are_candidates_in_every_space(gpu, sms, monkeypatch, tmp_path):
    monkeypatch.delenv("NORMTUNE_TABLE", raising=False)
    device = Device(gpu, "sm_90", sms, 60 << 20, 1 << 37, "GPU-0", "1.0")
    target, spec = target_for("sm_90", sms), operator("rms_norm_backward")
    problems = [spec.problem(rows, 4096, "bfloat16") for rows in (1, 4096)]
    tables = locate.select(gpu, "sm_90", sms)
    wanted = always(problems, device, target)
    for space in SPACE_NAMES:
        made = plan(problems, space, target, wanted)
        for problem, candidates in made.tasks:
            used = tables.answer(problem.key)(problem.rows, 4096)
            expected = [spec.launch(one, problem, target) for one in (used, spec.default_config(problem, target))]
            launches = {candidate.launch: candidate.config for candidate in candidates}
            assert warm_start(made, wanted, target)[problem] == [launches[one] for one in dict.fromkeys(expected)]
            assert [*candidates] == sorted(candidates) and len(launches) == len(candidates)
    (tmp_path / "broken.py").write_text("no table")
    monkeypatch.setenv("NORMTUNE_TABLE", str(tmp_path / "broken.py"))
    defaults = {problem: [spec.default_config(problem, target)] for problem in problems}
    assert always(problems, device, target) == defaults
    of_h200 = always(problems, device, target, "nvidia-h200")
    assert all(set(defaults[problem]) < set(of_h200[problem]) for problem in problems)


@pytest.mark.slow
def test_what_is_asked_for_does_not_depend_on_how_long_a_choice_takes(monkeypatch):
    pauses, choose = itertools.cycle((0.0, 0.004, 0.02, 0.001, 0.0)), shape_module.choose

    def slow(*arguments):
        sleep(next(pauses))
        return choose(*arguments)

    def measured():
        return [(task, task.configs) for task, _ in simulate(Plane, SPACES[:12], 0, math.inf).measured]

    at_once = measured()
    monkeypatch.setattr(shape_module, "choose", slow)
    assert measured() == at_once


def test_a_slow_first_block_of_the_best_makes_no_other_config_the_best():
    configs, first = TILES[:4], dict(zip(TILES, (300, 100, 110, 190), strict=False))
    race = short_race(configs, configs[0], with_copy=False)
    batch = next(race)
    assert batch.configs == configs and batch.blocks == 1
    samples = {config: Samples([0, 1], [first[config]] * 2) for config in configs}
    batch = race.send(samples)
    assert batch.configs == configs[:3] and batch.blocks == 2
    later = {configs[0]: 80, configs[1]: 100, configs[2]: 110}
    for config, time in later.items():
        samples[config] = Samples([*range(6)], [first[config]] * 2 + [time] * 4)
    with pytest.raises(StopIteration):  # none is close
        race.send(samples)
    outcomes = {config: Outcome("ok", "", one.rounds, one.nanoseconds) for config, one in samples.items()}
    logs = chained({configs[0]: 1.0}, outcomes)
    assert min(logs, key=logs.get) == configs[0] and logs[configs[1]] == pytest.approx(1.0 + math.log(100 / 80))


def test_slow_rounds_of_the_best_make_no_other_config_the_best():
    one = SPACES[0]
    search = Plane([one.task], {})
    ordered = [config for config in one.task.configs if config not in BROKEN][:6]
    shape = search._shapes[one.task.problem]

    def told(times):
        outcomes = {config: Outcome("ok", "", list(range(len(own))), own) for config, own in times.items()}
        shape.learn(Task(one.task.problem, tuple(one.task.among(times))), outcomes)

    told({ordered[0]: [100] * 6, ordered[1]: [120] * 6})
    told({ordered[0]: [100, 100, 150, 100, 100, 150], ordered[2]: [115] * 6, ordered[3]: [90] * 6})
    assert shape.best == ordered[3]
    assert shape.logs[ordered[3]] == pytest.approx(math.log(90))
    assert shape.logs[ordered[2]] == pytest.approx(math.log(115))


def test_the_copy_is_timed_with_the_first_task_of_a_problem():
    tasks = simulate(Plane, SPACES[:3], 0, math.inf).measured
    first = {task.problem: outcomes for task, outcomes in reversed(tasks)}
    assert len(tasks) > len(first)
    search = Plane([one.task for one in SPACES[:3]], {})
    while (task := next(iter(search.ask()), None)) is not None:
        batch = next(search.race(task))
        outcomes = next(found for of, found in tasks if of == task)
        assert batch.with_copy == (outcomes is first[task.problem])
        search.tell(task, outcomes)
