"""Shapes and configs of a measured check."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normtune.kernels.box import Box
from normtune.kernels.config_space import spread
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split, Tree, choose, configs_of, leaf_of, leaves
from normtune.kernels.target import TARGETS
from normtune.tuner.checking.shapes import (
    MATTERS,
    NEIGHBOURS,
    SIBLINGS,
    STRONG,
    Sample,
    population,
    rivals,
    sample,
)

BOX = Box.of(rows=(1, 65536), hidden=(64, 16384))
CONFIGS = [RMSNormConfig("row", 1, warps) for warps in (1, 2, 4, 8, 16)]
MANY = 1 << 40
SHAPES = population(BOX, 0, MANY)
ROWS = Split("rows", 1000, Leaf(CONFIGS[0]), Leaf(CONFIGS[1]))
# Leaves of 1/16, 3/16 and 3/4 of the plane, and one of a hundredth of that.
UNEVEN = Split(
    "hidden", 256, Split("rows", 16, Leaf(CONFIGS[0]), Leaf(CONFIGS[1])),
    Split("rows", 60_000, Leaf(CONFIGS[2]), Leaf(CONFIGS[3])),
)  # fmt: skip


def drawn(tree: Tree, count: int = 48, seed: int = 0) -> Sample:
    return sample(tree, SHAPES, count, seed)


def test_the_population_is_log_uniform_and_hidden_sizes_are_those_of_models() -> None:
    assert all(hidden % 16 == 0 for _, hidden in SHAPES)
    assert 0.45 < sum(rows < 256 for rows, _ in SHAPES) / len(SHAPES) < 0.55
    assert 0.45 < sum(hidden < 1024 for _, hidden in SHAPES) / len(SHAPES) < 0.55


def test_shapes_depend_on_the_seed_and_on_nothing_else() -> None:
    assert population(BOX, 1, MANY) == population(BOX, 1, MANY)
    assert len(set(population(BOX, 1, MANY)) & set(population(BOX, 2, MANY))) < 400  # of 4096, among few rows
    assert drawn(ROWS) == drawn(ROWS)
    assert set(drawn(ROWS, seed=1).probes) != set(drawn(ROWS, seed=2).probes)


def test_on_a_replay_the_recorded_shapes_are_the_population() -> None:
    known = {(rows, hidden) for rows in (1, 64, 512, 2048, 65536) for hidden in (64, 512, 4096, 999_999)}
    assert population(BOX, 0, MANY, known) == sorted(shape for shape in known if shape[1] < 999_999)
    assert population(BOX, 0, 64 * 512, known) == sorted(shape for shape in known if shape[0] * shape[1] <= 64 * 512)
    assert sample(ROWS, [], 48, 0) == Sample((), (), {})


def test_the_leaves_that_matter_come_first_and_then_each_by_its_share() -> None:
    found = drawn(UNEVEN)
    assert {leaf for leaf, share in found.shares.items() if share >= MATTERS} == {0, 1, 2}
    assert sum(found.shares.values()) == pytest.approx(1)
    assert [probe.leaf for probe in found.probes[:3]] == [2, 1, 0]
    for count in (12, 24, 48):
        visits = Counter(probe.leaf for probe in found.probes[:count])
        assert all(abs(visits[leaf] - found.shares[leaf] * count) < 1.5 for leaf in found.shares)
    assert len(set(found.probes)) == len(found.probes) == 48


def test_leaves_that_were_visited_once_have_a_second_shape_in_reserve() -> None:
    found = drawn(UNEVEN, 12)
    visits = Counter(probe.leaf for probe in found.probes)
    assert sorted(probe.leaf for probe in found.reserve) == sorted(leaf for leaf in visits if visits[leaf] == 1) != []
    assert not set(found.probes) & set(found.reserve)


def test_all_leaves_that_matter_are_visited_however_many_they_are() -> None:
    assert [probe.leaf for probe in drawn(UNEVEN, 2).probes] == [2, 1, 0]


def test_each_shape_is_asked_once_where_there_are_few() -> None:
    shapes = [(1, 64), (1, 128), (2000, 64)]
    found = sample(ROWS, shapes, 48, 0)
    assert sorted(probe.shape for probe in found.probes) == shapes
    assert found.shares == {0: 2 / 3, 1: 1 / 3}


def trees() -> st.SearchStrategy[Tree]:
    leaves = st.sampled_from(CONFIGS).map(Leaf)
    cut = st.tuples(st.sampled_from(["rows", "hidden"]), st.integers(1, 1 << 18))
    return st.recursive(
        leaves, lambda children: st.builds(lambda at, low, high: Split(*at, low, high), cut, children, children)
    )


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 1 << 28), st.integers(0, 9))
def test_shapes_stay_in_the_box_and_small_enough(most: int, seed: int) -> None:
    for rows, hidden in population(BOX, seed, most):
        assert 1 <= rows <= 65536 and 64 <= hidden <= 16384
        assert rows * hidden <= most


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(trees(), st.integers(1, 1 << 18), st.integers(1, 1 << 18))
def test_the_leaf_of_a_shape_is_the_one_that_answers(tree: Tree, rows: int, hidden: int) -> None:
    assert list(configs_of(tree))[leaf_of(tree, (rows, hidden))] == choose(tree, (rows, hidden))
    assert {leaf_of(tree, shape) for shape in SHAPES} <= set(range(leaves(tree)))


@settings(max_examples=15, deadline=None)
@given(trees(), trees(), st.integers(1, 65536), st.integers(64, 16384))
def test_rivals_are_few_and_never_the_config_itself(tree: Tree, other: Tree, rows: int, hidden: int) -> None:
    found = rivals(tree, _quick_spec(), Problem.of("toy", rows, hidden, "bfloat16"), TARGETS["sm_90"], [other])
    own, beside = choose(tree, (rows, hidden)), choose(other, (rows, hidden))
    assert len(set(found)) == len(found) <= NEIGHBOURS + SIBLINGS + STRONG
    assert own not in found
    assert beside in (own, *found)


def test_the_config_across_a_threshold_is_the_first_rival() -> None:
    found = rivals(ROWS, _quick_spec(), Problem.of("toy", 900, 512, "bfloat16"), TARGETS["sm_90"])
    assert found == [CONFIGS[1], *spread(QUICK, STRONG)]


QUICK = [RMSNormConfig("block_row", rows, warps) for rows in (2, 4, 8) for warps in (1, 2, 4)]


def _quick_spec() -> OperatorSpec:
    return OperatorSpec(
        "toy", (), RMSNormConfig,
        ("bfloat16",), 65536, lambda problem: (), lambda name, problem, target: list(QUICK), None, None,  # type: ignore[arg-type]
        "none", "none", (),
    )  # fmt: skip


def test_a_spread_keeps_both_ends() -> None:
    assert spread(QUICK, 3) == [QUICK[0], QUICK[4], QUICK[8]]
    assert spread(QUICK[:2], 3) == QUICK[:2]
