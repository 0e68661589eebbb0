"""Weights of problems in a mean: equal, or from a user's file.

Weights are integers that sum to `WEIGHT` times the number of problems, so results are identical on every processor.
Problems that a file omits are left out. The least weight is 1, that is 1 / 4096 of the average.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.errors import UsageError
from normtune.heuristics.regret.matrix import WEIGHT, TimingMatrix
from normtune.kernels.key import Key
from normtune.kernels.problem import AXES, Shape, named_axes
from normtune.results.exchange.csv_file import KIND, Line, read_lines, shape_of
from normtune.results.options import number_of

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


class _WeightLine(NamedTuple):
    """One line of a file; an empty operator or dtype matches all, an operator without a variant all its variants."""

    place: str
    shape: Shape
    weight: Fraction
    operator: str
    dtype: str

    def names(self, key: Key) -> bool:
        """Whether the line matches problems of a key."""
        line = Key.parse(self.operator, self.dtype or key.dtype)
        return line.dtype == key.dtype and line.operator in ("", key.operator) and line.variant in ("", key.variant)


class Weighting:
    """Weights of problems."""

    def __init__(self, file: str | None) -> None:
        """Read the weights.

        Args:
            file: the path of a CSV file with columns rows, hidden (or the operator's own axes), and optionally weight,
                else 1, operator and dtype. Lines of one shape add up. None for equal weights.

        Raises:
            UsageError: there is no such file, or one of its lines is wrong.
        """
        self._file = file
        self._entries = [] if file is None else _entries(Path(file))

    def of(self, key: Key, shapes: Sequence[Shape]) -> NDArray[np.int64] | None:
        """Weight of each problem, int64, at least 1, `WEIGHT` on average; None for equal weights.

        `shapes` has no duplicates, and a file has a weight for each of them: see `weighed`.
        """
        return _apportioned(self._listed(key, shapes)) if self._entries else None

    def weighted(self, matrix: TimingMatrix) -> TimingMatrix:
        """A matrix with the weights of its problems."""
        return replace(matrix, weights=self.of(matrix.key, matrix.problems))

    def _listed(self, key: Key, shapes: Sequence[Shape]) -> list[Fraction]:
        """The weight that a file has for each problem; 0 for none."""
        sums: dict[Shape, Fraction] = dict.fromkeys(shapes, Fraction(0))
        for entry in self._entries:
            if entry.shape in sums and entry.names(key):
                sums[entry.shape] += entry.weight
        return list(sums.values())

    def weighed(self, evidence: "Evidence") -> "Evidence":
        """The measurements of shapes that have a weight: all, unless a file omits some."""
        if not self._entries:
            return evidence
        rows: list[int] = []
        for key in evidence.function_keys():
            part = evidence.part(key)
            shapes = evidence.shapes(part, key)
            listed = dict.fromkeys(shapes)
            weights = dict(zip(listed, self._listed(key, [*listed]), strict=True))
            rows += [row for row, shape in zip(part.index, shapes, strict=True) if weights[shape]]
        return evidence.where(evidence.frame.index.to_series().isin(rows))

    def notes(self, evidence: "Evidence") -> list[str]:
        """Notes on lines of a file without a measured shape.

        Raises:
            UsageError: no line matched.
        """
        if not self._entries:
            return []
        shapes = [(key, {*evidence.shapes(evidence.part(key), key)}) for key in evidence.function_keys()]
        unmet = [
            entry
            for entry in self._entries
            if not any(entry.shape in of_key and entry.names(key) for key, of_key in shapes)
        ]
        if len(unmet) == len(self._entries):
            first = self._entries[0]
            raise UsageError(
                f"{self._file} has no measured shape, its first is {_text(first)}: expected measured shapes "
                "(a sweep with --shapes FILE measures those of a file)"
            )
        count = f"{len(unmet)} line{'s' * (len(unmet) > 1)}"
        return [f"{count} of {self._file} match no measurement, the first is {_text(unmet[0])}"] if unmet else []


def _entries(path: Path) -> list[_WeightLine]:
    lines, axes = _lines(path)
    entries = [
        _WeightLine(line.place, shape_of(line, axes), _weight(line), *(line.cells.get(name, "") for name in KIND))
        for line in lines
    ]
    if not any(entry.weight for entry in entries):
        raise UsageError(f"{path} has no weight above 0: expected at least one")
    return entries


def _lines(path: Path) -> tuple[list[Line], tuple[str, ...]]:
    """The lines of a file, and the axes that are its columns."""
    possible_axes = named_axes()
    lines = read_lines(path, (), (*KIND, "weight", *{axis for axes in possible_axes for axis in axes}))
    for axes in possible_axes:
        if {*axes} <= lines[0].cells.keys():
            return lines, axes
    return read_lines(path, AXES, KIND), AXES  # raises the error that names the missing columns


def _weight(line: Line) -> Fraction:
    text = line.cells.get("weight", "1")
    value = number_of(text)
    if value is None or not 0 <= value < inf:
        raise UsageError(f"{line.place}: weight is {text[:40]!r}, expected a number of at least 0")
    return Fraction(value)


def _text(entry: _WeightLine) -> str:
    kind = " ".join(name for name in (entry.operator, entry.dtype) if name)
    return f"{' x '.join(map(str, entry.shape))}{f' of {kind[:40]!r}' if kind else ''} ({entry.place})"


def _apportioned(shares: Sequence[Fraction]) -> NDArray[np.int64]:
    """Integers with the mean `WEIGHT`: 1 each, the rest in proportion to the shares, by largest remainder.

    Of equal remainders the first is taken.
    """
    whole = (WEIGHT - 1) * len(shares)
    total = sum(shares)
    exact = [share * whole / total for share in shares]
    weights = [int(value) for value in exact]
    short = whole - sum(weights)
    first = sorted(range(len(shares)), key=lambda index: (weights[index] - exact[index], index))[:short]
    for index in first:
        weights[index] += 1
    return np.array(weights, np.int64) + 1
