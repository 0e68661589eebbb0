"""The choice of the configs to measure next at one shape, in two parts: a prediction, and a selection.

In: a `View` of the shape and the `Moment` of its operator. Out: a `Prediction`, which takes nearly all of the time and
depends on nothing else; then a `Proposal`, which also depends on what was selected at other shapes before.

A choice is made among a pool of configs: those that differ in one knob from the best of this and of the nearest shapes,
recombinations of these, and random ones. Each place in a task goes to one of `WAYS`, in proportion to what configs
chosen in this way have gained (`earned`). `model` takes those that lower the mean over draws of the best time most,
relative to their cost: a config costs more if no other shape needed its binary. The others take any of their kind, so
that the search goes on where the model is wrong. A second surrogate, of failures, says how probably a config fails.

A shape ends when the next timing is not likely to gain enough.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from normtune.tuner.search.plane.earned import WAYS, Earned
from normtune.tuner.search.plane.launches import CandidateOf, Launches
from normtune.tuner.search.plane.moves import Array, Codes, Configs
from normtune.tuner.search.plane.surrogate import Learned

# Cost of compiling a binary, in configs timed meanwhile on the 16 cores of an H200's host.
BINARY = 2.0
# Measured configs of a problem before the search ends there.
LEAST = 6
# Log ratio by which a timing has to lower the best time of its problem to be worth it: about the noise of a median.
WORTH = 0.0003
# With fewer distinct configs tried, or a lesser share of all, no problem ends: a sweep of 16 configs at each
# shape says little of the others.
NARROW, NARROW_SHARE = 96, 0.25
DRAWS = 96
# Most candidates whose times are drawn: those with the least expected times less so many deviations.
MOST_HOPEFULS, HOPE = 200, 2.0
# Most configs among which the surrogate chooses if not among all, and how many of them are strangers and children.
POOL, STRANGERS, CHILDREN = 900, 300, 200
# Least number of neighbours of a parent, with more than one other knob if there are not so many.
AROUND = 30
# Most of a choice that are asked for launches not made yet: a launch takes 0.5 ms.
MOST_LAUNCHES = 150
# Log times at which a draw is cut off when configs without a gain are compared, and that of a problem without times.
_SLOW, NEVER = 3.0, 100.0


class View(NamedTuple):
    """A problem when its next configs are chosen.

    Attributes:
        place: number of the problem in its group.
        seed: of the choice.
        free: whether each config of the group is a candidate that was not measured, (configs,); changed by the choice.
        closed: whether it is known to be none, (configs,); the choice adds some.
        best, near: numbers of the best configs here, the best first, and of those of the nearest problems.
        advised: numbers of configs to be measured first.
        measured: number of measured configs.
        room: most configs to choose.
        until: expected gain of all others at which a problem is done, a log ratio; None where no config is `WORTH` it.
        candidate: of the number of a config; None if it is illegal.
        launches: of the candidates.
        is_lazy: whether launches are made when they are asked for.
    """

    place: int
    seed: Sequence[int]
    free: NDArray[np.bool_]
    closed: NDArray[np.bool_]
    best: Sequence[int]
    near: Sequence[int]
    advised: Sequence[int]
    measured: int
    room: int
    until: float | None
    candidate: CandidateOf
    launches: Launches
    is_lazy: bool = False

    def is_legal(self, number: int, configs: Configs) -> bool:
        """Whether a config is a candidate; of several with equal launches one is."""
        candidate = self.candidate(number)
        return candidate is not None and candidate.config == configs.all[number]


class Moment(NamedTuple):
    """What was known of an operator when a choice began.

    Attributes:
        configs: of the operator.
        times: the surrogate of log times.
        failures: that of failures, 1 for each; None if no config failed.
        measured: number of measurements, without those before the search if they were few.
    """

    configs: Configs
    times: Learned
    failures: Learned | None
    measured: int

    @property
    def is_narrow(self) -> bool:
        """Whether too few configs were tried for any problem to end."""
        count = np.count_nonzero(np.bincount(self.times.points.configs))
        return bool(count < min(NARROW, NARROW_SHARE * len(self.configs.all)))

    def chances(self, place: int, grids: Codes, numbers: Codes) -> Array:
        """Probabilities that configs fail, (configs,)."""
        if self.failures is None:
            return np.zeros(len(numbers))
        return self.failures.posterior(grids, numbers, place).mean.clip(0.0, 0.99)


class Expectation(NamedTuple):
    """By which way a config was chosen, what was expected of its log time, and whether it had none at any shape."""

    way: str
    mean: float
    deviation: float
    is_new: bool


class Prediction(NamedTuple):
    """Configs to choose from, and what is expected of them.

    Attributes:
        random: the generator of the choice.
        pool: numbers of the configs, ascending.
        kinds: whether each is of a kind, by way.
        mean, deviation, chances: expected log time and its deviation, and probability to fail, (pool,).
        hopefuls: indices in `pool` of those whose times are drawn.
        times: draws of their log times, relative to the best one here; infinite where they fail, (draws, hopefuls).
        binaries: numbers of the binaries of these.
    """

    random: Generator
    pool: Codes
    kinds: Mapping[str, NDArray[np.bool_]]
    mean: Array
    deviation: Array
    chances: Array
    hopefuls: Codes
    times: Array
    binaries: Sequence[int]

    @property
    def gain(self) -> float:
        """Expected gain of the best config, a log ratio."""
        return float(np.maximum(-self.times.min(axis=1), 0.0).mean())


class Proposal(NamedTuple):
    """Numbers of configs that are worth measuring, and what is expected.

    Attributes:
        numbers: of the configs; none if no config is expected to gain enough.
        expected: of each of the configs.
        gain: of all of them, a log ratio; None before the problem may end.
    """

    numbers: list[int]
    expected: Sequence[Expectation] = ()
    gain: float | None = None


def blind(view: View, configs: Configs) -> Proposal:
    """Random configs, without anything known."""
    chosen = [*view.advised]
    for number in np.random.default_rng(view.seed).permutation(np.flatnonzero(view.free)).tolist():
        if len(chosen) >= view.room:
            break
        if number not in chosen and view.is_legal(number, configs):
            chosen.append(number)
    return Proposal(chosen)


def predicted(view: View, moment: Moment) -> Prediction | None:
    """What is expected at a shape; None without a config to choose."""
    random = np.random.default_rng(view.seed)
    pool, kinds = _pool(view, moment.configs, random)
    if not len(pool):
        return None
    grids = view.launches.grids(pool)
    expected, chances = moment.times.posterior(grids, pool, view.place), moment.chances(view.place, grids, pool)
    hopes = expected.mean - HOPE * expected.deviation + NEVER * (chances > 0.9)
    hopefuls = np.sort(np.argsort(hopes, kind="stable")[:MOST_HOPEFULS])
    times = np.ascontiguousarray(expected.draws(hopefuls, DRAWS, random))
    times[(random.random((DRAWS, len(pool))) < chances)[:, hopefuls]] = np.inf
    binaries = view.launches.binaries(pool[hopefuls])
    return Prediction(random, pool, kinds, expected.mean, expected.deviation, chances, hopefuls, times, binaries)


def selected(view: View, moment: Moment, prediction: Prediction | None, earned: Earned, binaries: set[int]) -> Proposal:
    """The configs that are worth measuring; adds to the numbers of binaries that some shape needs."""
    if prediction is None:
        return Proposal([])
    random, pool, kinds, mean, deviation, chances, hopefuls, times, of_hopefuls = prediction
    is_narrow = moment.is_narrow
    if prediction.gain < (view.until or 0.0) and view.measured >= LEAST and not (is_narrow or view.advised):
        return Proposal([])
    best_times = np.full(DRAWS, 0.0 if view.best else NEVER)
    slow = 1e-6 * np.minimum(times, _SLOW).mean(axis=0)  # between configs that gain in no draw
    costs = np.array([1.0 if binary in binaries else 1.0 + BINARY for binary in of_hopefuls])
    column = np.full(len(pool), -1)
    column[hopefuls] = np.arange(len(hopefuls))
    available, works = np.ones(len(pool), np.bool_), chances < 0.5
    ways = random.choice(list(WAYS), max(view.room, len(view.advised)), p=earned.shares)
    chosen: list[int] = []
    expected: list[Expectation] = []
    for turn, way in enumerate(ways.tolist()):
        if not available.any():
            break
        gain = best_times.mean() - np.minimum(best_times[:, None], times).mean(axis=0)
        gain /= costs if view.best or chosen else 1.0
        most = int(np.where(available[hopefuls], gain - slow, -np.inf).argmax())
        best = int(hopefuls[most])
        kind = np.flatnonzero(available & works & kinds[way]) if way in kinds else ()
        if turn < len(view.advised):
            best = int(np.searchsorted(pool, view.advised[turn]))
        elif (
            not (is_narrow or view.until is not None)
            and view.measured + turn >= LEAST
            and earned.likely(gain[most], moment.measured) < WORTH
        ):
            break
        elif len(kind):
            best = int(random.choice(kind))
        else:
            way = "model"
        number = int(pool[best])
        is_new = not (moment.times.points.configs == number).any()
        expected.append(Expectation(way, float(mean[best]), float(deviation[best]), is_new))
        if column[best] >= 0:
            best_times = np.minimum(best_times, times[:, column[best]])
        available[best] = False
        binaries.update(view.launches.binaries(pool[best : best + 1]))
        chosen.append(number)
    is_judged = bool(view.best) and view.measured >= LEAST
    return Proposal(chosen, expected, float(-best_times.mean()) if is_judged else None)


def _pool(view: View, configs: Configs, random: Generator) -> tuple[Codes, dict[str, NDArray[np.bool_]]]:
    """Numbers of the configs to choose from, ascending, and of which kind they are, by way."""
    view.free[view.closed] = False
    free = np.flatnonzero(view.free)
    parents = np.array([*view.best, *view.near], np.int64)
    around = [configs.near(parent, AROUND) for parent in parents.tolist()]
    kinds = {
        "neighbour": np.concatenate([parents[:0], *around]),
        "child": configs.children(parents, CHILDREN, random) if len(parents) else parents,
        "stranger": random.permutation(free)[:STRANGERS],
    }
    pool = free
    if len(free) > POOL:
        pool = np.unique(np.concatenate([*kinds.values(), parents]))
        pool = pool[view.free[pool]]
    if view.is_lazy:
        pool = np.concatenate([random.permutation(pool)[:MOST_LAUNCHES], parents[view.free[parents]]])
    pool = np.unique(np.concatenate([pool, np.array(view.advised, np.int64)]))
    if view.is_lazy:
        legal = np.array([view.is_legal(number, configs) for number in pool.tolist()], np.bool_)
        view.closed[pool[~legal]] = True
        pool = pool[legal]
    return pool, {way: np.isin(pool, numbers) for way, numbers in kinds.items()}
