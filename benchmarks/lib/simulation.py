"""A search over recorded times, with a clock that shows what it would have cost.

In: recorded spaces (one problem each: blocks of times, costs) and a search. Out: `Moment`s: the config that the search
holds to be the best of a problem, and when. Needs neither a device nor a store, and no operator: the launches of the
candidates are never looked at. What one machine can compile beside the timing is not credited: seconds add up.
"""

import random
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.benchmarks.lib.disturbances import Disturbed
from normtune.kernels.config import COPY, Config
from normtune.kernels.problem import Problem
from normtune.results.records import ROUNDS_PER_BLOCK, Coverage, Outcome
from normtune.tuner.plan.plan import Task
from normtune.tuner.search.paired import BURN_IN
from normtune.tuner.search.protocol import Batch, Race, Samples, Strategy
from normtune.tuner.search.rounds import timed


class Space(NamedTuple):
    """Recorded times of the configs of a problem, and their costs.

    Attributes:
        task: the problem with its candidates.
        blocks: of each config that was timed, ns, shape (blocks, `ROUNDS_PER_BLOCK`); as many blocks for all.
        overhead: seconds spent once on each candidate, whether it fails or not: compiling, checking.
        launches: timed launches of a config a round.
        fixed: seconds of a config a round besides them.
    """

    task: Task
    blocks: Mapping[Config, NDArray[np.int64]]
    overhead: Mapping[Config, float]
    launches: float = 1.0
    fixed: float = 0.0


class Moment(NamedTuple):
    """From `seconds` on the search holds `best` to be the best config of `problem`."""

    seconds: float
    problem: Problem
    best: Config


class Simulated(NamedTuple):
    """Result of a simulation.

    Attributes:
        moments: in the order of time.
        overhead: seconds spent on configs once.
        device: seconds of timing.
        timed: number of configs that were timed.
        measured: the tasks and their outcomes.
        ends: the second at which each of these ended.
        is_done: whether the search ended by itself.
    """

    moments: list[Moment]
    overhead: float
    device: float
    timed: int
    measured: list[tuple[Task, Mapping[Config, Outcome]]]
    ends: list[float]
    is_done: bool


class _OutOfTimeError(Exception):
    """The time is used up."""


def simulate(
    strategy: Strategy,
    spaces: Sequence[Space],
    seed: int,
    seconds: float,
    in_order: bool = False,
    device: Disturbed | None = None,
) -> Simulated:
    """Run a search until it ends or the time is used up.

    Args:
        strategy: makes the search.
        spaces: one for each problem.
        seed: of the rounds that are drawn.
        seconds: the time.
        in_order: whether the first round of a task is the first that was recorded, and so on; rounds are drawn at
            random otherwise, the same ones for all configs, as a sweep that interleaves them meets the device in any
            state.
        device: that others disturb; None for one that is as it was when it was recorded.
    """
    by_problem = {space.task.problem: space for space in spaces}
    clock = _Clock(seconds)
    moments: dict[Problem, Moment] = {}
    told: list[Moment] = []
    measured: list[tuple[Task, Mapping[Config, Outcome]]] = []
    ends: list[float] = []
    search = strategy([space.task for space in spaces], {})
    rounds: dict[Problem, int] = {}
    medians: dict[tuple[Problem, Config], float] = {}

    def hold(problem: Problem, samples: Mapping[Config, Samples]) -> None:
        """Hold the best of the samples, unless the best so far is faster and has no samples here."""
        best = _best(samples)
        if best is None:
            return
        now = moments.get(problem)
        medians[problem, best] = float(np.median(samples[best].nanoseconds))
        if now and now.best not in samples and medians[problem, now.best] <= medians[problem, best]:
            return
        if now is None or now.best != best:
            moments[problem] = Moment(clock.now, problem, best)
            told.append(moments[problem])

    def finished(is_done: bool) -> Simulated:
        return Simulated(told, clock.overhead, clock.now - clock.overhead, len(clock.begun), measured, ends, is_done)

    try:
        while (task := next(iter(search.ask()), None)) is not None:
            problem, space = task.problem, by_problem[task.problem]
            clock.begin(space, task)
            drawn = zlib.crc32(f"{problem} {rounds.get(problem, 0)}".encode(), seed)
            session = _Session(space, clock, drawn, in_order, device)
            alive = [config for config in task.configs if config in space.blocks]
            race = _watched(search.race(task), problem, hold)
            samples = timed(session, alive, race, rounds.get(problem, 0)) if alive else {}
            rounds[problem] = rounds.get(problem, 0) + session.drawn
            outcomes = {config: Outcome("compile_error", "recorded as failed") for config in task.configs}
            outcomes |= {
                config: Outcome("ok", "", values.rounds, values.nanoseconds) for config, values in samples.items()
            }
            measured.append((task, outcomes))
            ends.append(clock.now)
            search.tell(task, outcomes)
    except _OutOfTimeError:
        return finished(False)
    return finished(True)


def stored(
    found: Simulated, before: Mapping[Problem, Mapping[Config, Coverage]] = MappingProxyType({})
) -> dict[Problem, dict[Config, Coverage]]:
    """What a store has after a simulation, and had before."""
    known = {problem: dict(configs) for problem, configs in before.items()}
    for task, outcomes in found.measured:
        for config, one in outcomes.items():
            median = int(np.median(one.nanoseconds)) if len(one.nanoseconds) else None
            if config != COPY:
                known.setdefault(task.problem, {})[config] = Coverage(one.status, "", len(one.nanoseconds), median)
    return known


class _Clock:
    """The seconds so far, and the configs that were compiled."""

    def __init__(self, most: float) -> None:
        self.now = self.overhead = 0.0
        self.begun: set[tuple[Problem, Config]] = set()
        self._most = most

    def begin(self, space: Space, task: Task) -> None:
        """Compile the configs of a task that are new."""
        for config in task.configs:
            if (task.problem, config) not in self.begun:
                self.begun.add((task.problem, config))
                self.overhead += space.overhead[config]
                self.spend(space.overhead[config])

    def spend(self, seconds: float) -> None:
        self.now += seconds
        if self.now > self._most:
            raise _OutOfTimeError


class _Session:
    """One task under replay: a `rounds.ProblemSession`."""

    def __init__(self, space: Space, clock: _Clock, seed: int, in_order: bool, device: Disturbed | None = None) -> None:
        self._device = device
        self._space = space
        self._clock = clock
        self._random = random.Random(seed)
        self._in_order = in_order
        self._count = next(iter(space.blocks.values())).size
        self.drawn = 0

    def block(self, configs: Sequence[Config]) -> dict[Config, list[int]]:
        """Recorded rounds, drawn by themselves: of eight blocks one would be drawn twice in a row too often."""
        first = range(self.drawn * ROUNDS_PER_BLOCK, (self.drawn + 1) * ROUNDS_PER_BLOCK)
        rounds = [number % self._count if self._in_order else self._random.randrange(self._count) for number in first]
        self.drawn += 1
        space = self._space
        times = {
            config: space.blocks[config].reshape(-1)[rounds].tolist() for config in configs if config in space.blocks
        }
        if self._device:
            times, seconds = self._device.block(times, space.launches, space.fixed)
            self._clock.spend(seconds)
            return times
        taken = sum(map(sum, times.values())) * 1e-9 * space.launches
        self._clock.spend(taken + space.fixed * ROUNDS_PER_BLOCK * len(times))
        return times


def _watched(
    race: Race, problem: Problem, hold: Callable[[Problem, Mapping[Config, Samples]], None]
) -> Generator[Batch, Mapping[Config, Samples], None]:
    """A race whose samples are looked at after each batch."""
    batch = next(race)
    while True:
        samples = yield batch
        hold(problem, samples)
        try:
            batch = race.send(samples)
        except StopIteration:
            return


def _best(samples: Mapping[Config, Samples]) -> Config | None:
    """The config with the least mean log time of those with most rounds, burn-in left out."""
    most = max((len(values.rounds) for config, values in samples.items() if config != COPY), default=0)
    means = {
        config: float(np.log(values.nanoseconds[BURN_IN * ROUNDS_PER_BLOCK :] or values.nanoseconds).mean())
        for config, values in samples.items()
        if config != COPY and len(values.rounds) == most
    }
    return min(means, key=lambda config: (means[config], config), default=None)
