"""Measurements as people filter and read them: one row each, with its config in columns and its time beside others.

In: evidence of one device. Out: a frame with `COLUMNS`. What is best comes from the timing matrices; filtering is left
to `query`, printing to `commands.show`.
"""

import math
from typing import TYPE_CHECKING

import pandas as pd

from normtune.heuristics.regret.fixed_log import MILLION
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.kernels.config import Config
from normtune.kernels.operator import operators
from normtune.kernels.problem import Problem
from normtune.results.records import COPY
from normtune.results.statistics import summary

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

COLUMNS = (
    *("rows", "hidden", "dtype", "operator", "variant"),
    *Config._fields,
    *("status", "reason", "median_us", "best_ratio", "copy_ratio", "gbps", "device"),
)


def listing(evidence: "Evidence", matrices: list[TimingMatrix]) -> pd.DataFrame:
    """The measurements of one device with what they say.

    Args:
        evidence: of one device and one version of the kernels.
        matrices: of its operators, variants and dtypes; what has none has no `best_ratio`.

    Returns:
        `COLUMNS`, in the order of the evidence. median_us: of all samples, microseconds. best_ratio: time over that of
        the best config of the problem, over all runs, as the timing matrix has it; a near tie may be slightly under 1.
        copy_ratio: median over that of the copy of as many bytes in the same run. gbps: bytes that a perfect kernel
        moves over the median, 1e9 bytes a second. nan where a failure has no time, and where there is no such copy,
        matrix or operator.
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
    rows = []
    for item, median in zip(measurements, medians, strict=True):
        problem = item.problem
        loss = losses.get((problem, item.config), math.nan) if item.status == "ok" else math.nan
        rows.append(
            (
                *(problem.rows, problem.hidden, problem.dtype, problem.operator, problem.variant),
                *item.config,
                *(item.status, item.reason, median / 1000, math.exp(loss / MILLION)),
                *(median / copies.get((item.run, problem), math.nan), moved[problem] / median, devices[item.run]),
            )
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _losses(matrices: list[TimingMatrix]) -> dict[tuple[Problem, Config], float]:
    found: dict[tuple[Problem, Config], float] = {}
    for matrix in matrices:
        for place, (rows, hidden) in enumerate(matrix.problems):
            problem = Problem(matrix.operator, rows, hidden, matrix.dtype, matrix.variant)
            for config in matrix.configs:
                loss = matrix.loss(place, config)
                if loss is not None:
                    found[problem, config] = loss
    return found


def _bytes_moved(problems: set[Problem]) -> dict[Problem, float]:
    specs = operators()
    found = {}
    for problem in problems:
        spec = specs.get(problem.operator)
        found[problem] = spec.bytes_moved(problem) if spec and problem.dtype in spec.dtypes else math.nan
    return found
