"""The best trees of one class at each hidden size, against all such trees of small grids."""

from itertools import combinations, pairwise, product

import numpy as np
import pytest

from normtune.heuristics.solver.bins import Bins
from normtune.heuristics.solver.grid import Axis
from normtune.heuristics.solver.strips import Strips
from normtune.kernels.box import Box
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.tree import leaves, regions

ROWS, HIDDEN = Axis("rows", (1, 10, 100), False), Axis("hidden", (64, 128, 256, 512), False)
CONFIGS = tuple(RMSNormConfig("row", 1, warps) for warps in (1, 2, 4, 8))


def drawn(seed):
    draw = np.random.default_rng(seed)
    shape = len(CONFIGS), len(ROWS.tops), len(HIDDEN.tops)
    legal = np.ones(shape, bool)
    for own, edge in zip(legal, draw.integers(1, 5, len(CONFIGS)), strict=True):
        own[draw.integers(0, 3) :, edge:] = False
    barred = draw.random(shape) < 0.1
    in_bins = Bins((ROWS, HIDDEN), CONFIGS, draw.integers(-3, 30, shape), barred, legal)
    return in_bins, draw.integers(-1, 2, (len(CONFIGS), len(HIDDEN.tops)))


def ranges(count, parts):
    """All divisions of so many bins into so many ranges."""
    return [[*pairwise((0, *cuts, count))] for cuts in combinations(range(1, count), parts - 1)]


def cheapest(in_bins, classes, first, end, parts):
    """Least cost of a strip over all divisions of rows and all choices of configs of one class; None if none may."""
    found = []
    for of_rows in ranges(len(ROWS.tops), parts):
        for chosen in product(range(len(CONFIGS)), repeat=parts):
            own = classes[list(chosen), first:end]
            inside = [(one, slice(low, high)) for one, (low, high) in zip(chosen, of_rows, strict=True)]
            if (own < 0).any() or (own != own[0]).any():
                continue
            if all(
                in_bins.legal[one, rows.stop - 1, end - 1] and not in_bins.barred[one, rows, first:end].any()
                for one, rows in inside
            ):
                found.append(sum(int(in_bins.cost[one, rows, first:end].sum()) for one, rows in inside))
    return min(found, default=None)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(25))
def test_no_tree_that_cuts_hidden_first_and_stays_in_a_class_costs_less(seed):
    in_bins, classes = drawn(seed)
    size, most = len(HIDDEN.tops), 8
    strips = Strips(in_bins, classes, most)
    alone = {
        (first, end, parts): cheapest(in_bins, classes, first, end, parts)
        for first, end in combinations(range(size + 1), 2)
        for parts in (1, 2, 3)
    }
    wanted = {}
    for count in range(1, size + 1):
        for of_hidden in ranges(size, count):
            for parts in product((1, 2, 3), repeat=count):
                costs = [alone[*one, own] for one, own in zip(of_hidden, parts, strict=True)]
                if None not in costs:
                    wanted.setdefault(sum(parts), []).append(sum(costs))
    for count in range(1, most + 1):
        least = min((min(costs) for used, costs in wanted.items() if used <= count), default=None)
        assert strips.least(count) == least
        tree = strips.tree(count)
        assert (tree is None) == (least is None)
        if tree is None:
            continue
        assert leaves(tree) == strips.fewest(least) <= count
        total, of_hidden = 0, {}
        for config, box in regions(tree, Box.of(rows=(1, 100), hidden=(1, 512))):
            index = CONFIGS.index(config)
            rows = range(ROWS.bin(box[0].least), ROWS.bin(box[0].most) + 1)
            for column in range(HIDDEN.bin(box[1].least), HIDDEN.bin(box[1].most) + 1):
                total += sum(int(in_bins.cost[index, row, column]) for row in rows)
                of_hidden.setdefault(column, set()).add(int(classes[index, column]))
        assert total == least and all(len(found) == 1 for found in of_hidden.values())


def test_bins_beyond_the_measured_sizes_may_be_left_out():
    in_bins, classes = drawn(3)
    axes = ROWS._replace(has_outer_bin=True), HIDDEN._replace(has_outer_bin=True)
    found = Strips(in_bins._replace(axes=axes), classes, 6)
    inner = Bins(
        (ROWS._replace(tops=(1, 100)), HIDDEN._replace(tops=(64, 128, 512))),
        CONFIGS,
        *(array[:, :2, :3] for array in in_bins[2:]),
    )
    assert found.least_measured(6) == Strips(inner, classes[:, :3], 6).least(6)
