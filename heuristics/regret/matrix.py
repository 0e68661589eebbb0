"""The timing matrix of one operator and dtype: what each config loses on each problem.

In: evidence (measurements at rest). Out: `TimingMatrix`: log-regret in millionths, int64, where there is none, and the
paired rounds behind it. How samples become levels is in `levels`; what is done with the matrix is the fit's business.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.effects import Level, Samples, levels, unused
from normtune.heuristics.regret.fixed_log import micrologs
from normtune.kernels.config import COPY, Config
from normtune.kernels.operator import AnyLaunch, IllegalConfigError, OperatorSpec
from normtune.kernels.problem import Problem, join_key
from normtune.kernels.target import Target
from normtune.results.evidence import flatten, split

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


# What a problem weighs on average, so that weights are integers.
WEIGHT = 4096
# Stands in `Rounds` where a config was not timed in a round.
MISSING = np.iinfo(np.int32).min


class Rounds(NamedTuple):
    """The paired times behind a timing matrix: what is compared inside a round, never across.

    Attributes:
        labels: int32 (problems, N), a number for each round of a problem, -1 behind the last; `levels.block_of` gives
            the block, the unit of statistics.
        logs: int32 (problems, configs, N), log-time less that of the round's reference, millionths; `MISSING` where the
            config was not timed in that round. Differences of two configs in one round are what their times say.
    """

    labels: NDArray[np.int32]
    logs: NDArray[np.int32]


@dataclass(frozen=True)
class TimingMatrix:
    """Problems x configs of one operator variant and dtype.

    Attributes:
        operator, variant, dtype: whose problems they are.
        problems: (rows, hidden), ordered.
        configs: candidates, ordered; the copy is none.
        regret: int64, (problems, configs), millionths of log(time / best time). The best is chosen on one half of the
            blocks and scored on the other, and the other way round, and the mean of both is taken: a config that was
            lucky gains nothing from it, and a cell whose best is a near tie may be slightly negative. 0 where unusable.
        usable: bool, (problems, configs): measured without failure, or the same launch as a config that was.
        rounds: the paired times that the regret comes from; None for a matrix that was made of regret alone.
        weights: int64, (problems,), what each problem counts in a mean; None where all count the same.
        excluded: bool, (problems, configs): measured without failure, and not usable by a condition on the table.
        luck: int64, (problems,), millionths: by how much the regret of a problem may be too low, as the best of half of
            the blocks is no better than the best; None where that is not known. With what all blocks say is best,
            regret would be too high, as that was lucky; the true one lies between.
        unused: of all times of a config in a run: how many have no part in it, as nothing was timed beside them, and
            how many there are.
    """

    operator: str
    variant: str
    dtype: str
    problems: tuple[tuple[int, int], ...]
    configs: tuple[Config, ...]
    regret: NDArray[np.int64]
    usable: NDArray[np.bool_]
    rounds: Rounds | None = None
    weights: NDArray[np.int64] | None = None
    excluded: NDArray[np.bool_] | None = None
    luck: NDArray[np.int64] | None = None
    unused: tuple[int, int] = (0, 0)

    @property
    def timed(self) -> NDArray[np.bool_]:
        """Bool (problems, configs): measured without failure, whether or not a condition excludes it."""
        return self.usable if self.excluded is None else self.usable | self.excluded

    @property
    def key(self) -> str:
        """The operator's name in tables, with its variant."""
        return join_key(self.operator, self.variant)

    def loss(self, problem: int, config: Config) -> int | None:
        """Regret of a config on the problem of that index; None where it has no time."""
        column = self._columns.get(config)
        return int(self.regret[problem, column]) if column is not None and self.usable[problem, column] else None

    @cached_property
    def weight(self) -> NDArray[np.int64]:
        """Int64 (problems,), what each problem counts: `WEIGHT` on average."""
        return np.full(len(self.problems), WEIGHT, np.int64) if self.weights is None else self.weights

    def mean(self, losses: Sequence[int | None]) -> int | None:
        """The weighted mean of what is lost on each problem, rounded down; None where nothing is known that counts."""
        known = [(loss, int(weight)) for loss, weight in zip(losses, self.weight, strict=True) if loss is not None]
        total = sum(weight for _, weight in known)
        return sum(loss * weight for loss, weight in known) // total if total else None

    def of_configs(self, configs: Collection[Config]) -> "TimingMatrix":
        """The same with these configs alone; the regret stays that against the best of all."""
        places = [place for place, config in enumerate(self.configs) if config in configs]
        rounds = self.rounds and Rounds(self.rounds.labels, self.rounds.logs[:, places])
        kept = tuple(self.configs[place] for place in places)
        excluded = None if self.excluded is None else self.excluded[:, places]
        usable = self.usable[:, places]
        return replace(
            self, configs=kept, regret=self.regret[:, places], usable=usable, rounds=rounds, excluded=excluded
        )

    def of_problems(self, places: Sequence[int]) -> "TimingMatrix":
        """The same with the problems at these places alone, each weighing what it weighs here."""
        at = list(places)
        return replace(
            self,
            problems=tuple(self.problems[place] for place in at),
            regret=self.regret[at],
            usable=self.usable[at],
            rounds=self.rounds and Rounds(self.rounds.labels[at], self.rounds.logs[at]),
            weights=self.weight[at],
            excluded=None if self.excluded is None else self.excluded[at],
            luck=None if self.luck is None else self.luck[at],
        )

    def within(self, cap: int) -> "TimingMatrix":
        """The same, where a config may not be used on a problem on which its regret exceeds `cap`, millionths."""
        return self.without(self.regret > cap)

    def without(self, cells: NDArray[np.bool_]) -> "TimingMatrix":
        """The same, where a config may not be used on a problem that `cells`, bool (problems, configs), says."""
        return replace(self, usable=self.usable & ~cells, excluded=self.timed & ~(self.usable & ~cells))

    @cached_property
    def _columns(self) -> dict[Config, int]:
        return {config: index for index, config in enumerate(self.configs)}


class _Measured(NamedTuple):
    """What is known of one shape: the levels of the configs that did not fail, and those whose newest attempt did.

    And how many times have no part in the levels, of how many.
    """

    levels: dict[Config, Level]
    failed: set[Config]
    unused: tuple[int, int]


def timing_matrix(
    evidence: "Evidence", spec: OperatorSpec, variant: str, dtype: str, target: Target
) -> TimingMatrix | None:
    """The timing matrix of one operator variant and dtype; None when no config has a time.

    Args:
        evidence: of one device and one version of the kernels.
        spec: of the operator.
        variant: of the operator, empty for the plain one.
        dtype: name of a dtype.
        target: of the device; configs that make equal launches for a problem are one measurement, and a config that
            was not measured takes the time of one that was.
    """
    measured = _measured(evidence, spec, variant, dtype)
    with_levels = {shape: found for shape, found in sorted(measured.items()) if found.levels}
    configs = tuple(sorted({config for found in with_levels.values() for config in found.levels}))
    regret = np.zeros((len(with_levels), len(configs)), np.int64)
    usable = np.zeros((len(with_levels), len(configs)), np.bool_)
    shapes: list[tuple[int, int]] = []
    behind: list[dict[int, Level]] = []
    illegal: dict[int, tuple[int, int]] = {}
    luck: list[int] = []
    for shape, found in with_levels.items():
        problem = Problem(spec.name, shape[0], shape[1], dtype, variant)
        known = _with_aliases(found, configs, spec, problem, target, illegal)
        if not known:
            continue
        place = list(known)
        even = np.array([level.even for level in known.values()], np.int64)
        odd = np.array([level.odd for level in known.values()], np.int64)
        best_by_even, best_by_odd = int(np.argmin(even)), int(np.argmin(odd))
        regret[len(shapes), place] = (odd - odd[best_by_even] + even - even[best_by_odd]) // 2
        usable[len(shapes), place] = True
        by_halves = int(odd[best_by_even] + even[best_by_odd])
        luck.append(-((int((even + odd).min()) - by_halves) // 2))
        shapes.append(shape)
        behind.append(known)
    if not shapes:
        return None
    count = len(shapes)
    return TimingMatrix(
        *(spec.name, variant, dtype, tuple(shapes), configs, regret[:count], usable[:count]),
        rounds=_rounds(behind, len(configs)),
        luck=np.array(luck, np.int64),
        unused=tuple(map(sum, zip(*(found.unused for found in measured.values()), strict=True))),  # type: ignore[arg-type]
    )


def _rounds(levels_of: Sequence[dict[int, Level]], configs: int) -> Rounds:
    """The rounds behind the levels of each problem, by the place of the config."""
    # Configs of one race share one array of labels.
    alike: list[dict[int, list[int]]] = [{} for _ in levels_of]
    for places, known in zip(alike, levels_of, strict=True):
        for place, level in known.items():
            places.setdefault(id(level.labels), []).append(place)
    found = [
        np.unique(np.concatenate([known[group[0]].labels for group in places.values()]))
        for places, known in zip(alike, levels_of, strict=True)
    ]
    most = max(map(len, found))
    labels = np.full((len(found), most), -1, np.int32)
    logs = np.full((len(found), configs, most), MISSING, np.int32)
    for problem, (places, known, mine) in enumerate(zip(alike, levels_of, found, strict=True)):
        labels[problem, : len(mine)] = mine
        for group in places.values():
            at = np.searchsorted(mine, known[group[0]].labels)
            logs[problem, np.array(group)[:, None], at] = np.stack([known[place].logs for place in group])
    return Rounds(labels, logs)


def _measured(evidence: "Evidence", spec: OperatorSpec, variant: str, dtype: str) -> dict[tuple[int, int], _Measured]:
    """The measurements of one operator variant and dtype, by shape."""
    mine = evidence.part(spec.name, variant, dtype)
    mine = mine[mine["status"] != "not_recorded"]
    if mine.empty:
        return {}
    order = {run.id: index for index, run in enumerate(evidence.runs)}
    parsed = {text: spec.read_config(text) for text in mine["config"].unique()}
    other = [text for text, config in parsed.items() if config != COPY and config._fields != spec.config._fields]
    if other:  # of an operator that had other knobs then
        mine = mine[~mine["config"].isin(other)]
        if mine.empty:
            return {}
    configs = [parsed[text] for text in mine["config"]]
    numbers = [order[run] for run in mine["run"]]
    failed = (mine["status"] != "ok").tolist()
    rounds = mine["rounds"].tolist()
    lengths, flat = flatten(mine["samples"].tolist())
    logs = split(lengths, micrologs(flat))
    rows, hidden = mine["rows"].to_numpy(), mine["hidden"].to_numpy()
    # The frame is ordered by hidden and rows: the measurements of a shape stand together.
    starts = np.flatnonzero((np.diff(rows, prepend=0) != 0) | (np.diff(hidden, prepend=0) != 0)).tolist()
    return {
        (int(rows[start]), int(hidden[start])): _of_shape(
            *(column[start:end] for column in (configs, numbers, failed, rounds, logs))  # type: ignore[arg-type]
        )
        for start, end in pairwise((*starts, len(rows)))
    }


def _of_shape(
    configs: Sequence[Config],
    numbers: Sequence[int],
    failures: Sequence[bool],
    rounds: Sequence[NDArray[np.int32]],
    logs: Sequence[NDArray[np.int64]],
) -> _Measured:
    runs: dict[int, dict[Config, Samples]] = {number: {} for number in sorted(set(numbers))}
    for config, number, failure, own_rounds, own_logs in zip(configs, numbers, failures, rounds, logs, strict=True):
        if not failure:
            mine, own = runs[number], Samples(own_rounds, own_logs)
            mine[config] = _joined(mine[config], own) if config in mine else own
    failed: set[Config] = set()
    if any(failures):
        newest: dict[Config, int] = {}
        for config, number in zip(configs, numbers, strict=True):
            newest[config] = max(newest.get(config, -1), number)
        failed = {
            config
            for config, number, failure in zip(configs, numbers, failures, strict=True)
            if failure and number == newest[config]
        }
    filled = [samples for samples in runs.values() if samples]
    found = levels(filled)
    counts = unused(filled, found), sum(config != COPY for samples in filled for config in samples)
    return _Measured({config: level for config, level in found.items() if config not in failed}, failed, counts)


def _joined(left: Samples, right: Samples) -> Samples:
    rounds = np.concatenate([left.rounds, right.rounds])
    ascending = np.argsort(rounds, kind="stable")
    return Samples(rounds[ascending], np.concatenate([left.logs, right.logs])[ascending])


def _with_aliases(
    measured: _Measured,
    configs: tuple[Config, ...],
    spec: OperatorSpec,
    problem: Problem,
    target: Target,
    illegal: dict[int, tuple[int, int]],
) -> dict[int, Level]:
    """The levels of all configs that are legal for the problem and were measured, themselves or as the same launch.

    By the places of the configs, ascending. `illegal` holds the rows and hidden from which on the config at a place is
    known to be illegal, and is added to.
    """
    rows, hidden, resolve = problem.rows, problem.hidden, spec.resolve
    own = {place: measured.levels[config] for place, config in enumerate(configs) if config in measured.levels}
    failed = {place for place, config in enumerate(configs) if config in measured.failed} if measured.failed else ()
    launches: dict[int, AnyLaunch] = {}
    for place, config in enumerate(configs):
        corner = illegal.get(place)
        if corner and rows >= corner[0] and hidden >= corner[1]:
            continue
        try:
            launches[place] = resolve(config, problem, target, None)
        except IllegalConfigError:
            illegal[place] = rows, hidden
    levels_of: dict[AnyLaunch, Level] = {}
    for place, level in own.items():
        if place in launches:
            levels_of.setdefault(launches[place], level)
    found = {}
    for place, launch in launches.items():
        known = own.get(place) or levels_of.get(launch)
        if known is not None and place not in failed:
            found[place] = known
    return found
