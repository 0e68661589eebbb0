"""CSV files of users: named columns, read with their line numbers.

In: a path and the names of columns. Out: the cells of each line, as text, or an error of one line. `positive` reads a
cell as an integer. `read_cells` reads all columns; `quoted` and `unquoted` are for texts that
spreadsheets would run.
"""

import csv
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from normtune.errors import UsageError, reason_of, shortened
from normtune.kernels.problem import AXES, Shape
from normtune.results.paths import unreadable

# In memory a line takes hundreds of bytes.
MOST_LINES = 1_000_000
# How texts begin that spreadsheets take for formulas, or that `quoted` wrote.
_FORMULAS = ("=", "+", "-", "@", "'")
MOST_BYTES = 1 << 25


# Columns that say of what a line is; empty for all.
KIND = ("operator", "dtype")


class Line(NamedTuple):
    """One line of a file.

    Attributes:
        place: path and line number, for messages.
        cells: the text of each wanted column that the file has, without spaces around it.
    """

    place: str
    cells: Mapping[str, str]


class CsvTable(NamedTuple):
    """The text of a file.

    Attributes:
        names: of the columns, from its first line.
        numbers: of the lines below that are not empty.
        lines: the cells of each of these, without spaces around them; a line may have more or fewer than names.
    """

    names: list[str]
    numbers: list[int]
    lines: list[list[str]]


def read_cells(path: Path, expected: str) -> CsvTable:
    """Read a CSV file in UTF-8, with commas, and names of columns in its first line.

    `expected` describes the file for messages.

    Raises:
        UsageError: the file does not exist, cannot be read or is too large, or has no lines.
    """
    if reason := unreadable(path):
        raise UsageError(f"{path} {reason}: {expected}")
    numbers: list[int] = []
    lines: list[list[str]] = []
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise UsageError(f"{path} has {size} bytes, at most {MOST_BYTES} are read: {expected}")
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            names = [name.strip() for name in next(reader, [])]
            for row in reader:
                cells = [cell.strip() for cell in row]
                if not any(cells):
                    continue
                numbers.append(reader.line_num)
                lines.append(cells)
                if len(lines) > MOST_LINES:
                    raise UsageError(f"{path} has over {MOST_LINES} lines: {expected}")
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): change its permissions, or copy it") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is no CSV file ({reason_of(error)}): {expected}") from None
    return CsvTable(names, numbers, lines)


def read_lines(path: Path, required: Sequence[str], optional: Collection[str] = ()) -> list[Line]:
    """Read the lines below the first, except empty ones; columns that are neither required nor optional are ignored.

    Raises:
        UsageError: as `read_cells`; or a column is missing or there twice.
    """
    expected = f"expected a CSV file whose first line names the columns {','.join(required or AXES)}"
    names, numbers, lines = read_cells(path, expected)
    for name in required:
        if name not in names:
            raise UsageError(f"{path} has no column {name!r} but {shortened(','.join(names))!r}: {expected}")
    indices = {name: names.index(name) for name in (*required, *optional) if name in names}
    for name in indices:
        if names.count(name) > 1:
            raise UsageError(f"{path} names the column {name!r} {names.count(name)} times: name it once")
    if not lines:
        raise UsageError(f"{path} has no lines below its first: {expected}, and a line for each shape")
    return [
        Line(
            f"{path}, line {number}",
            {name: cells[index] if index < len(cells) else "" for name, index in indices.items()},
        )
        for number, cells in zip(numbers, lines, strict=True)
    ]


def quoted(text: str) -> str:
    """A text as a cell: with an apostrophe before it if a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(_FORMULAS) else text


def unquoted(cell: str) -> str:
    """The inverse of `quoted`."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULAS) else cell


def positive(line: Line, name: str) -> int:
    """Read a positive integer from a column.

    Raises:
        UsageError: the cell is empty or has any other text.
    """
    text = line.cells[name]
    # Longer numbers are no sizes, and Python does not parse thousands of digits.
    if not (text.isascii() and text.isdecimal() and len(text) <= 18 and int(text) > 0):
        raise UsageError(f"{line.place}: {name} is {shortened(text)!r}, expected a positive integer")
    return int(text)


def shape_of(line: Line, axes: Sequence[str] = AXES) -> Shape:
    """The shape in the columns of these sizes; errors are those of `positive`."""
    return tuple(positive(line, axis) for axis in axes)
