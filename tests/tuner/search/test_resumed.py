"""A sweep that was stopped and goes on measures what it measures without a stop."""

import math
from functools import partial

import numpy as np
import pytest

from normtune.benchmarks.lib.simulation import simulate, stored
from normtune.kernels.config import COPY
from normtune.results.records import Measurement, Outcome
from normtune.tests.tuner.search.test_plane import SPACES, TILES
from normtune.tuner.plan.resume import Begun
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.search.plane.plane import Plane
from normtune.tuner.search.resumed import resumed
from normtune.tuner.search.sampling.sampled import TPE

FEW = SPACES[::5]
# A quick sweep of twelve configs at every second shape, before the search.
QUICK = stored(
    simulate(
        Adaptive,
        [one._replace(task=one.task._replace(candidates=one.task.candidates[::14])) for one in FEW[::2]],
        0,
        1e9,
    )
)


def run(strategy, seconds=math.inf):
    """A simulation in which a task takes the same times whenever it is measured."""
    return simulate(strategy, FEW, 0, seconds, in_order=True)


def log_of(*parts):
    """What a store has of simulations, in its order."""
    return [
        Measurement(task.problem, config, "", "", one.status, one.reason, *map(np.array, (one.rounds, one.nanoseconds)))
        for part in parts
        for task, outcomes in part.measured
        for config, one in sorted(outcomes.items())
    ]


def going_on(strategy, known, *parts):
    """The strategy after the measurements of these parts."""
    return lambda tasks, _: resumed(tasks, known, strategy, lambda names: Begun(known, log_of(*parts)))


def cells(*parts):
    """The tasks, with their configs and times, in order."""
    return [
        (task.problem, [(config, tuple(one.nanoseconds)) for config, one in sorted(outcomes.items())])
        for part in parts
        for task, outcomes in part.measured
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inner", "known"), [(Plane, {}), (partial(Plane, seed=3, most=9), QUICK), (TPE, {}), (partial(TPE, seed=3), QUICK)]
)
def test_a_search_that_is_stopped_goes_on_as_without_a_stop(inner, known):
    def begin(tasks, _, known=known):
        search = inner(tasks, known)
        ask = search.ask
        search.ask = lambda seconds: iter([*ask(seconds)])  # as a sweep, which compiles for all tasks
        return search

    whole = run(begin)
    assert whole.is_done and len(whole.measured) > 10
    for stops in ([0.02], [0.5], [0.97], [0.1] * 9):
        parts = []
        for share in [*stops, math.inf]:
            strategy = going_on(lambda tasks, known: begin(tasks, None, known), known, *parts)
            parts.append(run(strategy, share * whole.ends[-1]))
        assert parts[-1].is_done and parts[-1].measured
        assert cells(*parts) == cells(whole)


def test_tasks_that_were_measured_in_another_order_than_asked_for_are_told_in_that_order():
    def measured(search, count):
        """Always the last of the tasks."""
        done = []
        for _ in range(count):
            search.left()
            search.wait()
            task = [*search.ask(math.inf)][-1]
            random = np.random.default_rng(len(task.configs))
            times = {config: random.integers(1000, 2000, 4).tolist() for config in [*task.configs, COPY]}
            outcomes = {config: Outcome("ok", "", [0, 1, 2, 3], own) for config, own in times.items()}
            search.race(task).close()
            search.tell(task, outcomes)
            done.append((task, outcomes))
        return done

    tasks = [one.task for one in FEW]
    whole = Plane(tasks, {})
    done = measured(whole, 24)
    assert done[0][0].problem != next(iter(Plane(tasks, {}).ask(math.inf))).problem
    log = [
        Measurement(task.problem, config, "", "", "ok", "", np.array(one.rounds), np.array(one.nanoseconds))
        for task, outcomes in done
        for config, one in sorted(outcomes.items())
    ]
    again = resumed(tasks, {}, Plane, lambda names: Begun({}, log))
    assert measured(again, 10) == measured(whole, 10)


def test_measurements_that_the_search_would_not_ask_for_are_known_before_it_begins():
    whole = run(Plane, 0.3)
    known, log = stored(whole), log_of(whole)
    foreign = next(
        config for config in TILES if (log[0].problem, config) not in {(row.problem, row.config) for row in log}
    )
    log[0] = log[0]._replace(config=foreign)
    search = resumed([one.task for one in FEW], known, Plane, lambda names: Begun({}, log))
    told = {problem: shape.tried for problem, shape in search._shapes.items() if shape.tried}
    assert told == {problem: len({*configs} - {COPY}) for problem, configs in known.items()}
