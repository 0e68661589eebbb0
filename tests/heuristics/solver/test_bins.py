"""Solutions under conditions, few configs and least worst regret, against full enumeration."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import cell_of, few_configs, least_worst, losses, solve
from normtune.heuristics.solver.optimum import Optima
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, leaves
from normtune.kernels.target import TARGETS
from normtune.tests.heuristics.made_up import partitions

# 16 warps alone are legal at 16384 in float32, 8 warps up to 8192, block_row as row.
CONFIGS = (RMSNormConfig("block_row", 4, 16), *(RMSNormConfig("row", 1, warps) for warps in (4, 8, 16)))


def matrix_of(seed: int, rows: tuple[int, ...], hidden: tuple[int, ...], holes: float = 0.15) -> TimingMatrix:
    draw = np.random.default_rng(seed)
    shapes = tuple((count, size) for count in rows for size in hidden)
    regret = draw.integers(0, 12, (len(shapes), len(CONFIGS))) * 10_000
    regret -= regret.min(axis=1, keepdims=True)
    usable = draw.random(regret.shape) >= holes
    usable[:, -1] = True
    weights = draw.integers(1, 9, len(shapes)).astype(np.int64)
    return TimingMatrix(
        Key.of("toy", "", "float32"), shapes, CONFIGS, np.where(usable, regret, 0), usable, None, weights
    )


def legality(spec: OperatorSpec, dtype: str = "float32") -> Legality:
    return Legality(spec, TARGETS["sm_90"], (dtype,), ("",))


def tops_of(optima: Optima, cell: tuple[int, ...]) -> tuple[int, ...]:
    """The largest shape in a bin."""
    return tuple(axis.tops[index] for axis, index in zip(optima.axes, cell, strict=True))


def brute_least_worst(matrix: TimingMatrix, legal: Legality, count: int) -> int | None:
    """Over all partitions, the least of the largest regret, where each box has the config whose largest is least.

    The last bin of an axis reaches to its end, as the largest measured size answers for what lies beyond, unless that
    is left out of a leaf of its own.
    """
    rows, hidden = (sorted({shape[place] for shape in matrix.problems}) for place in (0, 1))
    found = solve(matrix, legal, 1)
    best = None
    for boxes in (boxes for number in range(1, count + 1) for boxes in partitions(found.whole, number)):
        worst: int | None = 0
        for box in boxes:
            inside = [index for index, shape in enumerate(matrix.problems) if box.holds(cell_of(found.axes, shape))]
            largest = [
                max((int(matrix.regret[index, place]) for index in inside), default=0)
                for place, config in enumerate(matrix.configs)
                if matrix.usable[inside, place].all() and legal.reaches(config, tops_of(found, box.largest))
            ]
            worst = None if worst is None or not largest else max(worst, min(largest))
        if worst is not None:
            best = worst if best is None else min(best, worst)
    assert len(rows) * len(hidden) == len(matrix.problems)
    return best


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 4), wide=st.booleans())
def test_the_least_worst_is_that_of_all_partitions(seed: int, count: int, wide: bool) -> None:
    shapes = ((1, 64), (256, 4096, 16384)) if wide else ((1, 64, 4096), (256, 16384))
    legal = legality(SPEC[0])
    matrix = matrix_of(seed, *shapes)
    least = least_worst(matrix, legal, count)
    assert least == brute_least_worst(matrix, legal, count)
    if least is not None:
        tree = solve(matrix.within(least), legal, count).tree(count)
        assert tree is not None and leaves(tree) <= count
        assert max(loss for loss in losses(matrix, tree) if loss is not None) == least
        assert solve(matrix.within(least - 1), legal, count).least(count) is None


SPEC: list[OperatorSpec] = []


@pytest.fixture(autouse=True)
def toy(spec: OperatorSpec) -> Iterator[None]:
    """The operator, for tests that draw their examples."""
    SPEC.append(spec)
    yield
    SPEC.clear()


def brute_few(matrix: TimingMatrix, legal: Legality, most: int) -> int | None:
    """The least cost of a set of configs of which each problem takes the best that may answer at its size."""
    found = solve(matrix, legal, 1)
    best = None
    for count in range(1, most + 1):
        for chosen in combinations(range(len(matrix.configs)), count):
            total: int | None = 0
            for index, shape in enumerate(matrix.problems):
                tops = tops_of(found, cell_of(found.axes, shape))
                costs = [
                    int(matrix.regret[index, place] * matrix.weight[index])
                    for place in chosen
                    if matrix.usable[index, place] and legal.reaches(matrix.configs[place], tops)
                ]
                total = None if total is None or not costs else total + min(costs)
            if total is not None:
                best = total if best is None else min(best, total)
    return best


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), most=st.integers(1, 4))
def test_few_configs_are_the_best_set_and_a_table_of_them_is_legal(seed: int, most: int) -> None:
    """Up to the largest size that there is, so that no bin lies beyond what was measured."""
    legal = legality(SPEC[0])
    matrix = matrix_of(seed, (1, 64, MAX_ROWS), (256, 8192, 16384), holes=0.3)
    few = few_configs(matrix, legal, most)
    expected = brute_few(matrix, legal, most)
    assert (few is None) == (expected is None)
    if few is None or expected is None:
        return
    assert len(few.configs) <= most
    assert few.mean == expected // int(matrix.weight.sum())
    assert few.bound <= few.mean
    tree = solve(matrix.of_configs(few.configs), legal, 9).tree(9)
    assert tree is not None
    assert not list(legal.breaches(tree))


def test_few_configs_answer_beyond_what_was_measured_too() -> None:
    """Up to 4096 4 warps are best and legal; one config alone has to be legal at 16384."""
    matrix = matrix_of(1, (1, 64), (256, 4096), holes=0.0)
    matrix.regret[:] = [[90_000, 0, 50_000, 100_000]] * 4
    legal = legality(SPEC[0])
    one, two = few_configs(matrix, legal, 1), few_configs(matrix, legal, 2)
    assert one is not None and two is not None
    assert one.configs == (RMSNormConfig("block_row", 4, 16),)
    assert RMSNormConfig("row", 1, 4) in two.configs
    for few in (one, two):
        assert any(
            SPEC[0].is_legal(config, Problem.of("toy", MAX_ROWS, 16384, "float32"), TARGETS["sm_90"])
            for config in few.configs
        )
        tree = solve(matrix.of_configs(few.configs), legal, 4).tree(4)
        assert tree is not None
        assert not list(legal.breaches(tree))


def test_too_few_configs_are_none() -> None:
    """No one config has a time on each problem."""
    matrix = matrix_of(1, (1, 64), (256, 16384), holes=0.0)
    matrix.usable[0] = [True, False, False, False]
    matrix.usable[1] = [False, True, True, True]
    assert few_configs(matrix, legality(SPEC[0]), 1) is None
    assert few_configs(matrix, legality(SPEC[0]), 2) is not None


def test_problems_left_out_do_not_choose_the_few() -> None:
    matrix = matrix_of(1, (1, 64), (256, 16384), holes=0.0)
    matrix.regret[:] = [[0, 10_000, 10_000, 10_000]] + [[900_000, 900_000, 900_000, 0]] * 3
    held_out = np.array([False, True, True, True])
    few = few_configs(matrix, legality(SPEC[0]), 1, held_out)
    assert few is not None and few.configs == (RMSNormConfig("block_row", 4, 16),)
    full = few_configs(matrix, legality(SPEC[0]), 1)
    assert full is not None and full.configs == (RMSNormConfig("row", 1, 16),)


def test_the_least_worst_of_one_leaf_is_that_of_one_config() -> None:
    matrix = matrix_of(1, (1, 64), (256, 16384), holes=0.0)
    matrix.regret[:] = [[0, 5, 5, 70_000], [20_000, 5, 5, 30_000], [80_000, 5, 5, 0], [0, 5, 5, 0]]
    legal = legality(SPEC[0])
    assert least_worst(matrix, legal, 1) == 70_000
    # A cut of rows: block_row of 1 row, 16 warps beyond; a cut of hidden has 20 000 at 16384, too.
    assert least_worst(matrix, legal, 2) == 20_000
    assert solve(matrix.within(70_000), legal, 1).tree(1) == Leaf(RMSNormConfig("row", 1, 16))
