"""The audit of a search that leaves configs out."""

import math
from collections import Counter
from concurrent.futures import Future

import numpy as np
import pytest

from normtune.benchmarks.lib.simulation import simulate
from normtune.kernels.config import COPY
from normtune.results.records import SEARCHED
from normtune.tests.tuner.search.test_plane import BROKEN, SPACES, TILES, measured_in, slowness, stored
from normtune.tuner.search.audit import FOR_ONE, Audited
from normtune.tuner.search.plane.plane import Plane
from normtune.tuner.search.sampling.sampled import TPE

FEW = SPACES[::3]


def audited(spaces=FEW, inner=Plane, known=None, seed=0, seconds=math.inf):
    """A simulation, the search, and its report of the one function."""
    made = []

    def strategy(tasks, _):
        made.append(Audited(tasks, known or {}, inner, seed))
        return made[0]

    found = simulate(strategy, spaces, 0, seconds)
    return found, made[0], made[0].report()[SEARCHED]["made_up float32"]


@pytest.mark.slow
@pytest.mark.parametrize("inner", [Plane, TPE])
def test_one_timing_in_twenty_goes_to_a_random_config_that_was_left_out(inner):
    found, search, report = audited(inner=inner)
    assert found.is_done and not search.left()
    cells = measured_in(found)
    drawn = report["audited"]
    assert len(drawn) == (len(cells) - len(drawn)) // FOR_ONE and len(drawn) >= 10
    assert report["pairs"] == len(FEW) * len(TILES)
    texts = {config.to_json(): config for config in TILES}
    pairs = [((rows, hidden), texts[text]) for rows, hidden, text in drawn]
    assert len(set(pairs)) == len(pairs) and len({shape for shape, _ in pairs}) > len(FEW) / 2
    for shape, config in pairs:
        tasks = [t for t, _ in found.measured if t.problem.shape == shape and config in t.configs]
        # Beside the best config of the shape at that time.
        assert any(len(task.configs) == 2 for task in tasks) or config in BROKEN
    slow = [slowness(config, _problem(shape)) / _best(shape) for shape, config in pairs if config not in BROKEN]
    of_all = [slowness(tile, one.task.problem) / _best(one.task.problem[1:3]) for one in FEW for tile in one.blocks]
    assert np.median(slow) > 0.7 * np.median(of_all)


def _problem(shape):
    return next(one.task.problem for one in FEW if one.task.problem[1:3] == shape)


def _best(shape):
    return min(slowness(tile, _problem(shape)) for tile in TILES if tile not in BROKEN)


@pytest.mark.slow
def test_the_audit_is_of_this_sweep_and_another_seed_draws_others():
    found, _, first = audited()
    again, _, nothing = audited(known=stored(found))
    assert len(nothing["audited"]) <= sum(len(task.configs) for task, _ in again.measured) / FOR_ONE
    assert audited()[2] == first
    assert audited(seed=1)[2]["audited"] != first["audited"]
    half = audited(seconds=found.ends[len(found.ends) // 2])[2]
    assert 0 < len(half["audited"]) < len(first["audited"])


def done(value):
    """A future with a result."""
    found = Future()
    found.set_result(value)
    return found


@pytest.mark.slow
def test_a_model_that_is_surprised_expects_to_have_missed_more():
    _, search, report = audited()
    assert report["missed"] == round(1e6 * search._search.missed()["made_up float32"])
    plane = search._search
    before = plane.missed()["made_up float32"]
    assert 0 <= before < 0.05
    shape = next(iter(plane._shapes.values()))
    shape._audited.append((done(0.0), 0.2))  # an audited config that was 20 % faster, which was not expected
    assert plane.missed()["made_up float32"] > 3 * before
    shape._audited.append((done(2.0), 0.0))
    assert plane.missed()["made_up float32"] < before


def test_problems_that_a_budget_left_without_an_expectation_do_not_count(of_two_shapes):
    plane = Plane([one.task for one in FEW[:2]], stored(of_two_shapes[0]))
    assert plane.missed() == {}
    next(plane.ask(1.0), None)
    assert 0 <= plane.missed()["made_up float32"] < 0.5


@pytest.fixture(scope="module")
def of_two_shapes():
    """A simulation, and what was audited in it."""
    search = Audited([one.task for one in FEW[:2]], {}, Plane)
    found = simulate(lambda tasks, known: search, FEW[:2], 0, math.inf)
    return found, search.report()[SEARCHED]["made_up float32"]["audited"]


def test_a_drawn_config_is_timed_beside_the_best_of_its_shape(of_two_shapes):
    found, drawn = of_two_shapes
    assert drawn
    times = {}
    for task, outcomes in found.measured:
        so_far = times.setdefault(task.problem, {})
        others = [config for config in task.configs if [*task.problem.shape, config.to_json()] not in drawn]
        if len(others) < len(task.configs):
            (best,) = others
            assert so_far[best] < 1.02 * min(so_far.values())
        so_far |= {config: np.median(one.nanoseconds) for config, one in outcomes.items() if one.status == "ok"}
        so_far.pop(COPY, None)


def test_what_the_search_times_itself_is_audited_no_more(of_two_shapes):
    found, drawn = of_two_shapes
    counts = Counter((task.problem, config) for task, _ in found.measured for config in task.configs if config != COPY)
    for rows, hidden, text in drawn:
        assert [
            n for (problem, config), n in counts.items() if (*problem[1:3], config.to_json()) == (rows, hidden, text)
        ] == [1]
