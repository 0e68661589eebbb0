"""Listing of measurements: one row each, with the config in columns and the time relative to other times."""

import math
from typing import TYPE_CHECKING, Any

import pandas as pd

from normtune.errors import UsageError
from normtune.heuristics.regret.fixed_log import MILLION
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.kernels.config import COPY, Config
from normtune.kernels.operator import find
from normtune.kernels.problem import Problem
from normtune.results.statistics import summary

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

_FIRST = ("rows", "hidden", "dtype", "operator", "variant")
_LAST = ("status", "reason", "median_us", "best_ratio", "copy_ratio", "gbps", "device")


def columns(evidence: "Evidence") -> tuple[str, ...]:
    """Columns of the listing: shape, knobs of the configs, times."""
    return (*_FIRST, *evidence.knobs(), *_LAST)


def listing(evidence: "Evidence", matrices: list[TimingMatrix]) -> pd.DataFrame:
    """The measurements of one device and one version of the kernels, with derived figures.

    Returns:
        `columns` and config, in the order of the evidence; knobs that an operator lacks are empty. median_us: of all
        samples, microseconds. best_ratio: time over the time of the problem's best config, over all runs, from the
        timing matrix; a near tie may be slightly under 1. copy_ratio: median over the median of a copy of as many bytes
        in the same run. gbps: bytes that a perfect kernel moves over the median, 1e9 bytes a second. nan for a failure,
        and without such a copy, matrix or operator.
    """
    measurements = evidence.measurements()
    devices = {run.id: run.device.label for run in evidence.runs}
    medians = [summary(item.samples)[0] if len(item.samples) else math.nan for item in measurements]
    copies = {
        (item.run, item.problem): median
        for item, median in zip(measurements, medians, strict=True)
        if item.config == COPY and item.status == "ok"
    }
    losses = _losses(matrices)
    moved = _bytes_moved({item.problem for item in measurements})
    knobs = evidence.knobs()
    rows = []
    for item, median in zip(measurements, medians, strict=True):
        problem, values = item.problem, item.config._asdict()
        loss = losses.get((problem, item.config), math.nan) if item.status == "ok" else math.nan
        rows.append(
            (
                *(*problem.shape, problem.dtype, problem.operator, problem.variant),
                *(values.get(name, "") for name in knobs),
                *(item.status, item.reason, median / 1000, math.exp(loss / MILLION)),
                *(median / copies.get((item.run, problem), math.nan), moved[problem] / median, devices[item.run]),
                item.config,
            )
        )
    return pd.DataFrame(rows, columns=[*columns(evidence), "config"])


def ordered(frame: pd.DataFrame, sort: str | None) -> pd.DataFrame:
    """A listing by a column, descending with `-` before it; by problem and time for None."""
    if sort is None:
        return frame.sort_values(["operator", "variant", "dtype", "hidden", "rows", "median_us"], kind="stable")
    name = sort.removeprefix("-")
    return frame.sort_values(name, ascending=name == sort, kind="stable", key=_comparable)


def _comparable(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """A column to sort by: operators may have numbers, words and nothing for one knob."""
    return column.map(lambda value: (isinstance(value, str), value)) if column.dtype == object else column


def check_order(sort: str | None, evidence: "Evidence") -> None:
    """Refuse an unknown order before anything is computed.

    Raises:
        UsageError: the column is unknown.
    """
    names = columns(evidence)
    if sort is not None and sort.removeprefix("-") not in names:
        raise UsageError(f"sort is {sort!r}: expected one of {', '.join(names)}, or -COLUMN for descending")


def _losses(matrices: list[TimingMatrix]) -> dict[tuple[Problem, Config], float]:
    losses: dict[tuple[Problem, Config], float] = {}
    for matrix in matrices:
        for index, shape in enumerate(matrix.problems):
            problem = Problem.at(matrix.key, shape)
            for config in matrix.configs:
                if (loss := matrix.loss(index, config)) is not None:
                    losses[problem, config] = loss
    return losses


def _bytes_moved(problems: set[Problem]) -> dict[Problem, float]:
    specs = {name: find(name) for name in {problem.operator for problem in problems}}
    moved = {}
    for problem in problems:
        spec = specs[problem.operator]
        moved[problem] = spec.bytes_moved(problem) if spec and problem.dtype in spec.dtypes else math.nan
    return moved
