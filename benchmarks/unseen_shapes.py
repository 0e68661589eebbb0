"""Draws shapes that no table was fitted to, with a fixed seed.

In: nothing. Out: on standard output, a CSV file that `normtune sweep --shapes` takes. The committed one is
`tests/heuristics/fitting/unseen_shapes.csv`. No GPU is needed. An earlier list, `used_shapes.csv`, decided between ways
to fit.

No two shapes have the same hidden size: losses at shapes of one size are correlated. Rows and hidden are log-uniform
over the measured box; what is too large, and a hidden size that was drawn before, or is of a grid, of `TRIED` or of the
lists in `EARLIER`, is drawn again. Of the multiples of 128 up to 1152 hardly any is left then.
"""

import random
from pathlib import Path

from normtune.results.exchange.csv_file import positive, read_lines
from normtune.tuner.plan.grids import GRIDS, MAX_ELEMENTS

EARLIER = [
    Path(__file__).parents[1] / "tests" / "heuristics" / "fitting" / name
    for name in ("held_out_shapes.csv", "used_shapes.csv")
]
COUNT, SEED = 128, 61
# Measured for trials of the fit, and not recorded.
TRIED = (224, 448, 1280, 2880, 3328, 3840, 4608, 6656, 7680, 9216, 11264)
MOST_ROWS, LEAST_HIDDEN, MOST_HIDDEN = 262144, 64, 32768
# Alternately: rows of half of the hidden sizes are read in the widest pieces, as those of most models.
UNITS = (128, 8)


def draw() -> list[tuple[int, int]]:
    """(rows, hidden) pairs, by hidden size. A multiple of 128 is never drawn as one of 8."""
    source = random.Random(SEED)
    taken = {*TRIED} | {hidden for grid in GRIDS.values() for _, hidden in grid}
    taken |= {positive(line, "hidden") for file in EARLIER for line in read_lines(file, ("rows", "hidden"))}
    found: dict[int, int] = {}
    while len(found) < COUNT:
        unit = UNITS[len(found) % len(UNITS)]
        rows = round(MOST_ROWS ** source.random())
        hidden = unit * round(LEAST_HIDDEN * (MOST_HIDDEN / LEAST_HIDDEN) ** source.random() / unit)
        if hidden and hidden not in taken and rows * hidden <= MAX_ELEMENTS and (unit == 128 or hidden % 128):
            taken.add(hidden)
            found[hidden] = rows
    return [(rows, hidden) for hidden, rows in sorted(found.items())]


if __name__ == "__main__":
    print("rows,hidden", *(f"{rows},{hidden}" for rows, hidden in draw()), sep="\n")
