"""What the search `plane` knows of one operator, and its choice of the configs to measure next at one of its shapes.

In: the tasks of an operator's shapes, then the outcomes of configs; a `View` of a shape. Out: a `Proposal`.

A choice is made among a pool of configs: those that differ in one knob from the best of this and of the nearest shapes,
recombinations of these, and random ones. Each place in a task goes to one of `WAYS`, in proportion to what configs
chosen in this way have gained (`earned`). `model` takes those that lower the mean over draws of the best time most,
relative to their cost: a config costs more if no other shape needed its binary. The others take any of their kind, so
that the search goes on where the model is wrong. A second surrogate, of failures, says how probably a config fails.

A shape ends when the next timing is not likely to gain enough.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from random import Random
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from normtune.kernels.config import Config
from normtune.kernels.config_space import Drawn
from normtune.kernels.problem import Problem
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Pool
from normtune.tuner.search.earned import WAYS, Earned
from normtune.tuner.search.kernel import Array, Codes
from normtune.tuner.search.moves import Configs
from normtune.tuner.search.surrogate import Surrogate

# Cost of compiling a binary, in configs timed meanwhile on the 16 cores of an H200's host.
BINARY = 2.0
# Places of a task: one for so many measured configs of the problem, or for two shapes of the operator, which are timed
# while the binaries of others are compiled; their least and greatest number.
GROW, FEW, MOST = 6, 4, 12
# Measured configs of an operator before the surrogate is used, and of a problem before the search ends there.
BLIND, LEAST = 4, 6
# With fewer distinct configs tried, or a lesser share of all, no problem ends: a quick sweep of 12 configs at each
# shape says little of the others.
NARROW, NARROW_SHARE = 96, 0.25
DRAWS = 96
# Most candidates whose times are drawn: those with the least expected times less so many deviations.
DRAWN, HOPE = 200, 2.0
# Most configs among which the surrogate chooses if not among all, and how many of them are strangers and children.
POOL, STRANGERS, CHILDREN = 900, 300, 200
# Number of the best configs of a problem whose neighbours and children are in the pool; of those of a near problem.
PARENTS, NEAR_PARENTS = 6, 2
# Least number of neighbours of a parent, with more than one other knob if there are not so many.
AROUND = 30
# Most configs of an operator that are numbered, and most of a choice that are asked for launches not made yet.
MOST_CONFIGS, ASKED = 100_000, 150
# Log ratio to the mean of a shape that counts at most in what knobs explain.
_SPREAD = 1.0
# Log times at which a draw is cut off when configs without a gain are compared, and that of a problem without times.
_SLOW, _NEVER = 3.0, 100.0
# Number of programs that run at once, roughly: fewer take as long as one. Values of the logs of their number.
_AT_ONCE = 128
_WAVES = 0.25 * np.arange(49.0)
# Octaves of rows, of hidden, of the number of programs, that are as far as the range of a knob.
_OCTAVES = 8.0

# The candidate of a config's number; None if it is illegal, another one's if that has the same launch.
CandidateOf: TypeAlias = Callable[[int], Any]


class View(NamedTuple):
    """A problem when its next configs are chosen.

    Attributes:
        place: number of the problem in its group.
        seed: of the choice.
        free: whether each config of the group is a candidate that was not measured, (configs,); changed by the choice.
        own, near: numbers of the best configs here, the best first, and of those of the nearest problems.
        advised: numbers of configs to be measured first.
        tried: number of measured configs.
        room: most configs to choose.
        worth: least gain of a config, a log ratio.
        until: expected gain of all others at which a problem is done, a log ratio.
        candidate: of the number of a config; None if it is illegal.
        is_lazy: whether launches are made when they are asked for.
    """

    place: int
    seed: Sequence[int]
    free: NDArray[np.bool_]
    own: Sequence[int]
    near: Sequence[int]
    advised: Sequence[int]
    tried: int
    room: int
    worth: float
    until: float
    candidate: CandidateOf
    is_lazy: bool = False


class Proposal(NamedTuple):
    """Numbers of configs that are worth measuring, and the expected gain of the best unmeasured config, a log ratio."""

    numbers: list[int]
    missed: float


class _Chosen(NamedTuple):
    """By which way a config was chosen, what was expected of its log time, and whether it had none at any shape."""

    way: str
    mean: float
    deviation: float
    is_new: bool


class Group:
    """The problems of one operator, variant and dtype. Its methods are called by one thread at a time.

    Args:
        tasks: of the problems; their places are their numbers in this order. Of a space of more than `MOST_CONFIGS`
            configs as many are drawn.
        more: configs that belong to the group in any case.

    Attributes:
        configs: the configs of all problems.
    """

    def __init__(self, tasks: Sequence[Task], more: Iterable[Config] = ()) -> None:
        distinct = set(more)
        before: Sequence[Config] = ()
        for task in tasks:
            pool = task.candidates
            own = pool.space if isinstance(pool, Pool) and not isinstance(pool.space, Drawn) else task.configs
            distinct.update(pool.others if isinstance(pool, Pool) else ())
            if own is not before and own != before:
                distinct.update(own if len(own) <= MOST_CONFIGS else _drawn(own))
            before = own
        self.configs = Configs(distinct)
        axes = [[getattr(task.problem, axis) for task in tasks] for axis in ("rows", "hidden")]
        sizes = [np.unique(axis) for axis in axes]
        self._sizes = np.column_stack([np.searchsorted(one, axis) for one, axis in zip(sizes, axes, strict=True)])
        octaves = [*(np.log2(one.astype(np.float64)) for one in sizes), _WAVES]
        distances = [abs(one[:, None] - one) / _OCTAVES for one in octaves] + self.configs.distances
        self._times = Surrogate(distances, self._sizes)
        self._failures = Surrogate(distances, self._sizes, has_levels=False)
        self._any_failed = False
        self._closed: dict[int, NDArray[np.bool_]] = {}
        self._binaries: set[Any] = set()
        self._best = np.full(len(tasks), np.inf)
        self._chosen_as: dict[tuple[int, int], _Chosen] = {}
        self._levels = np.zeros((len(tasks), 2))
        self._promises: dict[int, float] = {}
        self.earned = Earned(len(tasks), LEAST)

    def learn(self, place: int, numbers: Codes, logs: Array, candidate: CandidateOf) -> None:
        """Learn new log times of configs at a problem; infinite ones failed."""
        with _one_thread():
            codes, fine = self._codes(place, numbers, candidate), np.isfinite(logs)
            before, promised = self._best[place], self._promises.pop(place, None)
            for number, log in zip(numbers.tolist(), logs.tolist(), strict=True):
                if (chosen := self._chosen_as.pop((place, number), None)) and np.isfinite(before):
                    self._compare(place, chosen, log)
            self._best[place] = logs.min(initial=before)
            if promised is not None:
                self.earned.gained(before - self._best[place], len(logs), promised)
            self._levels[place] += [logs[fine].sum(), fine.sum()]
            self._times.add(codes[fine], numbers[fine], place, logs[fine])
            self._failures.add(codes, numbers, place, np.where(fine, 0.0, 1.0))
            self._any_failed = self._any_failed or not fine.all()
            self._binaries.update(candidate(number).launch.binary for number in numbers)

    def gains(self, place: int, numbers: Codes, candidate: CandidateOf, seed: Sequence[int]) -> float:
        """Sum of the expected gains of configs over the best measured one, log ratios."""
        if self._is_blind:
            return 0.0
        with _one_thread():
            codes, indices = self._codes(place, numbers, candidate), np.arange(len(numbers))
            draws = self._times.posterior(codes, numbers, place).draws(indices, DRAWS, np.random.default_rng(seed))
            gains = np.maximum(-draws, 0.0).mean(axis=0) * (1.0 - self._chances(place, codes, numbers))
        return float(gains.sum())

    def choose(self, view: View) -> Proposal:
        """The configs to measure next; none if no config is expected to gain enough."""
        random = np.random.default_rng(view.seed)
        if self._is_blind:
            chosen = [*view.advised]
            for number in random.permutation(np.flatnonzero(view.free)).tolist():
                if len(chosen) >= view.room:
                    break
                if number not in chosen and _is_legal(view, number, self.configs):
                    chosen.append(number)
            return Proposal(chosen, _NEVER)
        with _one_thread():
            return self._chosen(view, random)

    @property
    def _is_blind(self) -> bool:
        return len(self._times) < BLIND

    def _compare(self, place: int, chosen: "_Chosen", log: float) -> None:
        """Compare a new log time with the best one before and with what was expected when it was chosen."""
        best, (total, count) = self._best[place], self._levels[place]
        self.earned.credit(chosen.way, max(0.0, best - log))
        if math.isfinite(log):
            error = float(self._times.bent(log - best)) - chosen.mean
            self.earned.checked(error / chosen.deviation)
            if chosen.is_new and count >= LEAST:
                away = log - total / count
                self.earned.explained(*np.clip([away - error, away], -_SPREAD, _SPREAD).tolist())

    def _chances(self, place: int, codes: Codes, numbers: Codes) -> Array:
        """Probabilities that configs fail, (configs,)."""
        if not self._any_failed:
            return np.zeros(len(numbers))
        return self._failures.posterior(codes, numbers, place).mean.clip(0.0, 0.99)

    def _chosen(self, view: View, random: Generator) -> Proposal:
        pool, kinds = self._pool(view, random)
        if not len(pool):
            return Proposal([], 0.0)
        codes = self._codes(view.place, pool, view.candidate)
        expected, chances = self._times.posterior(codes, pool, view.place), self._chances(view.place, codes, pool)
        hopes = expected.mean - HOPE * expected.deviation + _NEVER * (chances > 0.9)
        drawn = np.sort(np.argsort(hopes, kind="stable")[:DRAWN])
        times = np.full((DRAWS, len(pool)), np.inf)
        times[:, drawn] = expected.draws(drawn, DRAWS, random)
        times[random.random(times.shape) < chances] = np.inf
        best_times = np.full(DRAWS, 0.0 if view.own else _NEVER)
        missed = float(np.maximum(-times.min(axis=1), 0.0).mean())
        is_narrow = self._times.distinct < min(NARROW, NARROW_SHARE * len(self.configs.all))
        may_end, measured = not is_narrow and not view.advised, len(self._failures)
        if missed < view.until and view.tried >= LEAST and may_end:
            return Proposal([], missed)
        slow = 1e-6 * np.minimum(times, _SLOW).mean(axis=0)  # between configs that gain in no draw
        binaries = [view.candidate(number).launch.binary for number in pool.tolist()]
        costs = np.array([1.0 if binary in self._binaries else 1.0 + BINARY for binary in binaries])
        left, works = np.ones(len(pool), np.bool_), chances < 0.5
        ways = random.choice(list(WAYS), max(view.room, len(view.advised)), p=self.earned.shares)
        chosen: list[int] = []
        for turn, way in enumerate(ways.tolist()):
            if not left.any():
                break
            gain = best_times.mean() - np.minimum(best_times[:, None], times).mean(axis=0)
            gain /= costs if view.own or chosen else 1.0
            best = int(np.where(left, gain - slow, -np.inf).argmax())
            kind = np.flatnonzero(left & works & kinds[way]) if way in kinds else ()
            if turn < len(view.advised):
                best = int(np.searchsorted(pool, view.advised[turn]))
            elif not is_narrow and view.tried + turn >= LEAST and self.earned.likely(gain[best], measured) < view.worth:
                break
            elif len(kind):
                best = int(random.choice(kind))
            else:
                way = "model"
            is_new = not self._times.has(int(pool[best]))
            self._chosen_as[view.place, int(pool[best])] = _Chosen(
                way, float(expected.mean[best]), float(expected.deviation[best]), is_new
            )
            best_times, left[best] = np.minimum(best_times, times[:, best]), False
            self._binaries.add(binaries[best])
            chosen.append(int(pool[best]))
        if view.own and view.tried >= LEAST:
            self._promises[view.place] = float(-best_times.mean())
        return Proposal(chosen, missed)

    def _pool(self, view: View, random: Generator) -> tuple[Codes, dict[str, NDArray[np.bool_]]]:
        """Numbers of the configs to choose from, ascending, and of which kind they are, by way."""
        closed = self._closed.setdefault(view.place, np.zeros(len(view.free), np.bool_))
        view.free[closed] = False
        free = np.flatnonzero(view.free)
        parents = np.array([*view.own, *view.near], np.int64)
        around = [self.configs.near(parent, AROUND) for parent in parents.tolist()]
        kinds = {
            "neighbour": np.concatenate([parents[:0], *around]),
            "child": self.configs.children(parents, CHILDREN, random) if len(parents) else parents,
            "stranger": random.permutation(free)[:STRANGERS],
        }
        pool = free
        if len(free) > POOL:
            pool = np.unique(np.concatenate([*kinds.values(), parents]))
            pool = pool[view.free[pool]]
        if view.is_lazy:  # a launch takes 0.5 ms
            pool = np.concatenate([random.permutation(pool)[:ASKED], parents[view.free[parents]]])
        pool = np.unique(np.concatenate([pool, np.array(view.advised, np.int64)]))
        if view.is_lazy:
            legal = np.array([_is_legal(view, number, self.configs) for number in pool.tolist()], np.bool_)
            closed[pool[~legal]] = True
            pool = pool[legal]
        return pool, {way: np.isin(pool, numbers) for way, numbers in kinds.items()}

    def _codes(self, place: int, numbers: Codes, candidate: CandidateOf) -> Codes:
        """Codes of sizes, number of programs and knobs, (configs, axes)."""
        grids = np.array([candidate(number).launch.grid for number in numbers.tolist()], np.float64)
        waves = np.rint(np.log2(1 + grids / _AT_ONCE) / _WAVES[1]).astype(np.int64).clip(0, len(_WAVES) - 1)
        sizes = np.tile(self._sizes[place], (len(numbers), 1))
        return np.concatenate([sizes, waves[:, None], self.configs.codes[numbers]], axis=1)


def distance(left: Problem, right: Problem) -> float:
    """Distance of two shapes: a step of hidden counts as much as three of rows."""
    return math.hypot(math.log2(left.rows / right.rows), 3 * math.log2(left.hidden / right.hidden))


def _is_legal(view: View, number: int, configs: Configs) -> bool:
    """Whether a config is a candidate; of several with equal launches one is."""
    candidate = view.candidate(number)
    return candidate is not None and candidate.config == configs.all[number]


def _drawn(configs: Sequence[Config]) -> list[Config]:
    return [configs[place] for place in Random(0).sample(range(len(configs)), MOST_CONFIGS)]


@cache
def _libraries() -> ThreadpoolController:
    """The loaded BLAS; searching for it takes a fifth of the time of a choice."""
    return ThreadpoolController()


def _one_thread() -> Any:
    """Keeps BLAS to one thread: the other cores are compiling."""
    return _libraries().limit(limits=1)
