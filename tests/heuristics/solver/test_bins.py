"""Solutions under conditions, few configs and least worst regret, against full enumeration."""

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import cell_of, few_configs, solve
from normtune.heuristics.solver.optimum import Optima
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS

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
