"""The comparison of two tables, or of a table and a rule, from Python.

In: two names and measurements. Out: `Diff`: for each device the differences by operator and dtype. `comparing.report`
has their text; nothing is printed.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pandas as pd

from normtune.heuristics.comparing.contenders import contender
from normtune.heuristics.comparing.difference import Difference, difference
from normtune.heuristics.comparing.report import GAINS, against_liger, difference_lines, summary_lines
from normtune.heuristics.regret.best_times import best_times
from normtune.heuristics.regret.build import matrices_of, outdated
from normtune.heuristics.regret.weights import Weighting
from normtune.kernels.operator import operator as registered
from normtune.kernels.target import target_for
from normtune.results.evidence import Evidence
from normtune.results.records import Device
from normtune.results.regimes import COLD
from normtune.results.source import Measured, selected
from normtune.results.terminal import printable


class DeviceDiff(NamedTuple):
    """The comparison on the measurements of one device.

    Attributes:
        device: the device.
        differences: one for each measured operator, variant and dtype.
        notes: what was left out of the data, and why.
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
            Columns device, operator (with its variant), dtype, shapes (where both have a time), first_mean,
            first_worst, second_mean and second_worst (loss against the best config, 0.0123 for 1.23 %), faster (gain of
            the first instead of the second, as a fraction) and saved_us (microseconds a call); nan without a time.
        """
        return pd.DataFrame(
            [_row(part.device, result) for part in self.devices for result in part.differences], columns=_ROW
        )

    def markdown(self) -> str:
        """What `normtune diff --markdown` prints, for a pull request: a summary, then each operator to unfold."""
        return "\n".join(self.lines(_COLUMNS, markdown=True))

    def lines(self, columns: int, markdown: bool = False) -> Iterator[str]:
        """What `normtune diff` prints, with maps of that width."""
        for number, (device, differences, notes) in enumerate(self.devices):
            if number:
                yield ""
            names = [f"`{name}`" if markdown else name for name in self.names]
            label = printable(f"{device.label}, {device.target}, {device.sms} SMs: A is {names[0]}, B is {names[1]}")
            yield f"## {label}\n" if markdown else label
            yield GAINS
            yield from (f"\n{note}" for note in notes)
            for lines in (
                summary_lines(differences, markdown),
                *(difference_lines(result, columns, device.l2_bytes, markdown) for result in differences),
            ):
                yield ""
                yield from lines
            yield from against_liger(differences)
        yield from (f"\n{note}" for note in self.notes)


# Width of a map in Markdown, which no terminal wraps.
_COLUMNS = 80
_ROW = (
    *("device", "operator", "dtype", "shapes", "first_mean", "first_worst", "second_mean", "second_worst"),
    *("faster", "saved_us"),
)


def _row(device: Device, result: Difference) -> tuple[object, ...]:
    losses, gain = result.common(), result.gain()
    figures = [figure for loss in losses or () for figure in (loss.fractions.mean, loss.fractions.worst)]
    gained = (gain.ratio.mean, gain.saved.mean) if gain else (float("nan"),) * 2
    name = device.label, result.matrix.key.text, result.matrix.key.dtype, len(result.timed)
    return *name, *(figures or [float("nan")] * 4), *gained


def diff(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    data: Measured = None,
    *,
    recording: str | None = None,
    regime: str = COLD,
    weights: str | os.PathLike[str] = "decades",
    operators: str | Iterable[str] = (),
    dtypes: str | Iterable[str] = (),
) -> Diff:
    """Compare two tables, or a table and the launch rule of another library, as `normtune diff` does.

    Args:
        first: the file of a table, or the name of a shipped table (`nvidia-h200`) or of a rule (`liger`).
        second: the other one.
        data: a store, open or by its file or URL, or evidence; the default store without it.
        recording: name of a recording that ships with normtune, in place of data.
        regime: only times measured `cold`, `warm` or `eager`.
        weights: of shapes in means: `decades`, `equal`, or a CSV file with columns rows, hidden and weight.
        operators: only these, plain names or names with a variant; empty means all.
        dtypes: only these; empty means all.

    Raises:
        UsageError: a name is no table or rule, or nothing was measured of what is asked for.
        NormtuneError: the store cannot be read.
    """
    return compared(first, second, weights, lambda: selected(data, recording, regime, operators, dtypes))


def compared(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    weights: str | os.PathLike[str],
    load: Callable[[], Evidence],
) -> Diff:
    """As `diff`, of measurements that are loaded after the names are checked."""
    contenders = contender(os.fspath(first)), contender(os.fspath(second))
    weighting = Weighting(os.fspath(weights))
    evidence = load()

    def on(device: Device) -> DeviceDiff:
        part = evidence.of(device)
        current = part.current()
        matrices, notes = matrices_of(current, device)
        target = target_for(device.target, device.sms)._replace(l2_bytes=device.l2_bytes)
        weighted = [weighting.weighted(registered(unweighted.key.operator), unweighted) for unweighted in matrices]
        differences = [difference(matrix, target, *contenders, best_times(current, matrix).best) for matrix in weighted]
        return DeviceDiff(device, tuple(differences), (*outdated(part, current), *notes))

    devices = tuple(map(on, evidence.devices()))
    return Diff((contenders[0].name, contenders[1].name), devices, tuple(weighting.notes()))
