"""The comparison of two tables, or of a table and a rule, from Python.

In: two names and measurements. Out: `Diff`: for each device the differences by operator and dtype. `comparing.report`
has their text; nothing is printed.
"""

import math
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pandas as pd

from normtune.heuristics.comparing.contenders import contender
from normtune.heuristics.comparing.difference import Difference, difference
from normtune.heuristics.comparing.options import DiffRequest
from normtune.heuristics.comparing.report import GAINS, difference_lines, summary_lines, verdict_lines
from normtune.heuristics.regret.build import matrices_of, outdated
from normtune.heuristics.regret.fixed_log import fraction
from normtune.heuristics.regret.specs import spec_of
from normtune.heuristics.regret.weights import Weighting
from normtune.heuristics.report.notebook import html_of
from normtune.heuristics.rules import AUTOTUNED, RULES
from normtune.heuristics.writing.named_files import selected
from normtune.kernels.tablefile.locate import load_table
from normtune.results.options import keywords_of
from normtune.results.records import Device
from normtune.results.terminal import printable


class DeviceDiff(NamedTuple):
    """The comparison on the measurements of one device.

    Attributes:
        device: the device.
        differences: one for each measured operator, variant and dtype.
        notes: why data was left out.
    """

    device: Device
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]


class Diff(NamedTuple):
    """The comparison of two tables or rules.

    Attributes:
        names: of the two.
        devices: the comparison on each device.
        notes: on the weights.
    """

    names: tuple[str, str]
    devices: tuple[DeviceDiff, ...]
    notes: tuple[str, ...]

    def frame(self) -> pd.DataFrame:
        """The figures, a row for each device, operator and dtype.

        Returns:
            Columns device, operator (with its variant), dtype, shapes (number with times of both), first_mean,
            first_worst, second_mean and second_worst (losses against the best config, 0.0123 for 1.23 %), faster (mean
            time of the second over that of the first, less 1) and saved_us (microseconds a call); nan without a time.
        """
        return pd.DataFrame(
            [_row(part.device, result) for part in self.devices for result in part.differences], columns=_ROW
        )

    def markdown(self) -> str:
        """The output of `normtune diff --markdown`, for a pull request: a summary, then each operator to unfold."""
        return "\n".join(self.details(_COLUMNS, markdown=True))

    def _repr_html_(self) -> str:
        return html_of(self.verdict())

    def verdict(self) -> Iterator[str]:
        """The lines of `normtune diff`: how much faster the first is, and where."""
        for number, (device, differences, notes) in enumerate(self.devices):
            if number:
                yield ""
            yield self._title(device, self.names)
            yield from notes
            for result in differences:
                yield ""
                yield from verdict_lines(result, device.l2_bytes)
        yield from (f"\n{note}" for note in self.notes)

    def details(self, columns: int, markdown: bool = False) -> Iterator[str]:
        """The lines of `--details`: figures, and maps of `columns` characters a line."""
        for number, (device, differences, notes) in enumerate(self.devices):
            if number:
                yield ""
            label = self._title(device, [f"`{name}`" if markdown else name for name in self.names])
            yield f"## {label}\n" if markdown else label
            yield GAINS
            yield from (f"\n{note}" for note in notes)
            for lines in (
                summary_lines(differences, markdown),
                *(difference_lines(result, columns, device.l2_bytes, markdown) for result in differences),
            ):
                yield ""
                yield from lines
        yield from (f"\n{note}" for note in self.notes)

    def _title(self, device: Device, names: Sequence[str]) -> str:
        return printable(f"{device.label}, {device.target}, {device.sms} SMs: A is {names[0]}, B is {names[1]}")


# Width of a map in Markdown, which no terminal wraps.
_COLUMNS = 80
_ROW = (
    *("device", "operator", "dtype", "shapes", "first_mean", "first_worst", "second_mean", "second_worst"),
    *("faster", "saved_us"),
)


def _row(device: Device, result: Difference) -> tuple[object, ...]:
    losses, gain, faster = result.common(), result.gain(), result.faster()
    figures = [figure for loss in losses or () for figure in (loss.fractions.mean, loss.fractions.worst)]
    name = device.label, result.matrix.key.text, result.matrix.key.dtype, len(result.timed)
    gained = math.nan if faster is None else fraction(faster), gain.saved.mean if gain else math.nan
    return *name, *(figures or [math.nan] * 4), *gained


@keywords_of(DiffRequest)
def diff(request: DiffRequest) -> Diff:
    """Compare two tables, or a table and the launch rule of another library, as `normtune diff` does.

    Raises:
        UsageError: a name is no table or rule, or a requested operator or dtype was not measured.
        NormtuneError: the store cannot be read.
    """
    names = os.fspath(request.first), os.fspath(request.second)
    contenders = contender(names[0]), contender(names[1])
    weighting = Weighting(None if request.weights is None else os.fspath(request.weights))
    tables = [load_table(side) for side in names if side not in {*RULES, *AUTOTUNED}]
    evidence = selected(request, request.data, tables[0] if tables else None)
    notes = weighting.notes(evidence)

    def on(device: Device) -> DeviceDiff:
        part = evidence.of(device)
        current = part.current()
        matrices, notes = matrices_of(weighting.weighed(current), device)
        target = device.as_target()
        differences = []
        for unweighted in matrices:
            spec = spec_of(current, unweighted.key.operator)
            matrix = weighting.weighted(unweighted)
            differences.append(difference(spec, matrix, target, *contenders))
        return DeviceDiff(device, tuple(differences), (*outdated(part, current), *notes))

    devices = tuple(map(on, evidence.devices()))
    return Diff((contenders[0].name, contenders[1].name), devices, tuple(notes))
