"""Rectangles in which two tables choose differently: by hand, and against a lookup of every shape."""

from hypothesis import given
from hypothesis import strategies as st

from normtune.heuristics.comparing.difference import Differing, rectangles
from normtune.kernels.box import Box
from normtune.kernels.problem import MAX_ROWS
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split, Tree, choose

A, B, C = (RMSNormConfig("row", 1, warps) for warps in (1, 2, 4))


def up_to(hidden: int) -> Box:
    return Box.of(rows=(1, MAX_ROWS), hidden=(1, hidden))


def test_a_moved_threshold_is_one_rectangle() -> None:
    old = Split("hidden", 256, Split("rows", 32768, Leaf(A), Leaf(B)), Leaf(A))
    new = Split("hidden", 512, Split("rows", 4096, Leaf(A), Leaf(B)), Leaf(A))
    assert rectangles(new, old, up_to(65536)) == [
        Differing(Box.of(rows=(4096, 32767), hidden=(1, 256)), B, A),
        Differing(Box.of(rows=(4096, MAX_ROWS), hidden=(257, 512)), B, A),
    ]
    assert rectangles(old, old, up_to(65536)) == []


def test_parts_that_cuts_took_apart_are_joined_again() -> None:
    cut = Split("rows", 100, Split("hidden", 64, Leaf(A), Leaf(A)), Split("hidden", 1000, Leaf(A), Leaf(A)))
    assert rectangles(cut, Leaf(B), up_to(4096)) == [Differing(up_to(4096), A, B)]


def test_against_a_rule_there_is_a_rectangle_for_each_leaf() -> None:
    tree = Split("hidden", 64, Leaf(A), Split("rows", 9, Leaf(B), Leaf(A)))
    expected = [
        Differing(up_to(64), A, None),
        Differing(Box.of(rows=(1, 8), hidden=(65, 4096)), B, None),
        Differing(Box.of(rows=(9, MAX_ROWS), hidden=(65, 4096)), A, None),
    ]
    assert rectangles(tree, None, up_to(4096)) == expected
    mirrored = [box._replace(first=None, second=box.first) for box in expected]
    assert rectangles(None, tree, up_to(4096)) == mirrored
    assert rectangles(None, None, up_to(4096)) == []


SPLITS = st.recursive(
    st.sampled_from([Leaf(A), Leaf(B), Leaf(C)]),
    lambda trees: st.builds(Split, st.sampled_from(["rows", "hidden"]), st.integers(1, 8), trees, trees),
    max_leaves=8,
)


@given(first=SPLITS, second=SPLITS)
def test_each_shape_at_which_they_differ_lies_in_exactly_one(first: Tree, second: Tree) -> None:
    boxes = rectangles(first, second, up_to(10))
    for rows in range(1, 11):
        for hidden in range(1, 11):
            answers = choose(first, (rows, hidden)), choose(second, (rows, hidden))
            holding = [(box.first, box.second) for box in boxes if box.box.holds((rows, hidden))]
            assert holding == ([answers] if answers[0] != answers[1] else [])
