"""Relative speed of the configs of one problem, from samples taken in rounds.

Estimator. A task is one visit of a run to a problem. Within it, each round times every config once, so a slow round
slows all of them. The reference of a round is the median log-time of the anchors: the configs timed in the most rounds
(all of them, unless some were dropped early). A config's level in one half of the blocks is the median, over the rounds
of that half, of its log-time minus the reference. Halves are the even and the odd blocks: noise is shared in a block.
Where other configs have more rounds, a half of fewer than three takes the median of all rounds of the config: one
sample moves no such level. Times of another program that tell no rounds have no reference: a config's level is the
median of its log-times.

Times of different tasks are never compared directly. A later task is aligned with the earlier ones in each half by the
configs that both timed, the copy among them: by the median of the differences of their levels, weighted by rounds. If
some were timed in three blocks of both, only these count, and such tasks join first. A task that shares nothing is left
out, and so is one that shares only configs of fewer blocks whose times disagree. The level of a config in several tasks
is the median over the rounds of all. Levels are int64 in log_ppm, millionths of a natural logarithm, and only their
differences have a meaning. All arithmetic is in integers: the median of an even number of values is the floor of the
mean of the middle two.
"""

import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.kernels.config import COPY, Config
from normtune.results.records import ROUNDS_PER_BLOCK
from normtune.results.statistics import halves


class LogSamples(NamedTuple):
    """Samples of one config in one run: round numbers, ascending, and log_ppm of nanoseconds."""

    rounds: NDArray[np.int32]
    logs: NDArray[np.int64]


class Relative(NamedTuple):
    """Times of a config relative to those of the others.

    Attributes:
        labels: int32, ascending within a task: a number for each round, unique across rounds, blocks and runs; see
            `block_of`. Configs with a common label were timed in the same round.
        logs: int64, of the same length: log-time minus the log-time of the round's reference, log_ppm.
    """

    labels: NDArray[np.int32]
    logs: NDArray[np.int64]


class Level(NamedTuple):
    """Relative log-time of a config.

    Attributes:
        even, odd: the level in the even and in the odd blocks, log_ppm.
        labels, logs: see `Relative`.
    """

    even: int
    odd: int
    labels: NDArray[np.int32]
    logs: NDArray[np.int64]


class Levels(NamedTuple):
    """Levels of the configs of one problem, and how the tasks were joined.

    Attributes:
        of: the level of each config, without the copy.
        joins: number of tasks aligned with earlier ones.
        doubtful: number of them whose configs disagree by over 10 %, or whose halves by over 5 %.
    """

    of: dict[Config, Level]
    joins: int
    doubtful: int


# Label = this factor x number of the run + round.
_LABELS = 1 << 16
# Blocks of a config that aligns two tasks, and rounds of a half with a level of its own, if any config has as many.
_LEAST_BLOCKS, _ENOUGH = 3, 3
# Most that the configs of a sound alignment are apart, and its halves: 10 % and 5 %, log_ppm.
_MOST_APART, MOST_BETWEEN_HALVES = 95_310, 48_790
_NO_LINK, _WEAK, _STRONG = range(3)


class _Link(NamedTuple):
    """The alignment of a task with earlier ones.

    Attributes:
        strength: `_NO_LINK`, or `_WEAK` by configs of fewer than `_LEAST_BLOCKS` blocks, or `_STRONG`.
        even, odd: what is added to the task's logs in the even and in the odd blocks, log_ppm.
        is_doubtful: see `Levels.doubtful`.
    """

    strength: int
    even: int
    odd: int
    is_doubtful: bool


def block_of(labels: NDArray[np.int32]) -> NDArray[np.int32]:
    """The block of each label; blocks of different runs have different numbers."""
    return labels // ROUNDS_PER_BLOCK


def levels(runs: Sequence[dict[Config, LogSamples]], unpaired: Collection[int] = ()) -> Levels:
    """Levels of the configs of one problem.

    `runs` has the samples of each run, the earliest first; `unpaired` the numbers of those that another program timed.
    """
    tasks = [
        _of_task(task, number, number in unpaired and not _tells_rounds(task))
        for number, samples in enumerate(runs)
        for task in _tasks(samples)
    ]
    # The task with the most configs leads, because it compares most of them directly.
    waiting = sorted((task for task in tasks if task), key=len, reverse=True)
    if not waiting:
        return Levels({}, joins=0, doubtful=0)
    merged, joins, doubtful = waiting.pop(0), 0, 0
    least = _least(tasks)
    while waiting:
        place, link = _nearest(merged, waiting, least)
        if link.strength == _NO_LINK:
            break
        _join(merged, waiting.pop(place), link)
        joins, doubtful = joins + 1, doubtful + link.is_doubtful
    merged.pop(COPY, None)
    return Levels(_levels(merged, least), joins, doubtful)


def unused(runs: Sequence[dict[Config, LogSamples]], level_of: dict[Config, Level]) -> int:
    """Number of (config, run) pairs without a part in the levels, because no common config links them to the others.

    `runs` is the argument of `levels`, and `level_of` its result.
    """
    measured = {config: [number for number, run in enumerate(runs) if config in run] for run in runs for config in run}
    measured.pop(COPY, None)
    used = {config: {*(level.labels // _LABELS).tolist()} for config, level in level_of.items()}
    return sum(number not in used.get(config, ()) for config, numbers in measured.items() for number in numbers)


def error(level: Level) -> float:
    """Standard error of a level, log_ppm, from the median deviation of the rounds in each half, for normal noise.

    The rounds of a block share their noise, so that they count once.
    """
    deviations = np.abs(level.logs - np.where(halves(level.labels), level.even, level.odd))
    of_one = 1.4826 * math.sqrt(math.pi / 2) * float(np.median(deviations))
    return of_one / math.sqrt(len(np.unique(block_of(level.labels))))


def _tasks(samples: dict[Config, LogSamples]) -> list[dict[Config, LogSamples]]:
    """The samples of each task of a run. A task begins when a config joins the rounds; none joins within a task."""
    every = np.unique(np.concatenate([times.rounds for times in samples.values()]))
    begins = {int(begin) for times in samples.values() for begin in _begins(times.rounds, every)}
    if len(begins) < 2:
        return [samples]
    ends = np.array(sorted(begins)[1:])
    tasks: list[dict[Config, LogSamples]] = [{} for _ in begins]
    for config, times in samples.items():
        places = [0, *np.searchsorted(times.rounds, ends).tolist(), len(times.rounds)]
        for task, (first, last) in zip(tasks, pairwise(places), strict=True):
            if first < last:
                task[config] = LogSamples(times.rounds[first:last], times.logs[first:last])
    return tasks


def _begins(rounds: NDArray[np.int32], every: NDArray[np.int32]) -> NDArray[np.int32]:
    """The rounds of a config that do not directly follow another of its rounds in the run's rounds `every`."""
    return rounds[np.diff(np.searchsorted(every, rounds), prepend=-2) != 1]


def _tells_rounds(samples: dict[Config, LogSamples]) -> bool:
    """Whether times have other rounds than those that they are given where a file has none: one of each block."""
    return any((times.rounds != ROUNDS_PER_BLOCK * np.arange(len(times.rounds))).any() for times in samples.values())


def _of_task(samples: dict[Config, LogSamples], number: int, is_unpaired: bool) -> dict[Config, Relative]:
    groups: dict[bytes, list[Config]] = {}
    for config, times in sorted(samples.items()):
        groups.setdefault(times.rounds.tobytes(), []).append(config)
    anchored = [[config for config in group if config != COPY] for group in groups.values()]
    anchored = [group for group in anchored if group]
    if not anchored:
        return {}
    anchors = max(anchored, key=lambda group: len(samples[group[0]].rounds))  # the first of the longest
    anchor_rounds = samples[anchors[0]].rounds
    reference = np.zeros(len(anchor_rounds), np.int64)
    if not is_unpaired:
        reference = median(np.stack([samples[config].logs for config in anchors]), axis=0)

    result = {}
    for group in groups.values():
        rounds = samples[group[0]].rounds
        index = np.minimum(np.searchsorted(anchor_rounds, rounds), len(anchor_rounds) - 1)
        shared = anchor_rounds[index] == rounds
        if not shared.any():
            continue
        labels = (number * _LABELS + rounds[shared] % _LABELS).astype(np.int32)
        relative = np.stack([samples[config].logs for config in group]) - reference[index]
        for config, logs in zip(group, relative[:, shared], strict=True):
            result[config] = Relative(labels, logs)
    return result


def _least(tasks: Sequence[dict[Config, Relative]]) -> int:
    """The least rounds of a half that has a level of its own: fewer than `_ENOUGH` if no config has as many."""
    fullest = max((times.labels for task in tasks for times in task.values()), key=len)
    even = int(halves(fullest).sum())
    return max(1, min(_ENOUGH, even, len(fullest) - even))


def _levels(times: dict[Config, Relative], least: int) -> dict[Config, Level]:
    together: dict[int, list[Config]] = {}
    for config, relative in times.items():
        together.setdefault(id(relative.labels), []).append(config)
    result = {}
    for group in together.values():
        labels = times[group[0]].labels
        even = halves(labels)
        rounds = (half if half.sum() >= least else np.ones(len(labels), np.bool_) for half in (even, ~even))
        logs = np.stack([times[config].logs for config in group])
        first, second = (median(logs[:, half], axis=1).tolist() for half in rounds)
        for config, low, high in zip(group, first, second, strict=True):
            result[config] = Level(low, high, *times[config])
    return {config: result[config] for config in times}


def _nearest(
    merged: dict[Config, Relative], waiting: Sequence[dict[Config, Relative]], least: int
) -> tuple[int, _Link]:
    """The task to join next, by its index: the first of those with the strongest alignment."""
    links = []
    for task in waiting:
        links.append(_link(merged, task, least))
        if links[-1].strength == _STRONG:
            break
    place = max(range(len(links)), key=lambda index: links[index].strength)
    return place, links[place]


def _link(merged: dict[Config, Relative], task: dict[Config, Relative], least: int) -> _Link:
    """What the configs that both timed say of the difference of their levels."""
    common = [config for config in task if config in merged]
    strong = [config for config in common if min(_blocks(merged[config]), _blocks(task[config])) >= _LEAST_BLOCKS]
    links = strong or common
    if not links:
        return _Link(_NO_LINK, 0, 0, False)
    before, after = (_levels({config: times[config] for config in links}, least) for times in (merged, task))
    weights = [min(len(before[config].labels), len(after[config].labels)) for config in links]
    evens = [before[config].even - after[config].even for config in links]
    odds = [before[config].odd - after[config].odd for config in links]
    even, odd = _weighted_median(evens, weights), _weighted_median(odds, weights)
    both = [sum(pair) // 2 for pair in zip(evens, odds, strict=True)]
    is_doubtful = max(both) - min(both) > _MOST_APART or abs(even - odd) > MOST_BETWEEN_HALVES
    if not strong:
        ranges = (np.ptp(level.logs) for levels_of in (before, after) for level in levels_of.values())
        if is_doubtful or max(ranges) > _MOST_APART:
            return _Link(_NO_LINK, 0, 0, True)
    return _Link(_STRONG if strong else _WEAK, even, odd, is_doubtful)


def _blocks(times: Relative) -> int:
    return len(np.unique(block_of(times.labels)))


def _weighted_median(values: Sequence[int], weights: Sequence[int]) -> int:
    """The median of values, each as often as its weight."""
    return int(median(np.repeat(np.array(values, np.int64), weights), axis=0))


def _join(merged: dict[Config, Relative], task: dict[Config, Relative], link: _Link) -> None:
    for config, (labels, logs) in task.items():
        shifted = logs + np.where(halves(labels), link.even, link.odd)
        if config in merged:
            before = merged[config]
            labels, shifted = np.concatenate([before.labels, labels]), np.concatenate([before.logs, shifted])
        merged[config] = Relative(labels, shifted)


def median(values: NDArray[np.int64], axis: int) -> NDArray[np.int64]:
    """Median along an axis; of an even number of values, the floor of the mean of the middle two."""
    ordered = np.sort(values, axis=axis)
    count = values.shape[axis]
    low = np.take(ordered, (count - 1) // 2, axis=axis)
    high = np.take(ordered, count // 2, axis=axis)
    return (low + high) // 2
