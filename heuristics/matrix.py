"""The timing matrix of one operator and dtype: what each config loses on each problem.

In: evidence (measurements at rest). Out: `TimingMatrix`: log-regret in millionths, int64, where there is none, and the
paired rounds behind it. How samples become levels is in `levels`; what is done with the matrix is the fit's business.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.levels import Level, Samples, levels
from normtune.heuristics.micrologs import micrologs
from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError, Launch, OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.records import COPY

if TYPE_CHECKING:
    from normtune.results.frame import Evidence


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
    """

    operator: str
    variant: str
    dtype: str
    problems: tuple[tuple[int, int], ...]
    configs: tuple[Config, ...]
    regret: NDArray[np.int64]
    usable: NDArray[np.bool_]
    rounds: Rounds | None = None

    @property
    def key(self) -> str:
        """The operator's name in tables, with its variant."""
        return f"{self.operator}:{self.variant}" if self.variant else self.operator

    def loss(self, problem: int, config: Config) -> int | None:
        """Regret of a config on the problem of that index; None where it has no time."""
        column = self._columns.get(config)
        return int(self.regret[problem, column]) if column is not None and self.usable[problem, column] else None

    @cached_property
    def _columns(self) -> dict[Config, int]:
        return {config: index for index, config in enumerate(self.configs)}


@dataclass
class _Cell:
    """What is known of one config on one problem: samples by run, and whether the newest attempt failed."""

    samples: dict[int, list[tuple[NDArray[np.int32], NDArray[np.int64]]]]
    newest: int = -1
    failed: bool = False


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
    cells = _cells(evidence, spec.name, variant, dtype)
    illegal: dict[Config, tuple[int, int]] = {}
    rows_of = {}
    for shape, by_config in sorted(cells.items()):
        found = _problem_levels(by_config)
        if found:
            rows_of[shape] = found
    if not rows_of:
        return None
    configs = tuple(sorted({config for found in rows_of.values() for config in found}))
    regret = np.zeros((len(rows_of), len(configs)), np.int64)
    usable = np.zeros((len(rows_of), len(configs)), np.bool_)
    shapes: list[tuple[int, int]] = []
    behind: list[dict[int, Level]] = []
    for shape, found in rows_of.items():
        failed = {config for config, cell in cells[shape].items() if cell.failed}
        problem = Problem(spec.name, shape[0], shape[1], dtype, variant)
        known = _with_aliases(found, failed, configs, spec, problem, target, illegal)
        if not known:
            continue
        place = [index for index, config in enumerate(configs) if config in known]
        even = np.array([known[configs[index]].even for index in place], np.int64)
        odd = np.array([known[configs[index]].odd for index in place], np.int64)
        best_by_even, best_by_odd = int(np.argmin(even)), int(np.argmin(odd))
        regret[len(shapes), place] = (odd - odd[best_by_even] + even - even[best_by_odd]) // 2
        usable[len(shapes), place] = True
        shapes.append(shape)
        behind.append({index: known[configs[index]] for index in place})
    if not shapes:
        return None
    count = len(shapes)
    rounds = _rounds(behind, len(configs))
    return TimingMatrix(spec.name, variant, dtype, tuple(shapes), configs, regret[:count], usable[:count], rounds)


def _rounds(levels_of: Sequence[dict[int, Level]], configs: int) -> Rounds:
    """The rounds behind the levels of each problem, by the place of the config."""
    found = [np.unique(np.concatenate([level.labels for level in known.values()])) for known in levels_of]
    most = max(map(len, found))
    labels = np.full((len(found), most), -1, np.int32)
    logs = np.full((len(found), configs, most), MISSING, np.int32)
    for problem, (known, mine) in enumerate(zip(levels_of, found, strict=True)):
        labels[problem, : len(mine)] = mine
        for place, level in known.items():
            logs[problem, place, np.searchsorted(mine, level.labels)] = level.logs
    return Rounds(labels, logs)


def _run_order(evidence: "Evidence") -> dict[str, int]:
    return {run.id: index for index, run in enumerate(evidence.runs)}


def _cells(evidence: "Evidence", operator: str, variant: str, dtype: str) -> dict[tuple[int, int], dict[Config, _Cell]]:
    frame = evidence.frame
    mine = frame[(frame["operator"] == operator) & (frame["variant"] == variant) & (frame["dtype"] == dtype)]
    mine = mine[mine["status"] != "not_recorded"]
    if mine.empty:
        return {}
    order = _run_order(evidence)
    parsed = {text: Config.from_json(text) for text in mine["config"].unique()}
    samples = list(mine["samples"])
    ends = np.cumsum([len(found) for found in samples])
    logs = np.split(micrologs(np.concatenate(samples).astype(np.int64)), ends[:-1]) if ends[-1] else samples
    cells: dict[tuple[int, int], dict[Config, _Cell]] = defaultdict(dict)
    columns = (mine["rows"], mine["hidden"], mine["config"], mine["run"], mine["status"], mine["rounds"])
    for found, rows, hidden, text, run, status, rounds in zip(logs, *columns, strict=True):
        cell = cells[int(rows), int(hidden)].setdefault(parsed[text], _Cell({}))
        number = order[run]
        if status == "ok":
            cell.samples.setdefault(number, []).append((rounds, found))
        if number > cell.newest:
            cell.newest, cell.failed = number, status != "ok"
        elif number == cell.newest:
            cell.failed = cell.failed or status != "ok"
    return cells


def _problem_levels(cells: dict[Config, _Cell]) -> dict[Config, Level]:
    runs: dict[int, dict[Config, Samples]] = defaultdict(dict)
    for config, cell in cells.items():
        for number, pieces in cell.samples.items():
            rounds = np.concatenate([piece[0] for piece in pieces])
            logs = np.concatenate([piece[1] for piece in pieces])
            ascending = np.argsort(rounds, kind="stable")
            runs[number][config] = Samples(rounds[ascending], logs[ascending])
    found = levels([runs[number] for number in sorted(runs)])
    return {config: level for config, level in found.items() if config != COPY and not cells[config].failed}


def _with_aliases(
    found: dict[Config, Level],
    failed: set[Config],
    configs: tuple[Config, ...],
    spec: OperatorSpec,
    problem: Problem,
    target: Target,
    illegal: dict[Config, tuple[int, int]],
) -> dict[Config, Level]:
    """The levels of all configs that are legal for the problem and were measured, themselves or as the same launch.

    `illegal` holds the rows and hidden from which on a config is known to be illegal, and is added to.
    """
    launches: dict[Config, Launch] = {}
    for config in configs:
        corner = illegal.get(config)
        if corner and problem.rows >= corner[0] and problem.hidden >= corner[1]:
            continue
        try:
            launches[config] = spec.resolve(config, problem, target, None)
        except IllegalConfigError:
            illegal[config] = problem.rows, problem.hidden
    measured = {
        launches[config]: found[config] for config in reversed(configs) if config in found and config in launches
    }
    broken = {launches[config] for config in failed if config in launches} - set(measured)
    return {
        config: found.get(config, measured.get(launch))  # type: ignore[misc]
        for config, launch in launches.items()
        if config not in failed and launch not in broken and (config in found or launch in measured)
    }
