"""The timing matrix of one operator and dtype: the regret of each config on each problem.

`effects` estimates the level of each config from samples; this module computes regret from levels.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import ge
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.best_times import BestTimes, best_times
from normtune.heuristics.regret.effects import MOST_BETWEEN_HALVES, Level, error
from normtune.heuristics.regret.measurements import COMPARABLE, Alignment, MeasuredShape, measured_shapes
from normtune.kernels.call import AnyLaunch
from normtune.kernels.config import COPY, Config
from normtune.kernels.key import Key
from normtune.kernels.operator import IllegalConfigError, OperatorSpec
from normtune.kernels.problem import AXES, Problem, Shape, axes_at
from normtune.kernels.target import Target

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


# Mean weight of a problem, so that weights are integers.
WEIGHT = 4096
# The least assumed regret of an untimed config, log_ppm: 5 %.
LEAST_ASSUMED = 48_790
# Value in `Rounds` for a config that was not timed in a round.
MISSING = np.iinfo(np.int32).min


class Rounds(NamedTuple):
    """The paired times behind a timing matrix; times are compared inside a round only.

    Attributes:
        labels: int32 (problems, N), a number for each round of a problem, -1 after the last; `effects.block_of` gives
            the block, the unit of statistics.
        places: int32 (problems, configs), the place of each config in `logs`, 0 if it was not timed on the problem.
            Configs with equal launches share one.
        logs: int32 (places, N), log-time minus the log-time of the round's reference, log_ppm; `MISSING` if the config
            was not timed in the round, and at place 0. The difference of two configs in a round is their log-ratio of
            times.
    """

    labels: NDArray[np.int32]
    places: NDArray[np.int32]
    logs: NDArray[np.int32]

    def of(self, problem: int, config: int) -> NDArray[np.int32]:
        """Int32 (N,), the logs of one config on one problem."""
        return self.logs[self.places[problem, config]]


@dataclass(frozen=True)
class TimingMatrix:
    """Problems x configs of one key.

    Attributes:
        key: of the problems.
        problems: their shapes, ordered.
        configs: candidates, ordered, without the copy.
        regret: int64 (problems, configs), log(time / best time) in log_ppm. The best is chosen on one half of the
            blocks and scored on the other, and vice versa, and both are averaged. So selection bias cancels, and an
            entry with a near tie for the best may be slightly negative. Where `untimed`, the largest regret of the
            problem; 0 without a time and an assumption.
        usable: bool (problems, configs): measured without failure, or with the same launch as such a config.
        rounds: the paired times behind the regret; None for unpaired times, and for a matrix made from regret alone.
        weights: int64 (problems,), weight of each problem in a mean; None for equal weights.
        excluded: bool (problems, configs): measured without failure, but excluded by a condition on the table.
        untimed: bool (problems, configs): legal, without a time and without a failure; see `assumed`. None for none.
        luck: int64 (problems,), log_ppm: bound on the underestimate of a problem's regret, namely its increase if the
            best is chosen on all blocks, with selection bias, instead of on half of them; None if unknown.
        alignment: how the times compare.
        axes: the names of a shape's sizes.
        times: the times behind it in nanoseconds; None for a matrix made from regret alone, or of some configs.
    """

    key: Key
    problems: tuple[Shape, ...]
    configs: tuple[Config, ...]
    regret: NDArray[np.int64]
    usable: NDArray[np.bool_]
    rounds: Rounds | None = None
    weights: NDArray[np.int64] | None = None
    excluded: NDArray[np.bool_] | None = None
    untimed: NDArray[np.bool_] | None = None
    luck: NDArray[np.int64] | None = None
    alignment: Alignment = COMPARABLE
    axes: tuple[str, ...] = AXES
    times: BestTimes | None = None

    @property
    def timed(self) -> NDArray[np.bool_]:
        """Bool (problems, configs): measured without failure, excluded by a condition or not."""
        return self.usable if self.excluded is None else self.usable | self.excluded

    def loss(self, problem: int, config: Config) -> int | None:
        """Regret of a config on the problem with that index; None if it has no time."""
        column = self.columns.get(config)
        return int(self.regret[problem, column]) if column is not None and self.usable[problem, column] else None

    @cached_property
    def weight(self) -> NDArray[np.int64]:
        """Int64 (problems,), weight of each problem, `WEIGHT` on average."""
        return np.full(len(self.problems), WEIGHT, np.int64) if self.weights is None else self.weights

    @cached_property
    def assumed(self) -> "TimingMatrix":
        """The matrix with the slowest time of a problem in place of each `untimed` one.

        A search skips configs that it expects to lose; a missing time at one size must not exclude a config everywhere.
        """
        return self if self.untimed is None else replace(self, usable=self.usable | self.untimed, untimed=None)

    def mean(self, losses: Sequence[int | None]) -> int | None:
        """Weighted mean of the losses, rounded down; None if no known loss has a weight."""
        pairs = [(loss, int(weight)) for loss, weight in zip(losses, self.weight, strict=True) if loss is not None]
        total = sum(weight for _, weight in pairs)
        return sum(loss * weight for loss, weight in pairs) // total if total else None

    def of_configs(self, configs: Collection[Config]) -> "TimingMatrix":
        """The matrix of these configs only; regret stays relative to the best of all."""
        columns = [column for column, config in enumerate(self.configs) if config in configs]
        excluded, untimed = (cells if cells is None else cells[:, columns] for cells in (self.excluded, self.untimed))
        return replace(
            self,
            configs=tuple(self.configs[column] for column in columns),
            regret=self.regret[:, columns],
            usable=self.usable[:, columns],
            rounds=self.rounds and self.rounds._replace(places=self.rounds.places[:, columns]),
            excluded=excluded,
            untimed=untimed,
            times=None,
        )

    def within(self, cap: int) -> "TimingMatrix":
        """The matrix without entries whose regret exceeds `cap`, log_ppm, or is assumed."""
        return self.without(self.regret > cap if self.untimed is None else (self.regret > cap) | self.untimed)

    def without(self, cells: NDArray[np.bool_]) -> "TimingMatrix":
        """The matrix without the entries that are true in `cells`, bool (problems, configs)."""
        usable, untimed = self.usable & ~cells, None if self.untimed is None else self.untimed & ~cells
        return replace(self, usable=usable, excluded=self.timed & ~usable, untimed=untimed)

    @cached_property
    def columns(self) -> dict[Config, int]:
        """The column of each config."""
        return {config: index for index, config in enumerate(self.configs)}


def timing_matrix(evidence: "Evidence", spec: OperatorSpec, key: Key, target: Target) -> TimingMatrix | None:
    """The timing matrix of one key; None if no config has a time.

    Configs with equal launches for a problem on the device's `target` count as one: an unmeasured config takes the time
    of a measured one. One whose binary the compiler refused at another shape counts as failed. `evidence` is of one
    device and one version of the kernels.
    """
    by_shape = measured_shapes(evidence, spec, key)
    uncompiled = _uncompiled(by_shape, spec, key, target)
    is_paired = not evidence.unpaired_rows().loc[evidence.part(key).index].any()
    with_levels = {shape: measured for shape, measured in sorted(by_shape.items()) if measured.levels}
    configs = tuple(sorted({config for measured in with_levels.values() for config in measured.levels}))
    regret = np.zeros((len(with_levels), len(configs)), np.int64)
    usable, untimed = (np.zeros(regret.shape, np.bool_) for _ in range(2))
    shapes: list[Shape] = []
    behind: list[dict[int, Level]] = []
    illegal: dict[int, Shape] = {}
    luck: list[int] = []
    impossible: list[Shape] = []
    for shape, measured in with_levels.items():
        by_column, others = _with_aliases(measured, configs, spec, key, shape, target, illegal, uncompiled)
        if not by_column:
            continue
        columns = list(by_column)
        even, odd = np.array([(level.even, level.odd) for level in by_column.values()], np.int64).T
        best_by_even, best_by_odd = int(np.argmin(even)), int(np.argmin(odd))
        regret[len(shapes), columns] = (odd - odd[best_by_even] + even - even[best_by_odd]) // 2
        usable[len(shapes), columns] = True
        regret[len(shapes), others] = max(int(regret[len(shapes), columns].max()), LEAST_ASSUMED)
        untimed[len(shapes), others] = True
        by_halves = int(odd[best_by_even] + even[best_by_odd])
        if is_paired and _is_impossible([*by_column.values()], best_by_even, best_by_odd):
            impossible.append(shape)
        luck.append(-((int((even + odd).min()) - by_halves) // 2))
        shapes.append(shape)
        behind.append(by_column)
    if not shapes:
        return None
    count = len(shapes)
    counts = np.array([measured.alignment[:4] for measured in by_shape.values()]).sum(axis=0).tolist()
    return TimingMatrix(
        *(key, tuple(shapes), configs, regret[:count], usable[:count]),
        rounds=_rounds(behind, len(configs)) if is_paired else None,
        untimed=untimed[:count],
        luck=np.array(luck, np.int64) if is_paired else None,
        axes=axes_at(key),
        times=best_times([by_shape[shape] for shape in shapes], configs, regret[:count], usable[:count]),
        alignment=Alignment(*counts)._replace(impossible=tuple(impossible)),
    )


def _is_impossible(timed: Sequence[Level], by_even: int, by_odd: int) -> bool:
    """Whether a config is faster than the best ones of both halves: by over three times the error, and not by luck.

    Of a hundred configs some are so by chance. What a sound alignment allows between halves moves a loss by half of it.
    """
    even, odd = np.array([(level.even, level.odd) for level in timed], np.int64).T
    least = int(np.argmin(even + odd))
    gain = (odd[by_even] - odd[least] + even[by_odd] - even[least]) / 2
    best = (error(timed[by_even]) ** 2 + error(timed[by_odd]) ** 2) / 2
    return bool(gain > max(3 * math.sqrt(error(timed[least]) ** 2 + best), MOST_BETWEEN_HALVES / 2))


def _rounds(levels_of: Sequence[dict[int, Level]], configs: int) -> Rounds:
    """Rounds behind the levels of each problem, by the config's index."""
    # Configs that were timed together share one array of labels.
    distinct = [{id(level.labels): level.labels for level in by_column.values()} for by_column in levels_of]
    all_labels = [np.unique(np.concatenate([*arrays.values()])) for arrays in distinct]
    most = max(map(len, all_labels))
    labels = np.full((len(all_labels), most), -1, np.int32)
    places = np.zeros((len(all_labels), configs), np.int32)
    logs = [np.full(most, MISSING, np.int32)]
    for problem, (by_column, problem_labels) in enumerate(zip(levels_of, all_labels, strict=True)):
        labels[problem, : len(problem_labels)] = problem_labels
        positions = {number: np.searchsorted(problem_labels, array) for number, array in distinct[problem].items()}
        place_of: dict[int, int] = {}
        for column, level in by_column.items():
            if id(level) not in place_of:
                place_of[id(level)] = len(logs)
                logs.append(logs[0].copy())
                logs[-1][positions[id(level.labels)]] = level.logs
            places[problem, column] = place_of[id(level)]
    return Rounds(labels, places, np.stack(logs))


def _uncompiled(by_shape: dict[Shape, MeasuredShape], spec: OperatorSpec, key: Key, target: Target) -> set[AnyLaunch]:
    """The binaries that the compiler refused at a shape, unless one that was timed at any shape is the same."""

    def binaries(attribute: str) -> set[AnyLaunch]:
        return {
            launch.binary
            for shape, measured in by_shape.items()
            for config in getattr(measured, attribute)
            if config != COPY and (launch := spec.launch_of(config, Problem.at(key, shape), target))
        }

    refused = binaries("uncompiled")
    return refused - binaries("levels") if refused else refused


def _with_aliases(
    measured: MeasuredShape,
    configs: tuple[Config, ...],
    spec: OperatorSpec,
    key: Key,
    shape: Shape,
    target: Target,
    illegal: dict[int, Shape],
    uncompiled: set[AnyLaunch],
) -> tuple[dict[int, Level], list[int]]:
    """Levels of the configs measured directly or through an equal launch, and the indices of the other legal configs.

    Both are by the config's index, ascending; neither has a binary of `uncompiled` without a time. `illegal` is a cache
    that is extended here: by the config's index the smallest shape at which it is known to be illegal.
    """
    direct = {index: measured.levels[config] for index, config in enumerate(configs) if config in measured.levels}
    problem, launches = Problem.at(key, shape), dict[int, AnyLaunch]()
    for index, config in enumerate(configs):
        corner = illegal.get(index)
        if corner and all(map(ge, shape, corner)):
            continue
        try:
            launches[index] = spec.launch(config, problem, target, None)
        except IllegalConfigError:
            illegal[index] = shape
    failed_launches = {spec.launch_of(config, problem, target) for config in measured.failed}
    levels_of: dict[AnyLaunch, Level] = {}
    for index, level in direct.items():
        if index in launches:
            levels_of.setdefault(launches[index], level)
    result, others = {}, []
    for index, launch in launches.items():
        resolved = direct.get(index) or levels_of.get(launch)
        if resolved is None and launch not in failed_launches and not (uncompiled and launch.binary in uncompiled):
            others.append(index)
        elif resolved is not None and configs[index] not in measured.failed:
            result[index] = resolved
    return result, others
