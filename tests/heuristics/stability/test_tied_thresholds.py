"""Equivalent thresholds, on made-up regrets: within a gap, over indistinguishable sizes, up to the legal limit."""

import numpy as np

from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.stability.tied_thresholds import tied_thresholds
from normtune.kernels.box import Box
from normtune.kernels.key import Key
from normtune.kernels.problem import MAX_ROWS
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split
from normtune.tests.heuristics.made_up import matrix_of

FEW, MANY = RMSNormConfig("row", 1, 8), RMSNormConfig("row", 1, 16)
HIDDEN = (128, 256, 512, 1024, 2048)
WHOLE = Box.of(rows=(1, MAX_ROWS), hidden=(1, 16384))
TIE = 1000


def made(few, many, shapes=None, usable=None, weights=None):
    problems = shapes or [(64, hidden) for hidden in HIDDEN]
    return matrix_of(np.transpose([few, many]), problems, (FEW, MANY), usable, weights)


def at_hidden(threshold, low=FEW, high=MANY):
    return Split("hidden", threshold, Leaf(low), Leaf(high))


def interval(matrix, legality, tree, tie=TIE):
    (found,) = tied_thresholds(matrix, legality, tree, tie)
    assert (found.axis, found.threshold, found.box) == (tree.axis, tree.threshold, WHOLE)
    return found.least, found.most


def test_a_clear_threshold_may_move_between_the_sizes_beside_it(legality):
    matrix = made([0, 0, 0, 300_000, 300_000], [300_000, 300_000, 300_000, 0, 0])
    assert interval(matrix, legality, at_hidden(512)) == (512, 1023)
    assert interval(matrix, legality, at_hidden(700)) == (512, 1023)


def test_sizes_at_which_both_are_as_fast_are_not_told_apart(legality):
    matrix = made([0, 0, 0, 4_000, 300_000], [300_000, 300_000, 4_999, 0, 0])
    # Over five problems of equal weight the tie allows 5000 in all.
    assert interval(matrix, legality, at_hidden(512)) == (256, 2047)
    assert interval(matrix, legality, at_hidden(512), tie=900) == (512, 2047)
    assert interval(matrix, legality, at_hidden(512), tie=799) == (512, 1023)


def test_the_tie_counts_by_weight(legality):
    few, many = [0, 0, 0, 4_000, 300_000], [300_000, 300_000, 300_000, 0, 0]
    light, heavy = ([4096, 4096, 4096, weight, 4096] for weight in (4096, 8192))
    assert interval(made(few, many, weights=light), legality, at_hidden(512)) == (512, 2047)
    assert interval(made(few, many, weights=heavy), legality, at_hidden(512)) == (512, 1023)


def test_a_worse_size_between_ends_the_interval(legality):
    """Beyond a size where the cut may not lie, it would be as cheap again."""
    matrix = made([0, 50_000, 0, 0, 300_000], [300_000, 0, 50_000, 0, 0])
    assert interval(matrix, legality, at_hidden(1024)) == (512, 2047)


def test_cheaper_thresholds_belong_to_it(legality):
    matrix = made([0, 0, 0, 0, 300_000], [300_000, 300_000, 300_000, 20_000, 0])
    assert interval(matrix, legality, at_hidden(512)) == (512, 2047)


def test_rows_go_from_above_the_smaller_size_to_the_larger_one(legality):
    matrix = made([0, 0, 300_000], [300_000, 300_000, 0], shapes=[(rows, 64) for rows in (16, 64, 256)])
    assert interval(matrix, legality, Split("rows", 128, Leaf(FEW), Leaf(MANY))) == (65, 256)


def test_a_region_does_not_reach_up_to_what_is_illegal(legality):
    # 8 warps of 32 threads hold at most 64 elements each, so 16384 columns; 4 warps hold 8192.
    narrow = RMSNormConfig("row", 1, 4)
    shapes = [(64, hidden) for hidden in (4096, 16384)]
    matrix = TimingMatrix(
        Key.of("toy", "", "bfloat16"), tuple(shapes), (narrow, MANY), np.array([[0, 9], [9, 0]]), np.ones((2, 2), bool)
    )
    assert interval(matrix, legality, at_hidden(4096, low=narrow)) == (4096, 8192)


def test_a_config_without_a_time_bars_the_way(legality):
    usable = [[True, True], [True, True], [True, True], [False, True], [True, True]]
    matrix = made([0, 0, 0, 0, 0], [0, 0, 0, 0, 0], usable=usable)
    assert interval(matrix, legality, at_hidden(512)) == (128, 1023)


def test_a_cut_beyond_the_measured_sizes_stays(legality):
    matrix = made([0] * 5, [0] * 5)
    assert interval(matrix, legality, at_hidden(4096)) == (4096, 4096)


def test_each_cut_moves_alone_in_its_own_box(legality):
    shapes = [(rows, hidden) for rows in (16, 64, 256) for hidden in (128, 256, 512)]
    few = [0 if hidden <= 256 and rows < 256 else 300_000 for rows, hidden in shapes]
    many = [300_000 - one for one in few]
    inner = Split("rows", 128, Leaf(FEW), Leaf(MANY))
    cuts = tied_thresholds(made(few, many, shapes=shapes), legality, Split("hidden", 256, inner, Leaf(MANY)), TIE)
    assert [(cut.axis, cut.least, cut.most, cut.box) for cut in cuts] == [
        ("hidden", 256, 511, WHOLE),
        ("rows", 65, 256, WHOLE.cut("hidden", 257)[0]),
    ]
