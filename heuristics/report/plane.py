"""The plane of two sizes on a map: its extent, the tiles of measured shapes, and the regions of a tree.

In: shapes and trees. Out: data frames of rectangles in units of the sizes, which charts draw on logarithmic axes. If
shapes have a third size, columns of a rectangle say at which of its values it is drawn.
"""

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from normtune.heuristics.showing.config_map import short_name
from normtune.kernels.box import Box
from normtune.kernels.problem import Shape
from normtune.kernels.sizes import is_derived
from normtune.kernels.tablefile.tree import Split, Tree, choose, nodes, regions

# Least share of the combinations of sizes that must be measured for tiles to touch, as in a grid.
_FILLED = 0.6
# Width of the tiles of scattered shapes as a share of the plane: `_TILE` over the square root of their number, at most
# `_MOST_TILE`.
_TILE, _MOST_TILE = 0.66, 0.05
# Pixels: width and height of the plane for which names are broken into lines; width of a character, height of a line.
_PIXELS = 640, 400
CHARACTER, LINE = 6.8, 13
_Ends = tuple[float, float, float, float]
_COLUMNS = ["config", "x0", "x1", "y0", "y1", "z0", "z1", "border"]
# A name is broken between words only: a word longer than a line has its own.
_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


class SizePlane(NamedTuple):
    """The measured sizes of two or three axes.

    Attributes:
        axes: their names; the first is horizontal, the second vertical, the third chosen by the reader.
        sizes: the measured sizes of each, ascending.
    """

    axes: tuple[str, ...]
    sizes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, axes: Sequence[str], shapes: Sequence[Shape]) -> "SizePlane":
        """The plane of these shapes, at least one."""
        return cls(tuple(axes), tuple(tuple(sorted({*sizes})) for sizes in zip(*shapes, strict=True)))

    def edges(self, axis: int) -> list[float]:
        """The borders of the tiles along an axis, one more than it has sizes; the outer two are those of the plane."""
        sizes = self.sizes[axis]
        inner = [math.sqrt(low * high) for low, high in pairwise(sizes)]
        before, after = (inner[0], inner[-1]) if inner else (sizes[0] * math.sqrt(2), sizes[0] / math.sqrt(2))
        return [
            max(sizes[0] * sizes[0] / before, sizes[0] / 2) if inner else after,
            *inner,
            min(sizes[-1] * sizes[-1] / after, sizes[-1] * 2) if inner else before,
        ]

    def domain(self, axis: int) -> tuple[float, float]:
        """The range of an axis that is drawn."""
        edges = self.edges(axis)
        return round(edges[0], 3), round(edges[-1], 3)

    def ticks(self, axis: int) -> list[int]:
        """The powers of two that label an axis, at most nine."""
        least, most = self.domain(axis)
        powers = [2**power for power in range(31) if least <= 2**power <= most]
        return powers[:: 1 + (len(powers) - 1) // 9] or list(self.sizes[axis][:1])

    def is_filled_by(self, shapes: int) -> bool:
        """Whether this number of shapes fills the grid of the sizes, so that tiles touch; else they are scattered."""
        return shapes >= _FILLED * math.prod(map(len, self.sizes))

    def around(self, axis: int, shapes: int) -> float:
        """The ratio of the edge of a scattered shape's tile to its size, for this number of shapes."""
        least, most = self.domain(axis)
        return (most / least) ** (min(_MOST_TILE, _TILE / math.sqrt(shapes)) / 2)

    def tiles(self, shapes: Sequence[Shape]) -> pd.DataFrame:
        """Columns x, y, z (the sizes of each shape; z is 0 without a third) and x0, x1, y0, y1 (its tile)."""
        filled = self.is_filled_by(len(shapes))
        columns: dict[str, list[float]] = {"z": [shape[2] if len(shape) > 2 else 0 for shape in shapes]}
        for axis, name in enumerate("xy"):
            sizes = [shape[axis] for shape in shapes]
            columns[name] = [*sizes]
            if filled:
                edges, place = self.edges(axis), {size: number for number, size in enumerate(self.sizes[axis])}
                ends = [(edges[place[size]], edges[place[size] + 1]) for size in sizes]
            else:
                around = self.around(axis, len(shapes))
                ends = [(size / around, size * around) for size in sizes]
            columns[f"{name}0"], columns[f"{name}1"] = (list(end) for end in zip(*ends, strict=True))
        return pd.DataFrame(columns)

    def gaps(self, shapes: Sequence[Shape]) -> pd.DataFrame:
        """Columns x0, x1, y0, y1 and z: the combinations of sizes missing from a grid; none for scattered shapes."""
        across, down, rows, measured = [*pairwise(self.edges(0))], [*pairwise(self.edges(1))], [], {*shapes}
        for z in self.sizes[2] if len(self.axes) > 2 else (0,):
            for x, ends in zip(self.sizes[0], across, strict=True) if self.is_filled_by(len(shapes)) else ():
                column = [
                    ((x, y, z)[: len(self.axes)] in measured, tile) for y, tile in zip(self.sizes[1], down, strict=True)
                ]
                for is_known, tiles in groupby(column, itemgetter(0)):
                    gap = [tile for _, tile in tiles]
                    if not is_known:
                        rows.append((*ends, gap[0][0], gap[-1][1], z))
        return pd.DataFrame(rows, columns=["x0", "x1", "y0", "y1", "z"])

    def regions(self, tree: Tree, whole: Box, shapes: Sequence[Shape]) -> pd.DataFrame:
        """The regions of a tree on the plane.

        Returns:
            Columns config (`Config`), x0, x1, y0, y1 (the edges within the plane), z0 and z1 (the range of the third
            size), and border (whether the edges are thresholds). A threshold on a derived size is parallel to no axis:
            with one, these are the tiles of the measured shapes.
        """
        if any(isinstance(node, Split) and is_derived(node.axis) for node in nodes(tree)):
            tiles = self.tiles(shapes)
            configs = pd.Series([choose(tree, shape, self.axes) for shape in shapes])
            return tiles.assign(config=configs, z0=tiles["z"], z1=tiles["z"], border=False)[_COLUMNS]
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
            is_drawn = len(self.axes) < 3 or any(z[0] <= size <= z[1] for size in self.sizes[2])
            if ends[0] < ends[1] and ends[2] < ends[3] and is_drawn:
                rows.append((config, *ends, *z, True))
        return pd.DataFrame(rows, columns=_COLUMNS)

    def labelled(self, regions: pd.DataFrame, gaps: pd.DataFrame) -> pd.DataFrame:
        """The regions with columns for their labels.

        label: the config's name, broken into lines; chars: the length of the longest line; lines: their number; cx, cy:
        the centre of the label's room, a rectangle in the region without gaps where possible; wide, high: that room
        as shares of the plane; ratio: the largest over the least vertical size of the plane.
        """
        rooms = [_room(region, gaps) for region in regions.itertuples()]
        ends = pd.DataFrame(rooms, columns=_COLUMNS[1:5], index=regions.index, dtype=float)
        shares = []
        for axis, name in enumerate("xy"):
            least, most = self.domain(axis)
            shares.append(np.log(ends[f"{name}1"] / ends[f"{name}0"]) / math.log(most / least))
        wide, high = shares
        labels = [
            wrap(short_name(config), max(1, int((share * _PIXELS[0] - 6) / CHARACTER)), **_WORDS)
            for config, share in zip(regions["config"], wide, strict=True)
        ]
        return regions.assign(
            cx=np.sqrt(ends["x0"] * ends["x1"]),
            cy=np.sqrt(ends["y0"] * ends["y1"]),
            wide=wide.round(4),
            high=high.round(4),
            label=["\n".join(lines) for lines in labels],
            chars=[max(map(len, lines)) for lines in labels],
            lines=[len(lines) for lines in labels],
            ratio=round(self.domain(1)[1] / self.domain(1)[0], 3),
        )


def _room(region: Any, gaps: pd.DataFrame) -> _Ends:
    """x0, x1, y0 and y1 of the largest part of a region beside its gaps; of the whole region if gaps fill it."""
    x0, x1, y0, y1 = whole = (region.x0, region.x1, region.y0, region.y1)
    gaps = gaps[(region.z0 <= gaps["z"]) & (gaps["z"] <= region.z1)]
    gaps = gaps[(gaps["x0"] < x1) & (x0 < gaps["x1"]) & (gaps["y0"] < y1) & (y0 < gaps["y1"])]
    if gaps.empty:
        return whole
    left, right, top, bottom = gaps["x0"].min(), gaps["x1"].max(), gaps["y0"].min(), gaps["y1"].max()
    largest = max([(x0, left, y0, y1), (right, x1, y0, y1), (x0, x1, y0, top), (x0, x1, bottom, y1)], key=_area)
    return largest if _area(largest) else whole


def _area(ends: _Ends) -> float:
    """The area of a rectangle on logarithmic axes; 0 if it is empty."""
    x0, x1, y0, y1 = ends
    return math.log(x1 / x0) * math.log(y1 / y0) if x0 < x1 and y0 < y1 else 0.0
