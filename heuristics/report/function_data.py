"""The data of one operator and dtype for charts: tidy frames, computed once for pages and pictures.

In: a timing matrix, the measurements behind it, and sides: tables and rules. Out: `FunctionData`.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normtune.heuristics.comparing.contenders import Side
from normtune.heuristics.comparing.difference import Answers
from normtune.heuristics.regret.best_times import OF_COPY, BestTimes, best_times
from normtune.heuristics.regret.fixed_log import MILLION
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.regret.paired import paired
from normtune.heuristics.report.palette import Colour, colours, luminance
from normtune.heuristics.report.plane import SizePlane
from normtune.heuristics.showing.config_map import short_name
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.statistics import MISSES_ONE_IN, summary

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

# The fastest configs of a shape whose samples are shown.
FASTEST = 5
# Of the seconds of a run.
PHASES = ("compile", "gate", "timing")
# A rule is shown if it has a time at so many of a function's shapes.
_LEAST_SHARE = 0.1
_LETTERS = string.ascii_uppercase + string.ascii_lowercase


class SideData(NamedTuple):
    """What a table or a rule answers.

    Attributes:
        name: of it.
        config: int64 (shapes,), numbers of configs, -1 without an answer.
        loss: float64 (shapes,), as a fraction of the best time, nan without a time.
        regions: of its tree, as `SizePlane.labelled`, configs as numbers; None for a rule that is no tree.
    """

    name: str
    config: NDArray[np.int64]
    loss: NDArray[np.float64]
    regions: pd.DataFrame | None


class ListedConfig(NamedTuple):
    """A config: its name, and where a side has a region of it, its letter and colours (see `Colour`)."""

    name: str
    letter: str = ""
    colour: str = Colour().colour
    ink: str = Colour().ink
    group: str = ""


@dataclass(frozen=True)
class FunctionData:
    """The data of one operator and dtype.

    Attributes:
        title: operator, modes and dtype.
        verdict: lines of a label and a text; the first says how many regions there are.
        plane: of its sizes.
        shapes: a row for each measured shape: x, y, z, x0, x1, y0, y1 as of `SizePlane.tiles`, best (number of the
            fastest config), best_us and copy_us (microseconds, nan without a time), ties (number of configs that a test
            does not tell from the fastest, nan without paired times), timed and legal (numbers of configs).
        sides: what tables and rules answer, the subject of the page first.
        gaps: as of `SizePlane.gaps`.
        fastest: the fastest configs of each shape: shape (its number), config, us, low and high (median and its
            interval, microseconds), samples (microseconds).
        configs: all that is named by number.
    """

    title: str
    verdict: tuple[tuple[str, str], ...]
    plane: SizePlane
    shapes: pd.DataFrame
    sides: tuple[SideData, ...]
    gaps: pd.DataFrame
    fastest: pd.DataFrame
    configs: tuple[ListedConfig, ...]

    def rows(self, side: int = 0, rival: int | None = None) -> pd.DataFrame:
        """The shapes with what a side answers, and a rival: columns of charts."""
        own, names = self.sides[side], [config.name for config in self.configs]
        frame = self.shapes.assign(i=range(len(self.shapes)), config=_named(names, own.config), loss=own.loss)
        frame = frame.assign(
            best=[names[number] for number in self.shapes["best"]],
            best_colour=[self.configs[number].colour for number in self.shapes["best"]],
            differs=own.config != self.shapes["best"],
        )
        other = self.sides[rival] if rival is not None else None
        return frame.assign(
            rival=other.name if other else "",
            rival_config=_named(names, other.config) if other else "",
            rival_loss=other.loss if other else np.nan,
        )

    def regions(self, side: int = 0) -> pd.DataFrame:
        """The regions of a side with the name, letter and colours of their configs; empty for a rule."""
        regions = self.sides[side].regions
        if regions is None:
            return pd.DataFrame()
        parts = [self.configs[number] for number in regions["config"]]
        return regions.assign(**{name: [getattr(part, name) for part in parts] for name in ListedConfig._fields})

    def groups(self, side: int = 0) -> pd.DataFrame:
        """Columns group and colour: of each group of configs in regions of a side the colour in its middle."""
        regions = self.regions(side)
        if regions.empty:
            return pd.DataFrame(columns=["group", "colour"])
        own = regions[["group", "colour"]].drop_duplicates()
        order = own["colour"].map(luminance)
        own = own.assign(order=order).sort_values("order")
        return (
            own.groupby("group", sort=False)["colour"].agg(lambda shades: shades.iloc[len(shades) // 2]).reset_index()
        )

    @property
    def rivals(self) -> list[int]:
        """The sides that the first is compared with, by number."""
        return list(range(1, len(self.sides)))


class DeviceReport(NamedTuple):
    """What a report has of one device.

    Attributes:
        label: the device, and the extent of its measurements.
        functions: the data of each operator and dtype, as frames.
        runs: what runs did with their time: columns run, phase, order, seconds, about.
        notes: on what was left out, and why.
    """

    label: str
    functions: tuple[FunctionData, ...]
    runs: pd.DataFrame
    notes: tuple[str, ...]


def _named(names: Sequence[str], numbers: NDArray[np.int64]) -> "pd.Series[Any]":
    return pd.Series([None if number < 0 else names[number] for number in numbers.tolist()], dtype=object)


def function_data(
    spec: OperatorSpec,
    matrix: TimingMatrix,
    evidence: "Evidence",
    target: Target,
    sides: Sequence[Side],
    rules: Sequence[Side],
    verdict: Sequence[tuple[str, str]],
) -> FunctionData:
    """The data of one matrix, made from `evidence`.

    Args:
        spec: of its operator.
        matrix: the times.
        evidence: the measurements of one device, with the present kernels.
        target: the device.
        sides: tables and rules, the subject first.
        rules: shown behind them, those with most times first, if they have times at a tenth of the shapes and answer in
            another way.
        verdict: as in `FunctionData`.
    """
    plane, times = SizePlane.of(matrix.axes, matrix.problems), best_times(evidence, matrix)
    numbers = {config: number for number, config in enumerate(matrix.configs)}
    answers, gaps = Answers(spec, matrix, target), plane.gaps(matrix.problems)
    answered: list[SideData] = []
    for number, side in enumerate((*sides, *rules)):
        of_side = _side(answers, matrix, side, numbers)
        tree = side.tree(matrix.key, target)
        regions = None if tree is None else plane.regions(tree, spec.whole)
        if regions is not None:
            named = [numbers.setdefault(config, len(numbers)) for config in regions["config"]]
            regions = plane.labelled(regions, gaps).assign(config=named)
        known = (~np.isnan(of_side[1])).mean() >= _LEAST_SHARE
        if number < len(sides) or (known and not any(_same(of_side, other) for other in answered)):
            answered.append(SideData(side.name, *of_side, regions))
    # What is known at the most shapes is what is shown first.
    answered[len(sides) :] = sorted(answered[len(sides) :], key=lambda side: int(np.isnan(side.loss).sum()))
    return FunctionData(
        title=str(matrix.key),
        verdict=tuple(verdict),
        plane=plane,
        shapes=_shapes(matrix, plane, times),
        sides=tuple(answered),
        gaps=gaps,
        fastest=_fastest(matrix, times),
        configs=_listed(numbers, answered),
    )


def _side(
    answers: Answers, matrix: TimingMatrix, side: Side, numbers: dict[Config, int]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    config, loss = np.full(len(matrix.problems), -1), np.full(len(matrix.problems), np.nan)
    for index, shape in enumerate(matrix.problems):
        answer = answers.choice(index, Problem.at(matrix.key, shape), side)
        if answer.config is not None:
            config[index] = numbers.setdefault(answer.config, len(numbers))
        if answer.loss is not None:
            loss[index] = np.expm1(answer.loss / MILLION)
    return config, loss


def _same(one: tuple[NDArray[np.int64], NDArray[np.float64]], other: SideData) -> bool:
    return np.array_equal(one[0], other.config) and np.array_equal(one[1], other.loss, equal_nan=True)


def _shapes(matrix: TimingMatrix, plane: SizePlane, times: BestTimes) -> pd.DataFrame:
    best = np.where(matrix.usable, matrix.regret, np.iinfo(np.int64).max).argmin(axis=1)
    copies = [times.samples.get((index, OF_COPY)) for index in range(len(matrix.problems))]
    timed = matrix.usable.sum(axis=1)
    return plane.tiles(matrix.problems).assign(
        best=best,
        best_us=times.best / 1000,
        copy_us=[np.nan if copy is None else summary(copy)[0] / 1000 for copy in copies],
        ties=[_ties(matrix, index, int(column)) for index, column in enumerate(best)],
        timed=timed,
        legal=timed if matrix.untimed is None else timed + matrix.untimed.sum(axis=1),
    )


def _ties(matrix: TimingMatrix, index: int, column: int) -> float:
    """The number of configs with times of their own that are not slower than the fastest beyond their noise."""
    if matrix.rounds is None:
        return np.nan
    against = paired(matrix.rounds, index, column)
    alike = matrix.usable[index] & (against.p > 1 / MISSES_ONE_IN)
    # An alias has the times of another.
    return float(len({matrix.rounds.logs[index, other].tobytes() for other in np.flatnonzero(alike)} | {b""}) - 1)


def _fastest(matrix: TimingMatrix, times: BestTimes) -> pd.DataFrame:
    by_shape: dict[int, list[int]] = {}
    for index, column in times.samples:
        if column != OF_COPY and matrix.usable[index, column]:
            by_shape.setdefault(index, []).append(column)
    rows = []
    for index in sorted(by_shape):
        regret = matrix.regret[index]
        for column in sorted(by_shape[index], key=lambda column: (regret[column], column))[:FASTEST]:
            samples = times.samples[index, column]
            rows.append((index, column, *(time / 1000 for time in summary(samples)), samples / 1000))
    return pd.DataFrame(rows, columns=["shape", "config", "us", "low", "high", "samples"])


def _listed(numbers: Mapping[Config, int], sides: Sequence[SideData]) -> tuple[ListedConfig, ...]:
    """Letters go to the configs of the first side before those of others, the largest areas first."""
    shown: dict[int, None] = {}
    for regions in (side.regions for side in sides if side.regions is not None and len(side.regions)):
        area = (regions["wide"] * regions["high"]).groupby(regions["config"]).sum()
        shown |= dict.fromkeys(area.sort_values(ascending=False, kind="stable").index)
    letters = dict(zip(shown, _LETTERS, strict=False))
    own = colours([config for config, number in numbers.items() if number in shown])
    return tuple(
        ListedConfig(short_name(config), letters.get(number, ""), *own.get(config, Colour()))
        for config, number in numbers.items()
    )
