"""The shapes to measure, as (rows, hidden) pairs, from the name of a grid, lists of sizes, or a file of shapes."""

import math
from collections.abc import Collection, Sequence
from itertools import product
from pathlib import Path

from normtune.errors import UsageError
from normtune.results.exchange.csv_file import positive, read_lines

# Most elements of a problem: for larger ones, memory speed determines the time of every useful config.
MAX_ELEMENTS = 2**28

_DEFAULT_ROWS = (1, 8, 32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 262144)
_DEFAULT_HIDDEN = (64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 5120, 7168, 8192, 12288, 16384, 32768)
# With rows between powers of two (which, on 132 multiprocessors, all fill the last wave nearly) and hidden sizes that
# no chunk of columns divides: there, tables fitted to powers of two lost most on an H200.
_RECORDING_ROWS = tuple(sorted({*(2**power for power in range(19)), 192, 320, 576, 768}))
_RECORDING_HIDDEN = tuple(
    sorted(
        {*_DEFAULT_HIDDEN, 80, 96, 160, 192, 384, 640, 896, 1152, 1792, 2304, 2560, 3584, 5632, 6144, 8704}
        | {10240, 12800, 14336, 15872, 18432, 20480, 22016, 24576, 25600, 28672, 29568}
    )
)
# Corners, edges and middle, for trials of the full space that show which knobs the default space needs.
_PROBE = (
    *((1, 64), (1, 4096), (1, 32768), (64, 128), (64, 4096), (128, 32768), (512, 2048), (1024, 5120), (1024, 8192)),
    *((4096, 128), (4096, 1536), (4096, 4096), (4096, 8192), (4096, 16384), (8192, 32768), (32768, 256)),
    *((32768, 4096), (65536, 768), (262144, 64), (262144, 1024)),
)

_DEFAULT = tuple((rows, hidden) for hidden in _DEFAULT_HIDDEN for rows in _DEFAULT_ROWS)

GRIDS: dict[str, tuple[tuple[int, int], ...]] = {
    "default": _DEFAULT,
    # Every third shape along each axis, shifted from one hidden size to the next, so that all rows and hidden sizes
    # occur, and the corners: both tables of the recorded H200 lose less on the whole grid than with 7 x 9 fixed sizes.
    "quick": tuple(
        shape for shape in _DEFAULT if (_DEFAULT_ROWS.index(shape[0]) + _DEFAULT_HIDDEN.index(shape[1])) % 3 == 0
    ),
    "recording": tuple((rows, hidden) for hidden in _RECORDING_HIDDEN for rows in _RECORDING_ROWS),
    "probe": _PROBE,
}


def shapes(grid: str, rows: Sequence[int] | None = None, hidden: Sequence[int] | None = None) -> list[tuple[int, int]]:
    """The (rows, hidden) pairs of a grid, at most `MAX_ELEMENTS` elements each, ordered.

    Args:
        grid: a key of `GRIDS`.
        rows: replace the grid's rows.
        hidden: replace the grid's hidden sizes.

    Raises:
        UsageError: the grid is unknown, a size is not a positive integer, or no shape is left.
    """
    if grid not in GRIDS:
        raise UsageError(f"unknown grid {grid!r}: expected one of {', '.join(GRIDS)}")
    chosen = GRIDS[grid]
    if rows is not None or hidden is not None:
        for name, sizes in (("rows", rows), ("hidden", hidden)):
            for size in sizes or ():
                if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                    raise UsageError(f"{name} has {size!r}: expected positive integers")
        grid_rows, grid_hidden = ({pair[axis] for pair in chosen} for axis in (0, 1))
        chosen = tuple(product(grid_rows if rows is None else rows, grid_hidden if hidden is None else hidden))
    pairs, _ = _within(chosen)
    if not pairs:
        raise UsageError(f"the grid is empty: no rows x hidden of {MAX_ELEMENTS} elements or fewer; give smaller sizes")
    return pairs


def shapes_of(source: Path | Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The shapes of a user, each once: those to measure, and those that are too large.

    Args:
        source: (rows, hidden) pairs; or a CSV file with these columns and possibly others.

    Returns:
        (rows, hidden) pairs of at most `MAX_ELEMENTS` elements, and larger ones, both ordered.

    Raises:
        UsageError: the file cannot be read, lacks a column or has no lines, there is no pair, a size is not a positive
            integer, or all shapes are too large.
    """
    if isinstance(source, Path):
        lines = read_lines(source, ("rows", "hidden"))
        pairs, larger = _within([(positive(line, "rows"), positive(line, "hidden")) for line in lines])
    else:
        pairs, larger = _within([_pair(shape) for shape in source])
    if not pairs:
        if not larger:
            raise UsageError("shapes is empty: expected pairs of rows and hidden, as [(4096, 1024)]")
        rows, hidden = larger[0]
        origin = f"of {source}" if isinstance(source, Path) else "given"
        raise UsageError(
            f"every shape {origin} is too large, the first is {rows} x {hidden}: expected at most {MAX_ELEMENTS} "
            "elements, beyond which only the speed of the memory matters; give fewer rows"
        )
    return pairs, larger


def _pair(shape: object) -> tuple[int, int]:
    match shape:
        case [int(rows), int(hidden)] if min(rows, hidden) >= 1:
            return rows, hidden
    raise UsageError(f"shapes has {shape!r}: expected pairs of positive integers, rows and hidden")


def _within(chosen: Collection[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Shapes of at most `MAX_ELEMENTS` elements and larger ones, each once, by hidden and rows."""
    ordered = sorted(set(chosen), key=lambda pair: (pair[1], pair[0]))
    pairs = [pair for pair in ordered if pair[0] * pair[1] <= MAX_ELEMENTS]
    return pairs, [pair for pair in ordered if pair[0] * pair[1] > MAX_ELEMENTS]


def between(least: int, most: int, unit: int = 1) -> list[int]:
    """Sizes from `least` to `most`, a quarter of an octave apart; those in between are multiples of `unit`."""
    steps = range(round(4 * math.log2(most / least)) + 1)
    rounded = {unit * round(least * 2 ** (step / 4) / unit) for step in steps}
    return sorted({least, most, *(size for size in rounded if least < size < most)})
