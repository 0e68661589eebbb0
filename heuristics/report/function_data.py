"""The data behind the charts of one operator and dtype, as data frames for the page and for pictures.

In: a timing matrix, its measurements, and tables and rules to compare ("sides"). Out: `FunctionData`.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normtune.heuristics.comparing.contenders import Side
from normtune.heuristics.comparing.difference import Answers
from normtune.heuristics.regret.best_times import OF_COPY, BestTimes
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

# Number of the fastest configs of a shape whose samples are shown.
FASTEST = 5
# A rule is shown if its config has a time at this share of a function's shapes.
_LEAST_SHARE = 0.1
_LETTERS = string.ascii_uppercase + string.ascii_lowercase


class SideData(NamedTuple):
    """The configs of a table or rule at each shape.

    Attributes:
        name: name of the table or rule.
        config: int64 (shapes,), indices into `FunctionData.configs`; -1 where the table or rule has no config.
        loss: float64 (shapes,), as a fraction of the best time; nan where the config has no time.
        regions: the regions of its tree as `SizePlane.labelled` gives them, configs as indices; None for a rule that is
            not a tree.
    """

    name: str
    config: NDArray[np.int64]
    loss: NDArray[np.float64]
    regions: pd.DataFrame | None


class ListedConfig(NamedTuple):
    """A config: its name and, if a tree has a region with it, its letter and colours (see `Colour`)."""

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
        verdict: (label, text) pairs; the first says how many regions there are.
        plane: the plane of the measured sizes.
        shapes: a row for each measured shape. x, y, z, x0, x1, y0, y1: from `SizePlane.tiles`; best: index of the
            fastest config; best_us, copy_us: microseconds, nan without a time; ties: number of configs whose difference
            from the fastest is not significant, nan without paired times; timed, legal: numbers of configs.
        sides: the tables and rules, the table of the report first.
        gaps: from `SizePlane.gaps`.
        fastest: the fastest configs of each shape. shape, config: their indices; us, low, high: median and its
            confidence interval, microseconds; samples: microseconds.
        configs: the configs that the other attributes refer to by index.
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
        """The shapes with the configs of a side and of a rival, as the charts read them."""
        of_side, names = self.sides[side], [config.name for config in self.configs]
        frame = self.shapes.assign(i=range(len(self.shapes)), config=_named(names, of_side.config), loss=of_side.loss)
        frame = frame.assign(
            best=[names[number] for number in self.shapes["best"]],
            best_colour=[self.configs[number].colour for number in self.shapes["best"]],
            differs=of_side.config != self.shapes["best"],
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
        """Columns group and colour: the groups of configs in the regions of a side, each with its median colour."""
        regions = self.regions(side)
        if regions.empty:
            return pd.DataFrame(columns=["group", "colour"])
        pairs = regions[["group", "colour"]].drop_duplicates()
        order = pairs["colour"].map(luminance)
        pairs = pairs.assign(order=order).sort_values("order")
        return (
            pairs.groupby("group", sort=False)["colour"].agg(lambda shades: shades.iloc[len(shades) // 2]).reset_index()
        )


class DeviceReport(NamedTuple):
    """The part of a report about one device.

    Attributes:
        label: name of the device, with the number and dates of its measurements.
        functions: the data of each operator and dtype.
        notes: omitted measurements and functions, with the reason.
    """

    label: str
    functions: tuple[FunctionData, ...]
    notes: tuple[str, ...]


def _named(names: Sequence[str], numbers: NDArray[np.int64]) -> "pd.Series[Any]":
    return pd.Series([None if number < 0 else names[number] for number in numbers.tolist()], dtype=object)


def function_data(
    spec: OperatorSpec,
    matrix: TimingMatrix,
    target: Target,
    sides: Sequence[Side],
    rules: Sequence[Side],
    verdict: Sequence[tuple[str, str]],
) -> FunctionData:
    """The data of one operator and dtype.

    Args:
        spec: the operator.
        matrix: its timing matrix.
        target: the device.
        sides: tables and rules that are shown in any case, the table of the report first.
        rules: rules that are shown after them, those with most times first. Left out are those with times at less than
            a tenth of the shapes, and those that choose the same configs as another side.
        verdict: as in `FunctionData`.
    """
    plane, times = SizePlane.of(matrix.axes, matrix.problems), matrix.times
    if times is None:
        raise AssertionError("measurements have times")
    numbers = {**matrix.columns}
    answers, gaps = Answers(spec, matrix, target), plane.gaps(matrix.problems)
    answered: list[SideData] = []
    for number, side in enumerate((*sides, *rules)):
        of_side = _side(answers, matrix, side, numbers)
        tree = side.tree(matrix.key)
        regions = None if tree is None else plane.regions(tree, spec.whole, matrix.problems)
        if regions is not None:
            named = [numbers.setdefault(config, len(numbers)) for config in regions["config"]]
            regions = plane.labelled(regions, gaps).assign(config=named)
        is_timed = (~np.isnan(of_side[1])).mean() >= _LEAST_SHARE
        if number < len(sides) or (is_timed and not any(_same(of_side, other) for other in answered)):
            answered.append(SideData(side.name, *of_side, regions))
    # The rule with times at the most shapes comes first, as the page shows the first one unless asked.
    answered[len(sides) :] = sorted(answered[len(sides) :], key=lambda side: int(np.isnan(side.loss).sum()))
    return FunctionData(
        title=str(matrix.key),
        verdict=tuple(verdict),
        plane=plane,
        shapes=_shapes(matrix, plane, times),
        sides=tuple(answered),
        gaps=gaps,
        fastest=_fastest(matrix, times, answered[0].config),
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
    """Number of separately timed configs whose difference from the fastest is not significant."""
    if matrix.rounds is None:
        return np.nan
    against = paired(matrix.rounds, index, column)
    alike = matrix.usable[index] & (against.p > 1 / MISSES_ONE_IN)
    # Configs with the same launch share their times, and count once.
    return float(len(np.unique(matrix.rounds.places[index, alike])))


def _fastest(matrix: TimingMatrix, times: BestTimes, launched: NDArray[np.int64]) -> pd.DataFrame:
    by_shape: dict[int, list[int]] = {}
    for index, column in times.samples:
        if column != OF_COPY and matrix.usable[index, column]:
            by_shape.setdefault(index, []).append(column)
    rows = []
    for index in sorted(by_shape):
        regret = matrix.regret[index]
        ranked = sorted(by_shape[index], key=lambda column: (regret[column], column))
        for column in (*ranked[:FASTEST], *(one for one in ranked[FASTEST:] if one == launched[index])):
            samples = times.samples[index, column]
            rows.append((index, column, *(time / 1000 for time in summary(samples)), samples / 1000))
    return pd.DataFrame(rows, columns=["shape", "config", "us", "low", "high", "samples"])


def _listed(numbers: Mapping[Config, int], sides: Sequence[SideData]) -> tuple[ListedConfig, ...]:
    """The configs with their letters, given out by side and then by area, the largest first."""
    in_regions: dict[int, None] = {}
    for regions in (side.regions for side in sides if side.regions is not None and len(side.regions)):
        area = (regions["wide"] * regions["high"]).groupby(regions["config"]).sum()
        in_regions |= dict.fromkeys(area.sort_values(ascending=False, kind="stable").index)
    letters = dict(zip(in_regions, _LETTERS, strict=False))
    colour_of = colours([config for config, number in numbers.items() if number in in_regions])
    return tuple(
        ListedConfig(short_name(config), letters.get(number, ""), *colour_of.get(config, Colour()))
        for config, number in numbers.items()
    )
