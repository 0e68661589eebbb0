"""The choice of the configs to measure next at one problem.

In: a `View` of the problem and the `Group` of its operator. Out: numbers of configs; the group is told what is expected
of them.

A choice is made among a pool of configs: those that differ in one knob from the best of this and of the nearest shapes,
recombinations of these, and random ones. Each place in a task goes to one of `WAYS`, in proportion to what configs
chosen in this way have gained (`group.Earned`). `model` takes those that lower the mean over draws of the best time
most, relative to their cost: a config costs more if no other shape needed its binary. The others take any of their
kind, so that the search goes on where the model is wrong. A second surrogate, of failures, says how probably a config
fails.

A problem ends when the next timing is not likely to gain enough.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from normtune.tuner.search.plane.features import Array, Candidates, Codes, Configs
from normtune.tuner.search.plane.group import LEAST, WAYS, Expectation, Group

# Measured configs of an operator before the surrogate is used.
BLIND = 4
# Cost of compiling a binary, in configs timed meanwhile on the 16 cores of an H200's host.
BINARY = 2.0
# Log ratio by which a timing has to lower the best time of its problem to be worth it: about the noise of a median.
WORTH = 0.0003
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
        free: whether each config of the group may be a candidate that was not measured, (configs,).
        best, near: numbers of the best configs here, the best first, and of those of the nearest problems.
        advised: numbers of configs to be measured first.
        measured: number of measured configs.
        room: most configs to choose.
        candidates: of the problem.
    """

    place: int
    seed: Sequence[int]
    free: NDArray[np.bool_]
    best: Sequence[int]
    near: Sequence[int]
    advised: Sequence[int]
    measured: int
    room: int
    candidates: Candidates


class Pool(NamedTuple):
    """The configs to choose from, and what is expected of them.

    Attributes:
        numbers: of the configs, ascending, (pool,).
        kinds: whether each is of a kind, by way, (pool,).
        mean, deviation, chances: expected log time and its deviation, and probability to fail, (pool,).
        hopefuls: indices in the pool of those whose times are drawn.
        times: draws of their log times, relative to the best one here; infinite where they fail, (draws, hopefuls).
    """

    numbers: Codes
    kinds: Mapping[str, NDArray[np.bool_]]
    mean: Array
    deviation: Array
    chances: Array
    hopefuls: Codes
    times: Array


def choose(view: View, group: Group) -> list[int]:
    """Numbers of the configs to measure next; none if no config is expected to gain enough."""
    random = np.random.default_rng(view.seed)
    if len(group.times) < BLIND or not view.free.any():
        return _blind(view, random)
    numbers, kinds = _numbers(view, group.configs, random)
    if not len(numbers):
        return []
    pool = _predicted(view, group, numbers, kinds, random)
    may_end = not (group.is_narrow or view.advised) and view.measured >= LEAST
    if may_end and np.maximum(-pool.times.min(axis=1), 0.0).mean() < (group.until or 0.0):
        return []
    return _selected(view, group, pool, random)


def _blind(view: View, random: Generator) -> list[int]:
    """Random configs, without anything known."""
    chosen = [*view.advised]
    for number in random.permutation(np.flatnonzero(view.free)).tolist():
        if len(chosen) >= view.room:
            break
        if number not in chosen and view.candidates.is_legal(number):
            chosen.append(number)
    return chosen


def _numbers(view: View, configs: Configs, random: Generator) -> tuple[Codes, dict[str, NDArray[np.bool_]]]:
    """Numbers of the configs to choose from, ascending, and whether each is of a kind, by way."""
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
    is_lazy = view.candidates.pool is not None
    if is_lazy:
        pool = np.concatenate([random.permutation(pool)[:MOST_LAUNCHES], parents[view.free[parents]]])
    pool = np.unique(np.concatenate([pool, np.array(view.advised, np.int64)]))
    if is_lazy:
        pool = pool[[view.candidates.is_legal(number) for number in pool.tolist()]]
    return pool, {way: np.isin(pool, numbers) for way, numbers in kinds.items()}


def _predicted(
    view: View, group: Group, numbers: Codes, kinds: Mapping[str, NDArray[np.bool_]], random: Generator
) -> Pool:
    """The configs with what is expected of them."""
    grids = view.candidates.grids(numbers)
    expected, chances = group.times.posterior(view.place, grids, numbers), group.chances(view.place, grids, numbers)
    hopes = expected.mean - HOPE * expected.deviation + NEVER * (chances > 0.9)
    hopefuls = np.sort(np.argsort(hopes, kind="stable")[:MOST_HOPEFULS])
    times = np.ascontiguousarray(expected.draws(hopefuls, DRAWS, random))
    times[(random.random((DRAWS, len(numbers))) < chances)[:, hopefuls]] = np.inf
    return Pool(numbers, kinds, expected.mean, expected.deviation, chances, hopefuls, times)


def _selected(view: View, group: Group, pool: Pool, random: Generator) -> list[int]:
    """The configs that are worth measuring, of which the group is told."""
    numbers, hopefuls, times = pool.numbers, pool.hopefuls, pool.times
    best_times = np.full(DRAWS, 0.0 if view.best else NEVER)
    slow = 1e-6 * np.minimum(times, _SLOW).mean(axis=0)  # between configs that gain in no draw
    binaries = view.candidates.binaries(numbers[hopefuls])
    costs = np.array([1.0 if binary in group.binaries else 1.0 + BINARY for binary in binaries])
    column = np.full(len(numbers), -1)
    column[hopefuls] = np.arange(len(hopefuls))
    available, works = np.ones(len(numbers), np.bool_), pool.chances < 0.5
    ways = random.choice(list(WAYS), max(view.room, len(view.advised)), p=group.earned.shares)
    expected: dict[int, Expectation] = {}
    for turn, way in enumerate(ways.tolist()):
        if not available.any():
            break
        gain = best_times.mean() - np.minimum(best_times[:, None], times).mean(axis=0)
        gain /= costs if view.best or expected else 1.0
        most = int(np.where(available[hopefuls], gain - slow, -np.inf).argmax())
        best = int(hopefuls[most])
        kind = np.flatnonzero(available & works & pool.kinds[way]) if way in pool.kinds else ()
        if turn < len(view.advised):
            best = int(np.searchsorted(numbers, view.advised[turn]))
        elif (
            not (group.is_narrow or group.until is not None)
            and view.measured + turn >= LEAST
            and group.earned.likely(gain[most], group.measured) < WORTH
        ):
            break
        elif len(kind):
            best = int(random.choice(kind))
        else:
            way = "model"
        number = int(numbers[best])
        expected[number] = Expectation(
            way, float(pool.mean[best]), float(pool.deviation[best]), number not in group.tried
        )
        if column[best] >= 0:
            best_times = np.minimum(best_times, times[:, column[best]])
        available[best] = False
        group.binaries.update(view.candidates.binaries(numbers[best : best + 1]))
    is_judged = bool(view.best) and view.measured >= LEAST
    group.expect(view.place, expected, float(-best_times.mean()) if is_judged else None)
    return [*expected]
