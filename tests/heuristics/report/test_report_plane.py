"""Maps are right: edges of regions are thresholds, tiles and gaps cover the plane, like configs have like colours."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from normtune.heuristics.report import palette
from normtune.heuristics.report.plane import SizePlane
from normtune.kernels.box import EVERYWHERE, Box
from normtune.kernels.config import Implementation
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split, choose

FEW, MANY, LONG = (Leaf(RMSNormConfig("row", 1, warps)) for warps in (1, 4, 16))
TREE = Split("hidden", 512, Split("rows", 64, FEW, MANY), LONG)
GRID = [(rows, hidden) for rows in (1, 64, 4096) for hidden in (128, 512, 2048)]


def holding(regions: pd.DataFrame, x: float, y: float, z: int = 0) -> list[object]:
    """The configs of the regions at a place."""
    inside = regions[(regions.x0 < x) & (x < regions.x1) & (regions.y0 < y) & (y < regions.y1)]
    return inside[(inside.z0 <= z) & (z <= inside.z1)]["config"].tolist()


def test_regions_answer_as_the_tree_does() -> None:
    plane = SizePlane.of(("rows", "hidden"), GRID)
    regions = plane.regions(TREE, EVERYWHERE, GRID)
    assert len(regions) == 3
    for shape in itertools.product((1, 63, 64, 65, 4096), (128, 511, 512, 513, 2048)):
        assert holding(regions, *shape) == [choose(TREE, shape)]
    assert {*regions.x0, *regions.x1} >= {63.5} and {*regions.y0, *regions.y1} >= {512.5}
    assert (regions.x0.min(), regions.x1.max()) == tuple(plane.domain(0))


def test_a_derived_size_colours_the_measured_shapes() -> None:
    axes, shapes = ("m", "n", "k"), [*itertools.product((1, 64, 4096), (128, 2048), (8, 16))]
    tree = Split("m * n", 1 << 17, FEW, Split("k", 8, MANY, LONG))
    regions = SizePlane.of(axes, shapes).regions(tree, Box.of(m=(1, 1 << 20), n=(1, 1 << 20), k=(1, 64)), shapes)
    assert len(regions) == len(shapes) and not regions["border"].any()
    for x, y, z in shapes:
        assert holding(regions, x, y, z) == [choose(tree, (x, y, z), axes)]


def test_tiles_and_gaps_cover_a_grid_once() -> None:
    shapes = [shape for shape in GRID if shape not in ((4096, 2048), (4096, 512))]
    plane = SizePlane.of(("rows", "hidden"), shapes)
    parts = pd.concat([plane.tiles(shapes), plane.gaps(shapes)])
    areas = np.log(parts.x1 / parts.x0) * np.log(parts.y1 / parts.y0)
    whole = math.prod(math.log(most / least) for least, most in map(plane.domain, (0, 1)))
    assert areas.sum() == pytest.approx(whole, rel=1e-3)
    (gap,) = plane.gaps(shapes).itertuples()
    assert gap.x0 < 4096 < gap.x1 and gap.y0 < 512 < 2048 < gap.y1


def test_one_shape_and_scattered_ones_have_tiles_around_them() -> None:
    (one,) = SizePlane.of(("rows", "hidden"), [(8, 64)]).tiles([(8, 64)]).itertuples()
    assert one.x0 < 8 < one.x1 and one.y0 < 64 < one.y1
    shapes = [(7 * number + 1, 64 + 13 * (number * 37 % 900)) for number in range(900)]
    plane = SizePlane.of(("rows", "hidden"), shapes)
    tiles = plane.tiles(shapes)
    assert len(plane.gaps(shapes)) == 0 and (tiles.x1 / tiles.x0).nunique() <= 3
    assert ((tiles.x0 < tiles.x) & (tiles.x < tiles.x1)).all() and len(plane.ticks(0)) <= 9


def test_names_are_written_in_as_few_lines_as_there_is_room_for() -> None:
    plane = SizePlane.of(("rows", "hidden"), GRID)
    labelled = plane.labelled(plane.regions(TREE, EVERYWHERE, GRID), plane.gaps(GRID))
    assert labelled["label"].str.replace("\n", " ").tolist() == [str(config) for config in labelled["config"]]
    assert (labelled["chars"] == [max(map(len, label.split("\n"))) for label in labelled["label"]]).all()
    assert labelled["border"].all()


def test_names_are_where_shapes_were_measured() -> None:
    shapes = [shape for shape in GRID if shape not in ((4096, 2048), (64, 2048))]
    plane = SizePlane.of(("rows", "hidden"), shapes)
    labelled = plane.labelled(plane.regions(TREE, EVERYWHERE, GRID), plane.gaps(shapes))
    (long,) = labelled[labelled["config"] == LONG.config].itertuples()
    assert long.y0 < long.cy < plane.gaps(shapes).y0.min() < long.y1 and long.wide == 1 and long.high < 0.2


def test_like_configs_have_like_colours() -> None:
    configs = [
        RMSNormConfig(name, block_row, warps)
        for name in ("row", "split", "persistent")
        for block_row, warps in ((1, 1), (1, 4), (2, 8))
    ]
    own = palette.colours([*configs, Implementation("torch")])
    assert (
        list(own) == [*sorted(configs), Implementation("torch")] and len({found.colour for found in own.values()}) == 10
    )
    assert [own[config].group for config in configs[::3]] == ["row", "split", "persistent"]
    lights = [palette.luminance(found.colour) for found in own.values()]
    assert lights == sorted(lights)
    groups = [lights[0:3], lights[3:6], lights[6:9]]
    for one, two in itertools.pairwise(groups):  # told apart in grey, better than within
        assert two[0] - one[-1] > 1.2 * max(np.diff(one).max(), 0)


@pytest.mark.parametrize("count", [1, 2, 9, 40])
def test_names_are_read_on_their_colours(count: int) -> None:
    configs = [RMSNormConfig(f"schedule_{number % 9}", 1, number + 1) for number in range(count)]
    own = palette.colours(configs)
    assert len({found.colour for found in own.values()}) == count
    for found in own.values():
        ink, light = palette.luminance(found.ink) + 0.05, palette.luminance(found.colour) + 0.05
        assert max(ink / light, light / ink) >= 4.5


def test_numbers_of_one_knob_are_groups_too() -> None:
    configs = [RMSNormConfig("row", block_row, warps) for block_row, warps in ((16, 4), (2, 4), (2, 8))]
    own = palette.colours(configs)
    assert [own[config].group for config in configs] == ["block_row 16", "block_row 2", "block_row 2"]
    assert [found.group for found in own.values()] == ["block_row 2", "block_row 2", "block_row 16"]
