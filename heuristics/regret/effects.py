"""Relative speed of the configs of one problem, from samples taken in rounds.

Estimator. A task is one visit of a run to a problem. Within it, each round times every config once, so a slow round
slows all of them. The reference of a round is the median log-time of the anchors: the configs timed in the most rounds
(all of them, unless some were dropped early). A config's level in one half of the blocks is the median, over the rounds
of that half, of its log-time minus the reference. Halves are the even and the odd blocks: noise is shared in a block. A
config that was dropped as slow after one block has its level in both. Times of another program that tell no rounds
have no reference: a config's level is the median of its log-times.

Times of different tasks are never compared directly. A later task is aligned with the earlier ones by the median
difference over the configs that both timed, or by the copy's if they share no config; a task that shares nothing is
left out. A config in several tasks gets the mean of its levels, weighted by rounds. Levels are int64 in log_ppm,
millionths of a natural logarithm, and only their differences have a meaning. All arithmetic is in integers: the median
of an even number of values is the floor of the mean of the middle two.
"""

from collections.abc import Collection, Iterable, Sequence
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


class Level(NamedTuple):
    """Relative log-time of a config.

    Attributes:
        even, odd: the level in the even and in the odd blocks, log_ppm.
        labels: int32, ascending within a run: a number for each round, unique across rounds, blocks and runs; see
            `block_of`. Configs with a common label were timed in the same round.
        logs: int64, of the same length: log-time minus the log-time of the round's reference, log_ppm.
    """

    even: int
    odd: int
    labels: NDArray[np.int32]
    logs: NDArray[np.int64]


# Label = this factor x number of the run + round.
_LABELS = 1 << 16


def block_of(labels: NDArray[np.int32]) -> NDArray[np.int32]:
    """The block of each label; blocks of different runs have different numbers."""
    return labels // ROUNDS_PER_BLOCK


def levels(runs: Sequence[dict[Config, LogSamples]], unpaired: Collection[int] = ()) -> dict[Config, Level]:
    """Levels of the configs of one problem, without the copy.

    `runs` has the samples of each run, the earliest first; `unpaired` the numbers of those that another program timed.
    """
    by_run = [
        _of_task(task, number, number in unpaired and not _tells_rounds(task))
        for number, samples in enumerate(runs)
        for task in _tasks(samples)
    ]
    # The task with the most configs leads, because it compares most of them directly.
    order = sorted(range(len(by_run)), key=lambda index: (-len(by_run[index]), index))
    merged: dict[Config, Level] = {}
    waiting = [by_run[index] for index in order if by_run[index]]
    while waiting:
        nearest = next((run for run in waiting if not merged or _shared(merged, run)), None)
        if nearest is None:
            break
        waiting = [run for run in waiting if run is not nearest]
        merged = _joined(merged, nearest)
    return {config: level for config, level in merged.items() if config != COPY}


def unused(runs: Sequence[dict[Config, LogSamples]], known: dict[Config, Level]) -> int:
    """Number of (config, run) pairs without a part in the levels, because no common config links them to the others.

    `runs` is the argument of `levels`, and `known` its result.
    """
    measured = {config: [number for number, run in enumerate(runs) if config in run] for run in runs for config in run}
    measured.pop(COPY, None)
    used = {config: {*(level.labels // _LABELS).tolist()} for config, level in known.items()}
    return sum(number not in used.get(config, ()) for config, numbers in measured.items() for number in numbers)


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


def _of_task(samples: dict[Config, LogSamples], number: int, is_unpaired: bool) -> dict[Config, Level]:
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
        known = anchor_rounds[index] == rounds
        even = halves(rounds)
        first, second = known & even, known & ~even
        if not known.any():
            continue
        first, second = (half if half.any() else known for half in (first, second))
        relative = np.stack([samples[config].logs for config in group]) - reference[index]
        levels_of = median(relative[:, first], axis=1).tolist(), median(relative[:, second], axis=1).tolist()
        labels = (number * _LABELS + rounds[known] % _LABELS).astype(np.int32)
        for config, low, high, logs in zip(group, *levels_of, relative[:, known], strict=True):
            result[config] = Level(low, high, labels, logs)
    return result


def _shared(left: Iterable[Config], right: dict[Config, Level]) -> list[Config]:
    common = [config for config in left if config in right]
    return [config for config in common if config != COPY] or common


def _joined(merged: dict[Config, Level], run: dict[Config, Level]) -> dict[Config, Level]:
    if not merged:
        return run
    common = _shared(merged, run)
    even, odd = (
        int(median(np.array([getattr(merged[c], half) - getattr(run[c], half) for c in common]), axis=0))
        for half in ("even", "odd")
    )
    result = dict(merged)
    for config, level in run.items():
        logs = level.logs + np.where(halves(level.labels), even, odd)
        shifted = Level(level.even + even, level.odd + odd, level.labels, logs)
        before = merged.get(config)
        result[config] = shifted if before is None else _mean(before, shifted)
    return result


def _mean(left: Level, right: Level) -> Level:
    weights = len(left.labels), len(right.labels)
    even, odd = (
        (getattr(left, half) * weights[0] + getattr(right, half) * weights[1]) // sum(weights)
        for half in ("even", "odd")
    )
    return Level(even, odd, np.concatenate([left.labels, right.labels]), np.concatenate([left.logs, right.logs]))


def median(values: NDArray[np.int64], axis: int) -> NDArray[np.int64]:
    """Median along an axis; of an even number of values, the floor of the mean of the middle two."""
    ordered = np.sort(values, axis=axis)
    count = values.shape[axis]
    low = np.take(ordered, (count - 1) // 2, axis=axis)
    high = np.take(ordered, count // 2, axis=axis)
    return (low + high) // 2
