"""The text of a pull request to Liger-Kernel for the launches of a fit, in the manner of its #1238.

In: a fitted table and its timing matrices. Out: Markdown: what changes, how it was measured, a table for each pass with
a control.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import exp
from typing import NamedTuple

import numpy as np

from normtune.heuristics.comparing.contenders import Side
from normtune.heuristics.comparing.difference import Difference, difference
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.result import Fit
from normtune.heuristics.regret.best_times import best_times
from normtune.heuristics.regret.effects import block_of
from normtune.heuristics.regret.fixed_log import MILLION, percent, ratio_in_words
from normtune.heuristics.regret.matrix import MISSING, TimingMatrix
from normtune.heuristics.writing.liger import BACKWARD, FORWARD, Pass, passes_of
from normtune.kernels.operator import operator
from normtune.kernels.problem import Shape
from normtune.kernels.tablefile.tree import choose
from normtune.kernels.target import plain_letters
from normtune.results.evidence import Evidence

# The most rows and columns of a table.
_ROWS, _COLUMNS = 8, 7


class FittedData(NamedTuple):
    """A fit with its measurements and options."""

    fit: Fit
    evidence: Evidence
    options: FitOptions


class _Cell(NamedTuple):
    """Nanoseconds at a shape: of today's launch, the fitted launch, and today's launch in each half of its blocks."""

    before: float
    after: float
    halves: tuple[float, float]


Cells = Mapping[Shape, _Cell]


def text(table: FittedData, matrices: Sequence[TimingMatrix]) -> str:
    """The text; `matrices` are weighted.

    Raises:
        UsageError: the fit is not of Liger's operators.
    """
    fit, label = table.fit, plain_letters(table.fit.device.label)
    sections: list[str] = []
    cells: dict[str, dict[Pass, Cells]] = {}
    for one, functions in passes_of(fit).items():
        for function in functions:
            matrix = next(matrix for matrix in matrices if matrix.key == function.key)
            compared = _against_today(table, matrix)
            sections += _gains(one, compared, function.figures.leaves)
            cells.setdefault(function.key.dtype, {})[one] = _cells(compared)
    lines = [
        "## Summary",
        "",
        f"Launches of RMSNorm by thresholds on rows and hidden size, fitted to kernel times on {label}: the row or the "
        "block-row kernel, `BLOCK_ROW`, warps, and in the backward the partial sums of dW. GPUs of other kinds keep "
        "today's condition. No kernel changes.",
        "",
        *sections,
        "",
        "## Details",
        "",
        f"- Measured by normtune at {len(matrices[0].problems)} shapes: kernel "
        "time, inputs not in the L2 cache, all configs of a shape in turns. A config was timed only after its results "
        "passed a check against float64.",
        f"- {label}, {fit.device.target}, {fit.device.sms} multiprocessors; triton {fit.software.get('triton')}, torch "
        f"{fit.software.get('torch')}; {fit.data.extent}.",
        "",
        "## Benchmark",
        "",
        "Milliseconds of today's launch → the fitted one (change). Control: today's launch in one half of the rounds → "
        "in the other half, which is noise.",
    ]
    for dtype, of_passes in cells.items():
        tables = {"Forward + backward": tuple(of_passes)} if len(of_passes) > 1 else {}
        tables |= {one.title.capitalize(): (one,) for one in (BACKWARD, FORWARD) if one in of_passes}
        for title, passes in tables.items():
            lines += ["", f"{title}, {dtype}:", "", *_table([of_passes[one] for one in passes])]
    lines += [
        *("", "## Testing Done", "", f"- Hardware Type: {label}"),
        *(f"- [ ] run `{command}`" for command in _TESTS),
        "",
    ]
    return "\n".join(lines)


_TESTS = (
    "python -m pytest test/transformers/test_rms_norm.py",
    "make test",
    "make checkstyle",
    "make test-convergence",
)


def _against_today(table: FittedData, matrix: TimingMatrix) -> Difference:
    """A function of the table compared with Liger's present launches, which are the operator's default configs."""
    spec, key = operator(matrix.key.operator), matrix.key
    tree = next(function.tree for function in table.fit.functions if function.key == key)
    target = table.fit.device.as_target()
    fitted = Side("fitted", lambda problem, target: choose(tree, problem.shape))
    todays = Side("today", spec.default_config)
    return difference(spec, matrix, target, fitted, todays, best_times(table.evidence, matrix).best)


def _gains(one: Pass, compared: Difference, leaves: int) -> Iterator[str]:
    """The gain of a pass in a line."""
    name = f"- {one.title.capitalize()}, {compared.matrix.key.dtype}"
    logs = {}
    for index in compared.timed:
        fitted, todays = (choices[index].loss or 0 for choices in compared.choices)
        logs[compared.matrix.problems[index]] = todays - fitted
    if not logs:
        yield f"{name}: today's launch was measured at no shape."
        return
    total = sum(logs.values()) / len(logs)
    least = min(logs, key=logs.__getitem__)
    slower = f"; at most {percent(-logs[least], 1)} slower, at {least[0]} x {least[1]}" if logs[least] < 0 else ""
    regions = f"{leaves} region{'s' * (leaves != 1)}"
    yield f"{name}: {regions}, {ratio_in_words(total)} today on average over {len(logs)} shapes{slower}."


def _cells(compared: Difference) -> Cells:
    """The times at each shape at which both launches have one."""
    matrix, found = compared.matrix, {}
    for index in compared.timed:
        fitted, todays = (choices[index] for choices in compared.choices)
        best = float(compared.best[index])
        before, after = (best * exp((choice.loss or 0) / MILLION) for choice in (todays, fitted))
        found[matrix.problems[index]] = _Cell(before, after, _halves(matrix, index, todays.column, before))
    return found


def _halves(matrix: TimingMatrix, problem: int, column: int | None, time: float) -> tuple[float, float]:
    """The time of a config in its even and in its odd blocks, from its time in all blocks."""
    if matrix.rounds is None or column is None:
        return time, time
    logs, blocks = matrix.rounds.of(problem, column), block_of(matrix.rounds.labels[problem])
    timed = logs != MISSING
    parts = [logs[timed & (blocks % 2 == half)] for half in (0, 1)]
    if not all(part.size for part in parts):
        return time, time
    middle = float(np.median(logs[timed]))
    even, odd = (time * exp((float(np.median(part)) - middle) / MILLION) for part in parts)
    return even, odd


def _table(parts: Sequence[Cells]) -> Iterator[str]:
    """The lines of a table: times summed over passes, and the control at the longest row."""
    shapes = [shape for shape in parts[0] if all(shape in part for part in parts)]
    rows = _spread({rows for rows, _ in shapes}, _ROWS)
    columns = _spread({hidden for _, hidden in shapes}, _COLUMNS)
    yield f"| rows | {' | '.join(f'h={hidden}' for hidden in columns)} | h={columns[-1]} (ctrl) |"
    yield "|---:" * (len(columns) + 2) + "|"
    for row in rows:
        cells = [[part[row, hidden] for part in parts] if (row, hidden) in shapes else [] for hidden in columns]
        shown = [_change([(cell.before, cell.after) for cell in each]) for each in cells]
        control = _change([cell.halves for cell in cells[-1]])
        yield f"| {row} | {' | '.join([*shown, control])} |"


def _change(times: Sequence[tuple[float, float]]) -> str:
    """Milliseconds before and after, and the change, of times in nanoseconds that are summed."""
    if not times:
        return "-"
    before, after = (sum(each) / 1e6 for each in zip(*times, strict=True))
    return f"{before:.4f} → {after:.4f} ({100 * (after / before - 1):+.1f}%)"


def _spread(sizes: Collection[int], most: int) -> list[int]:
    """At most `most` of the sizes, evenly spread from the least to the largest."""
    ordered = sorted(sizes)
    count = min(most, len(ordered))
    return [ordered[round(place * (len(ordered) - 1) / max(1, count - 1))] for place in range(count)]
