"""The plane of two sizes that a map shows: its edges, the tiles of measured shapes, and the regions of a tree.

In: shapes and trees. Out: data frames of rectangles in sizes, which a chart draws on logarithmic axes. Of three sizes
the third is folded: rectangles say for which of its sizes they hold.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from normtune.kernels.box import Box
from normtune.kernels.config import Config
from normtune.kernels.derived_size import is_derived
from normtune.kernels.problem import Shape
from normtune.kernels.tablefile.tree import Split, Tree, choose, nodes, regions

# Least share of the combinations of sizes that must be measured for tiles to fill the plane.
_FILLED = 0.25
# Tiles of scattered shapes, as a share of the plane's width.
_TILE = 0.022
# Cells of a plane with a threshold on a derived size, which is no line along an axis: across and down.
_CELLS = 128, 96
# Pixels: of the plane for which names are broken into lines, and of a character and a line of them.
_PIXELS = 640, 400
CHARACTER, LINE = 6.2, 13
_COLUMNS = ["config", "x0", "x1", "y0", "y1", "z0", "z1"]


class Plane(NamedTuple):
    """The measured sizes of two or three axes.

    Attributes:
        axes: their names; the first is drawn across, the second down, the third folded.
        sizes: the measured sizes of each, ascending.
    """

    axes: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, axes: Sequence[str], shapes: Sequence[Shape]) -> "Plane":
        """The plane of some shapes, at least one."""
        return cls(tuple(axes), tuple(tuple(sorted({*sizes})) for sizes in zip(*shapes, strict=True)))

    def edges(self, axis: int) -> list[float]:
        """The borders of the tiles along an axis, one more than it has sizes; the first and the last end the plane."""
        sizes = self.sizes[axis]
        inner = [math.sqrt(low * high) for low, high in pairwise(sizes)]
        before, after = (inner[0], inner[-1]) if inner else (sizes[0] * math.sqrt(2), sizes[0] / math.sqrt(2))
        return [
            max(sizes[0] * sizes[0] / before, sizes[0] / 2) if inner else after,
            *inner,
            min(sizes[-1] * sizes[-1] / after, sizes[-1] * 2) if inner else before,
        ]

    def domain(self, axis: int) -> tuple[float, float]:
        """The least and the most that is drawn of an axis."""
        edges = self.edges(axis)
        return round(edges[0], 3), round(edges[-1], 3)

    def ticks(self, axis: int) -> list[int]:
        """The powers of two to write at an axis, at most nine."""
        least, most = self.domain(axis)
        powers = [2**power for power in range(31) if least <= 2**power <= most]
        return powers[:: 1 + (len(powers) - 1) // 9] or list(self.sizes[axis][:1])

    def is_filled_by(self, shapes: int) -> bool:
        """Whether so many shapes are a grid, whose tiles touch; else they are scattered."""
        return shapes >= _FILLED * math.prod(map(len, self.sizes))

    def around(self, axis: int) -> float:
        """The factor from a scattered shape to the edge of its tile."""
        least, most = self.domain(axis)
        return (most / least) ** (_TILE / 2)

    def tiles(self, shapes: Sequence[Shape]) -> pd.DataFrame:
        """Columns x, y, z (sizes; z is 0 without a third) and x0, x1, y0, y1, a tile around each shape."""
        filled = self.is_filled_by(len(shapes))
        columns: dict[str, list[float]] = {"z": [shape[2] if len(shape) > 2 else 0 for shape in shapes]}
        for axis, name in enumerate("xy"):
            sizes = [shape[axis] for shape in shapes]
            columns[name] = [*sizes]
            if filled:
                edges, place = self.edges(axis), {size: number for number, size in enumerate(self.sizes[axis])}
                ends = [(edges[place[size]], edges[place[size] + 1]) for size in sizes]
            else:
                ends = [(size / self.around(axis), size * self.around(axis)) for size in sizes]
            columns[f"{name}0"], columns[f"{name}1"] = (list(end) for end in zip(*ends, strict=True))
        return pd.DataFrame(columns)

    def gaps(self, shapes: Sequence[Shape]) -> pd.DataFrame:
        """Columns x0, x1, y0, y1 and z: combinations of sizes that were not measured, where most were."""
        edges, rows, known = (self.edges(0), self.edges(1)), [], {*shapes}
        for z in self.sizes[2] if len(self.axes) > 2 else (0,):
            for column, x in enumerate(self.sizes[0]) if self.is_filled_by(len(shapes)) else ():
                start = None
                for row, y in enumerate((*self.sizes[1], None)):
                    is_gap = y is not None and (x, y, z)[: len(self.axes)] not in known
                    if is_gap and start is None:
                        start = row
                    elif not is_gap and start is not None:
                        rows.append((edges[0][column], edges[0][column + 1], edges[1][start], edges[1][row], z))
                        start = None
        return pd.DataFrame(rows, columns=["x0", "x1", "y0", "y1", "z"])

    def regions(self, tree: Tree, whole: Box) -> pd.DataFrame:
        """The regions of a tree on the plane.

        Returns:
            Columns config (`Config`), x0, x1, y0, y1, the edges within the plane, and z0 and z1, the least and the most
            third size for which they hold. Where the tree has a threshold on a derived size, regions are stacks of thin
            rectangles.
        """
        if any(isinstance(node, Split) and is_derived(node.axis) for node in nodes(tree)):
            return self._cells(tree)
        (left, right), (top, bottom) = self.domain(0), self.domain(1)
        rows = []
        for config, box in regions(tree, whole):
            x, y = box[0], box[1]
            z = (box[2].least, box[2].most) if len(self.axes) > 2 else (0, 0)
            ends = (
                max(x.least - 0.5, left),
                min(x.most + 0.5, right),
                max(y.least - 0.5, top),
                min(y.most + 0.5, bottom),
            )
            if ends[0] < ends[1] and ends[2] < ends[3] and (len(self.axes) < 3 or self._has(z)):
                rows.append((config, *ends, *z))
        return pd.DataFrame(rows, columns=_COLUMNS)

    def _has(self, z: tuple[int, int]) -> bool:
        return any(z[0] <= size <= z[1] for size in self.sizes[2])

    def _cells(self, tree: Tree) -> pd.DataFrame:
        across, down = ([*map(float, np.geomspace(*self.domain(axis), _CELLS[axis] + 1))] for axis in (0, 1))
        sizes = [[max(1, round(math.sqrt(low * high))) for low, high in pairwise(ends)] for ends in (across, down)]
        rows: list[tuple[Config, float, float, float, float, int, int]] = []
        for z in self.sizes[2] if len(self.axes) > 2 else (0,):
            last: list[tuple[Config, float, float]] = []
            for row, y in enumerate(sizes[1]):
                shapes = [(x, y, z)[: len(self.axes)] for x in sizes[0]]
                runs = _runs([choose(tree, shape, self.axes) for shape in shapes], across)
                if runs == last:  # the strip above goes on
                    rows[-len(runs) :] = [(*old[:4], down[row + 1], z, z) for old in rows[-len(runs) :]]
                else:
                    rows += [(*run, down[row], down[row + 1], z, z) for run in runs]
                last = runs
        return pd.DataFrame(rows, columns=_COLUMNS)

    def labelled(self, regions: pd.DataFrame) -> pd.DataFrame:
        """The regions with columns label (their config's name in lines), chars (of its longest line) and lines.

        Also wide and high, the room for the name as shares of the plane, border, whether its edges are thresholds,
        and ratio, of the ends of the plane from top to bottom.
        Of regions in thin rectangles one rectangle has the name of each config.
        """
        shares = []
        for axis, name in enumerate("xy"):
            least, most = self.domain(axis)
            extent = [math.log(high / low) for low, high in zip(regions[f"{name}0"], regions[f"{name}1"], strict=True)]
            shares.append(pd.Series(extent, index=regions.index, dtype=float) / math.log(most / least))
        wide, high = shares
        border = not len(regions) or float(high.max()) > 1.5 / _CELLS[1] or len(regions) < _CELLS[1]
        if not border:
            wide, high = _rooms(regions, wide, high)
        labels = [
            _lines(short_name(config), int(share * _PIXELS[0] / CHARACTER))
            for config, share in zip(regions["config"], wide, strict=True)
        ]
        return regions.assign(
            wide=wide.round(4),
            high=high.round(4),
            label=["\n".join(lines) for lines in labels],
            chars=[max(map(len, lines)) for lines in labels],
            lines=[len(lines) for lines in labels],
            border=border,
            ratio=round(self.domain(1)[1] / self.domain(1)[0], 3),
        )


def _rooms(
    regions: pd.DataFrame, wide: "pd.Series[float]", high: "pd.Series[float]"
) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """The room in the widest rectangle of each config and third size, as high as those above and below its middle."""
    rooms = pd.DataFrame({"wide": 0.0, "high": 0.0}, index=regions.index)
    for _, widths in wide.groupby([regions["config"].map(str), regions["z0"]]):
        widest = widths.index[widths > 0.8 * widths.max()]
        row = widest[len(widest) // 2]
        own = regions.loc[row]
        middle = math.sqrt(own["x0"] * own["x1"])
        alike = (regions["config"] == own["config"]) & (regions["z0"] == own["z0"])
        over = alike & (regions["x0"] <= middle) & (middle <= regions["x1"])
        rooms.loc[row] = wide[row], high[over].sum()
    return rooms["wide"], rooms["high"]


def _runs(configs: Sequence[Config], ends: Sequence[float]) -> list[tuple[Config, float, float]]:
    """Neighbouring cells of one config as one, with its ends."""
    found: list[tuple[Config, float, float]] = []
    for config, low, high in zip(configs, ends, ends[1:], strict=False):
        found[-1:] = (
            [(config, found[-1][1], high)] if found and found[-1][0] == config else [*found[-1:], (config, low, high)]
        )
    return found


def short_name(config: Config) -> str:
    """The name of a config on a map and in a list."""
    return str(config).replace("programs_per_sm=", "per_sm=").replace("finish=", "")


def _lines(name: str, width: int) -> list[str]:
    """A name in as few lines as a width takes; longer ones where a word is longer."""
    lines: list[str] = []
    for word in name.split(" "):
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
