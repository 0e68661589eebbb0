"""What is around the program of trees, with shapes of three sizes: bins, legality, validation, simplification."""

from types import SimpleNamespace

import numpy as np
import pytest

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import bins, few_configs, losses, solve
from normtune.heuristics.solver.cross_validation import cross_validated, left_out
from normtune.heuristics.solver.crossing import at_crossings
from normtune.heuristics.solver.simplify import cost_of, simplified
from normtune.kernels.box import Box
from normtune.kernels.config import Config
from normtune.kernels.problem import Shape
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split, Tree, choose, distinct, leaves, regions
from normtune.kernels.target import TARGETS
from normtune.tests.heuristics.made_up import matrix_of

AXES = ("rows", "hidden", "depth")
WHOLE = Box.of(rows=(1, 2**20), hidden=(1, 16384), depth=(1, 8192))
SHAPES = [
    (rows, hidden, depth)
    for rows in (1, 4, 16, 64, 256, 1024)
    for hidden in (128, 256, 512, 1024, 2048)
    for depth in (64, 128, 256, 512, 1024)
]
A, B, C, D = (RMSNormConfig("row", 1, warps) for warps in (1, 2, 4, 8))
PLANTED = Split(
    "depth",
    128,
    Split("rows", 32, Leaf(A), Leaf(B)),
    Split("hidden", 512, Leaf(C), Split("rows", 8, Leaf(A), Leaf(D))),
)


class InSpace(Legality):
    """Configs that are legal up to a product of three sizes; those without a limit are legal everywhere."""

    def __init__(self, limits: dict[Config, int] | None = None) -> None:
        self.spec = SimpleNamespace(whole=WHOLE)  # type: ignore[assignment]
        self.target = TARGETS["sm_90"]
        self.kept = None
        self._limits = limits or {}
        self._reach = {}
        self.asked = 0

    def launch(self, config: Config, shape: Shape) -> None:
        return None

    def reaches(self, config: Config, shape: Shape) -> bool:
        self.asked += 1
        return config not in self._limits or int(np.prod(shape)) <= self._limits[config]


def planted(tree: Tree = PLANTED, loses: int = 100_000) -> TimingMatrix:
    """A matrix in which the tree's config is the best of each shape, and the others lose as much or more."""
    configs = sorted(distinct(tree))
    regret = [
        [0 if config == choose(tree, shape, AXES) else loses + 1000 * place for place, config in enumerate(configs)]
        for shape in SHAPES
    ]
    return matrix_of(regret, SHAPES, configs, axes=AXES)


def test_a_planted_tree_is_found_and_is_the_simplest() -> None:
    matrix, legality = planted(), InSpace()
    optima = solve(matrix, legality, 7)
    assert optima.tree(7) == PLANTED
    assert optima.least(5) == 0 < (optima.least(4) or 0)
    assert simplified(optima, PLANTED, 0) == PLANTED
    assert losses(matrix, PLANTED) == [0] * len(SHAPES)


def test_few_configs_are_those_that_the_tree_needs() -> None:
    few = few_configs(planted(), InSpace(), 4)
    assert few is not None and few.configs == (A, B, C, D) and few.mean == few.bound == 0
    three = few_configs(planted(), InSpace(), 3)
    assert three is not None and len(three.configs) == 3 and three.mean == three.bound > 0


def test_shapes_of_three_sizes_are_left_out_in_turn() -> None:
    folds = left_out(np.array(planted().problems))
    assert np.sum(folds) == len(planted().problems) - 8  # the corners
    fewer, enough, more = (cross_validated(planted(), InSpace(), count)["cross_validated"] for count in (4, 5, 6))
    assert fewer > enough == more


def test_a_threshold_of_counts_moves_to_the_crossing_of_its_region() -> None:
    """Up to depth 128, B loses so much at 16 rows that A is expected to be ahead almost up to 64."""
    matrix, legality = planted(), InSpace()
    column = {config: place for place, config in enumerate(matrix.configs)}
    for place, (rows, _, depth) in enumerate(SHAPES):
        if depth <= 128 and rows == 16:
            matrix.regret[place, column[B]] = 3_000_000
    moved = at_crossings(matrix, legality, PLANTED)
    assert isinstance(moved, Split) and isinstance(moved.low, Split)
    assert (moved.low.axis, moved.high) == ("rows", PLANTED.high)
    assert 32 < moved.low.threshold <= 64
    assert losses(matrix, moved) == losses(matrix, PLANTED)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(6))
def test_each_answer_is_legal_at_every_shape(seed: int) -> None:
    """Times of a part of the shapes and configs; a config that is best where it is legal is not legal everywhere."""
    draw = np.random.default_rng(seed)
    shapes = [shape for shape in SHAPES if draw.random() < 0.6]
    regret = draw.integers(0, 200_000, (len(shapes), 4))
    usable = (draw.random(regret.shape) < 0.9) | (np.arange(4) == 3)
    legality = InSpace({A: 2**14, B: 2**18, C: 2**24})
    for place, shape in enumerate(shapes):
        usable[place] &= [legality.reaches(config, shape) for config in (A, B, C, D)]
    matrix = matrix_of(np.where(usable, regret, 0), shapes, (A, B, C, D), usable, axes=AXES)
    in_bins = bins(matrix, legality)
    assert any(axis.has_outer_bin for axis in in_bins.axes)
    optima = solve(matrix, legality, 6)
    for count in (1, 3, 6):
        tree, least = optima.tree(count), optima.least(count)
        assert tree is not None and least is not None and leaves(tree) <= count
        assert not [*legality.breaches(tree)]
        assert sum(1 for _ in regions(tree, WHOLE)) == leaves(tree)
        lost = losses(matrix, tree)
        assert None not in lost
        assert cost_of(optima, tree) == least
        # Bins beyond the measured sizes have a weight of 1, measured shapes one of 4096.
        assert 0 <= least - 4096 * sum(loss or 0 for loss in lost) <= 200_000 * in_bins.cost[0].size


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("sizes", [(9,), (8, 6), (7, 5, 6), (4, 1, 5)])
def test_the_legal_volume_is_found_from_its_surface(seed: int, sizes: tuple[int, ...]) -> None:
    draw = np.random.default_rng(seed)
    tops = [sorted((draw.choice(200, count, replace=False) + 1).tolist()) for count in sizes]
    limits = {config: int(np.exp(draw.uniform(0, 5 * len(sizes)))) for config in (A, B)}
    legality = InSpace(limits)
    found = legality.over((A, B, C), *tops)
    asked = legality.asked
    shapes = [tuple(top[at] for top, at in zip(tops, place, strict=True)) for place in np.ndindex(*sizes)]
    assert found.reshape(3, -1).tolist() == [
        [legality.reaches(config, shape) for shape in shapes] for config in (A, B, C)
    ]
    assert len(sizes) < 3 or asked < 3 * len(shapes)
