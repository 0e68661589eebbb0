"""Which shapes and configs a measured check asks."""

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normtune.heuristics.probes import NEIGHBOURS, STRONG, probes, rivals, spread
from normtune.heuristics.suspect import Box, Checked
from normtune.heuristics.tree import Leaf, Split, Tree, choose
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.target import TARGETS

BOX = Box(1, 65536, 64, 16384)
CONFIGS = [Config("row", 1, warps) for warps in (1, 2, 4, 8, 16)]
MANY = 1 << 40


def checked(tree: Tree) -> Checked:
    return Checked("toy", "bfloat16", "toy", "", tree, (("toy", "bfloat16"),), 0)


def asked(tree: Tree, count: int = 60, seed: int = 0, **more: object) -> list[tuple[int, int]]:
    return list(islice(probes(checked(tree), BOX, seed, more.pop("most", MANY), **more), count))  # type: ignore[arg-type]


ROWS = Split("rows", 1000, Leaf(CONFIGS[0]), Leaf(CONFIGS[1]))
HIDDEN = Split("hidden", 1000, Leaf(CONFIGS[0]), Leaf(CONFIGS[1]))


@pytest.mark.parametrize(("tree", "axis"), [(ROWS, 0), (HIDDEN, 1)])
def test_half_of_the_shapes_lie_at_a_threshold_on_both_sides(tree: Tree, axis: int) -> None:
    shapes = asked(tree)
    near = shapes[1::2]
    low = [shape for shape in near if choose(tree, *shape) == CONFIGS[0]]
    assert 5 < len(low) < len(near) - 5
    # Half an octave, and what rounding to multiples of 16 adds.
    assert all(1000 / 1.5 < shape[axis] < 1000 * 1.5 for shape in near)
    across = sorted(shape[1 - axis] for shape in near)
    assert across[-1] > 50 * across[0]
    elsewhere = sorted(shape[axis] for shape in shapes[::2])
    assert elsewhere[0] < 1000 / 4 and elsewhere[-1] > 1000 * 4


def test_shapes_depend_on_the_seed_and_on_nothing_else() -> None:
    assert asked(ROWS) == asked(ROWS)
    assert len(set(asked(ROWS, seed=1)) & set(asked(ROWS, seed=2))) < 10


def test_long_thresholds_are_asked_more_often() -> None:
    short = Split("hidden", 96, Leaf(CONFIGS[2]), Leaf(CONFIGS[3]))
    tree = Split("rows", 32768, Split("hidden", 2048, Leaf(CONFIGS[0]), Leaf(CONFIGS[1])), short)
    near = asked(tree, 120)[1::2]
    at_long = [shape for shape in near if 2048 / 1.5 < shape[1] < 2048 * 1.5 and shape[0] < 32768]
    at_short = [shape for shape in near if shape[1] < 160 and shape[0] >= 32768]
    assert len(at_long) > 2 * len(at_short)


def test_on_a_replay_the_nearest_recorded_shapes_are_asked() -> None:
    known = {(rows, hidden) for rows in (1, 64, 512, 2048, 65536) for hidden in (64, 512, 4096, 999_999)}
    shapes = asked(ROWS, known=known)
    assert set(shapes) == {shape for shape in known if shape[1] < 999_999}
    first_near = [shape for place, shape in enumerate(shapes[:6]) if place % 2]
    assert {shape[0] for shape in first_near} <= {512, 2048}
    assert asked(ROWS, known=set()) == []


def test_a_function_without_thresholds_is_asked_too() -> None:
    assert len(asked(Leaf(CONFIGS[0]))) == 60


def test_thresholds_outside_the_box_are_none() -> None:
    tree = Split("rows", 1 << 20, Split("hidden", 16, Leaf(CONFIGS[0]), Leaf(CONFIGS[1])), Leaf(CONFIGS[2]))
    assert {choose(tree, *shape) for shape in asked(tree)} == {CONFIGS[1]}


def trees() -> st.SearchStrategy[Tree]:
    leaves = st.sampled_from(CONFIGS).map(Leaf)
    cut = st.tuples(st.sampled_from(["rows", "hidden"]), st.integers(1, 1 << 18))
    return st.recursive(
        leaves, lambda children: st.builds(lambda at, low, high: Split(*at, low, high), cut, children, children)
    )


@settings(max_examples=60, deadline=None)
@given(trees(), st.integers(1, 1 << 28))
def test_shapes_stay_in_the_box_and_small_enough(tree: Tree, most: int) -> None:
    shapes = asked(tree, 30, most=most)
    assert len(set(shapes)) == len(shapes)
    for rows, hidden in shapes:
        assert BOX.least_rows <= rows <= BOX.most_rows
        assert BOX.least_hidden <= hidden <= BOX.most_hidden
        assert rows * hidden <= most


@settings(max_examples=30, deadline=None)
@given(trees(), st.integers(1, 65536), st.integers(64, 16384))
def test_rivals_are_the_leaves_around_and_never_the_config_itself(tree: Tree, rows: int, hidden: int) -> None:
    spec = _quick_spec()
    found = rivals(tree, spec, Problem("toy", rows, hidden, "bfloat16"), TARGETS["sm_90"])
    assert len(set(found)) == len(found) <= NEIGHBOURS + STRONG
    assert choose(tree, rows, hidden) not in found


def test_the_config_across_a_threshold_is_the_first_rival() -> None:
    found = rivals(ROWS, _quick_spec(), Problem("toy", 900, 512, "bfloat16"), TARGETS["sm_90"])
    assert found[0] == CONFIGS[1]
    assert found[1:] == spread([config for config in QUICK if config not in CONFIGS[:2]], STRONG)


QUICK = [Config("block_row", rows, warps) for rows in (2, 4, 8) for warps in (1, 2, 4)]


def _quick_spec() -> OperatorSpec:
    return OperatorSpec(
        "toy", (), ("bfloat16",), 65536, lambda problem: (), lambda name, problem, target: list(QUICK), None, None,  # type: ignore[arg-type]
        "none", "none", (),
    )  # fmt: skip


def test_a_spread_keeps_both_ends() -> None:
    assert spread(QUICK, 3) == [QUICK[0], QUICK[4], QUICK[8]]
    assert spread(QUICK[:2], 3) == QUICK[:2]
