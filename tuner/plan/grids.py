"""The shapes to measure, from the name of a grid, lists of sizes, or a file, whose lines may name their operator."""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from normtune.errors import UsageError, shortened
from normtune.kernels.key import Key
from normtune.kernels.problem import AXES, Shape, axes_of, named_axes
from normtune.results.exchange.csv_file import KIND, Line, read_lines, shape_of

# Most elements of a problem: for larger ones, memory speed determines the time of every useful config.
MAX_ELEMENTS = 2**28

# The other size beside one that the user gives.
USUAL_ROWS = (1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 262144)
USUAL_HIDDEN = (64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 7168, 8192, 12288, 16384, 32768)
# With rows between powers of two (which, on 132 multiprocessors, all fill the last wave nearly) and hidden sizes that
# no chunk of columns divides: there, tables fitted to powers of two lost most on an H200.
_ROWS = tuple(sorted({*(2**power for power in range(19)), 192, 320, 576, 768, 1536, 3072}))
_HIDDEN = tuple(
    sorted(
        {*USUAL_HIDDEN, 80, 96, 160, 192, 288, 320, 384, 640, 896, 1152, 1792, 2304, 2560, 3584, 5632, 6144, 8704}
        | {10240, 12800, 14336, 15872, 18432, 20480, 22016, 24576, 25600, 28672, 29568}
    )
)

GRIDS: dict[str, tuple[Shape, ...]] = {
    # A lattice: every third of the rows at every second hidden size, shifted from one to the next. Tables fitted to it
    # lose half as much at other shapes as those of 13 rows by 16 hidden sizes (docs/results.md).
    "default": tuple(
        (rows, hidden)
        for column, hidden in enumerate(_HIDDEN[::2])
        for row, rows in enumerate(_ROWS)
        if (row + column) % 3 == 0
    ),
    "recording": tuple(product(_ROWS, _HIDDEN)),
}


def shapes(grid: str, *sizes: Sequence[int] | None) -> list[Shape]:
    """The shapes of a grid, at most `MAX_ELEMENTS` elements each, ordered.

    Args:
        grid: a key of `GRIDS`.
        sizes: of each axis; None for the grid's, or beside a given axis for the usual ones.

    Raises:
        UsageError: the grid is unknown, a size is not a positive integer, or no shape is left.
    """
    if grid not in GRIDS:
        raise UsageError(f"unknown grid {grid!r}: expected one of {', '.join(GRIDS)}")
    chosen = GRIDS[grid]
    if any(values is not None for values in sizes):
        for name, values in zip(AXES, sizes, strict=True):
            for size in values or ():
                if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                    raise UsageError(f"{name} has {size!r}: expected positive integers")
        axes = zip((USUAL_ROWS, USUAL_HIDDEN), sizes, strict=True)
        chosen = tuple(product(*(usual if values is None else values for usual, values in axes)))
    pairs, _ = _within(chosen)
    if not pairs:
        no = f"no {' x '.join(AXES)} of {MAX_ELEMENTS} elements or fewer"
        raise UsageError(f"the grid is empty: {no}; give smaller sizes")
    return pairs


class Listing(NamedTuple):
    """Shapes of a user, each once.

    Attributes:
        operator, dtype: of these shapes, as a file names them; empty for all.
        shapes: of at most `MAX_ELEMENTS` elements, ordered.
        larger: the others, ordered.
    """

    operator: str
    dtype: str
    shapes: list[Shape]
    larger: list[Shape]


def is_of(operator: str, names: Collection[str]) -> bool:
    """Whether names select an operator or variant: by its name, that without the variant, or its family's."""
    key = Key.parse(operator, "")
    return not names or not {key.text, key.operator, key.family}.isdisjoint(names)


def shapes_of(
    source: Path | Sequence[Shape], operators: Collection[str] = (), dtypes: Collection[str] = ()
) -> list[Listing]:
    """The shapes of a user, by operator and dtype where a file has columns of these names.

    Args:
        source: shapes; or a CSV file with columns of their sizes and possibly others.
        operators: the only ones; empty for all. A line that names none is for each of them.
        dtypes: the same for dtypes.

    Raises:
        UsageError: the file cannot be read, lacks a column or has no lines of these operators and dtypes, there is no
            shape, a size is not a positive integer, operators have different sizes, or all shapes are too large.
    """
    if isinstance(source, Path):
        listings = _listings(source, operators, dtypes)
    else:
        axes = _axes_of(operators)
        listings = [Listing("", "", *_within([_checked(shape, axes) for shape in source]))]
        if not source:
            example = (4096, 1024, 8192)[: len(axes)]
            raise UsageError(f"shapes is empty: expected tuples of {', '.join(axes)}, as [{example}]")
    if not any(one.shapes for one in listings):
        origin = f"of {source}" if isinstance(source, Path) else "given"
        first = " x ".join(map(str, listings[0].larger[0]))
        raise UsageError(
            f"every shape {origin} is too large, the first is {first}: expected at most {MAX_ELEMENTS} "
            "elements, beyond which only the speed of the memory matters; give fewer rows"
        )
    return listings


def _listings(path: Path, operators: Collection[str], dtypes: Collection[str]) -> list[Listing]:
    lines = read_lines(path, (), {*KIND, *(axis for axes in named_axes() for axis in axes)})
    by_kind: dict[tuple[str, str], list[Line]] = defaultdict(list)
    for line in lines:
        by_kind[line.cells.get("operator", ""), line.cells.get("dtype", "")].append(line)
    chosen = [
        kind
        for kind in by_kind
        if (not kind[0] or is_of(kind[0], operators)) and (not dtypes or kind[1] in ("", *dtypes))
    ]
    if not chosen:
        requested = " in ".join(" or ".join(names) for names in (operators, dtypes) if names)
        kinds = ", ".join(" ".join(filter(None, kind)) for kind in by_kind)
        raise UsageError(f"{path} has no line for {requested}: expected one of {shortened(kinds, 200)}")
    axes = _axes_of({operator for operator, _ in chosen if operator} or operators)
    if not lines[0].cells.keys() >= {*axes}:
        read_lines(path, axes)  # raises the error that names the missing columns
    return [Listing(*kind, *_within([shape_of(line, axes) for line in by_kind[kind]])) for kind in chosen]


def _axes_of(operators: Collection[str]) -> tuple[str, ...]:
    """The names of the sizes of operators, which are the same for all of them."""
    axes = {axes_of(Key.parse(name, "").family) for name in operators} or {AXES}
    if len(axes) > 1:
        named = " and ".join(", ".join(names) for names in sorted(axes))
        raise UsageError(f"--shapes is given for operators with sizes {named}: sweep them one after another")
    return axes.pop()


def _checked(shape: object, axes: Sequence[str]) -> Shape:
    sizes = shape if isinstance(shape, tuple | list) else ()
    if len(sizes) == len(axes) and all(type(size) is int and size >= 1 for size in sizes):
        return tuple(sizes)
    raise UsageError(f"shapes has {shape!r}: expected {len(axes)} positive integers, {', '.join(axes)}")


def _within(chosen: Collection[Shape]) -> tuple[list[Shape], list[Shape]]:
    """Shapes of at most `MAX_ELEMENTS` elements and larger ones, each once, by their last size first."""
    ordered = sorted(set(chosen), key=lambda shape: shape[::-1])
    large = [math.prod(shape[: len(AXES)]) > MAX_ELEMENTS for shape in ordered]
    parts = [[shape for shape, is_large in zip(ordered, large, strict=True) if is_large == side] for side in (0, 1)]
    return parts[0], parts[1]


def between(least: int, most: int, unit: int = 1) -> list[int]:
    """Sizes from `least` to `most`, a quarter of an octave apart; those in between are multiples of `unit`."""
    steps = range(round(4 * math.log2(most / least)) + 1)
    rounded = {unit * round(least * 2 ** (step / 4) / unit) for step in steps}
    return sorted({least, most, *(size for size in rounded if least < size < most)})
