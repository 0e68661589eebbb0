from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from normtune.heuristics.solver.portfolio import Portfolio, fewest, portfolio

BARRED = 10**9


@st.composite
def tables(draw: st.DrawFn, most: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Costs and where candidates are barred; few different values, so that ties are common."""
    shape = draw(st.integers(1, 8)), draw(st.integers(1, 7))
    top = draw(st.integers(1, most))
    cost = draw(arrays(np.int64, shape, elements=st.integers(-3, top)))
    often = draw(st.sampled_from((1, 2, 5)))
    return cost, draw(arrays(np.int64, shape, elements=st.integers(0, often))) == often


def brute_force(cost: np.ndarray, barred: np.ndarray, size: int) -> dict[tuple[int, ...], int]:
    """What every set of at most `size` candidates costs, of those that cover every problem."""
    masked = np.where(barred, BARRED, cost)
    sets = (chosen for count in range(1, size + 1) for chosen in combinations(range(masked.shape[1]), count))
    least = {chosen: masked[:, chosen].min(axis=1) for chosen in sets}
    return {chosen: int(costs.sum()) for chosen, costs in least.items() if costs.max() < BARRED}


@pytest.mark.slow
@given(tables(), st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_a_set_is_found_wherever_there_is_one_and_the_bound_holds_for_all(
    table: tuple[np.ndarray, np.ndarray], size: int
) -> None:
    cost, barred = table
    sets = brute_force(cost, barred, size)
    result = portfolio(cost, size, barred)
    if not sets:
        assert result is None
    else:
        assert result is not None and result.bound <= min(sets.values()) <= result.cost == sets[result.chosen]


@pytest.mark.slow
@given(tables(), st.integers(-20, 200))
@settings(max_examples=200, deadline=None)
def test_the_fewest_are_within_the_budget_and_no_smaller_set_was_found(
    table: tuple[np.ndarray, np.ndarray], budget: int
) -> None:
    cost, barred = table
    sets = brute_force(cost, barred, cost.shape[1])
    result = fewest(cost, barred, budget)
    if not sets or min(sets.values()) > budget:
        assert result is None
    else:
        assert result is not None and result.cost == sets[result.chosen] <= budget
        smaller = [portfolio(cost, size, barred) for size in range(1, len(result.chosen))]
        assert not [one for one in smaller if one and one.cost <= budget]


@pytest.mark.parametrize("seed", range(4))
def test_most_sets_are_the_best_ones(seed: int) -> None:
    cost = np.random.default_rng(seed).integers(0, 1000, (30, 12))
    nothing = np.zeros(cost.shape, np.bool_)
    for size in (1, 2, 3):
        result, best = portfolio(cost, size), min(brute_force(cost, nothing, size).values())
        assert result is not None and best <= result.cost <= 1.02 * best


def test_a_cover_that_greedy_choices_miss_is_found() -> None:
    """Each step of a greedy choice takes the large candidate; only the other two cover all problems."""
    allowed = np.array([[1, 1, 0], [1, 1, 0], [1, 0, 1], [1, 0, 1], [0, 1, 0], [0, 0, 1]], np.bool_)
    result = portfolio(np.zeros((6, 3), np.int64), 2, ~allowed)
    assert result == Portfolio((1, 2), 0, 0)
    assert portfolio(np.zeros((6, 3), np.int64), 1, ~allowed) is None
    assert fewest(np.zeros((6, 3), np.int64), ~allowed, 0) == Portfolio((1, 2), 0, 0)


def test_costs_of_a_searched_recording_are_summed() -> None:
    """About 900 shapes with weights of 4096 and more than 900 configs, some of them 16 times slower."""
    cost = np.random.default_rng(5).integers(0, 2_800_000, (900, 1000)) * 4096
    result = portfolio(cost, 6)
    assert result is not None and result.bound <= result.cost == int(cost[:, result.chosen].min(axis=1).sum())


@pytest.mark.slow
@given(tables(most=10**12), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_what_barred_entries_hold_is_not_looked_at(table: tuple[np.ndarray, np.ndarray], size: int) -> None:
    cost, barred = table
    filled = np.where(barred, np.int64(-(2**60)), cost)
    assert portfolio(filled, size, barred) == portfolio(cost, size, barred)


def test_a_greedy_choice_is_not_good_enough() -> None:
    # The first candidate saves most by itself; the other two together leave nothing.
    cost = np.array([[1, 0, 9], [1, 0, 9], [1, 9, 0], [1, 9, 0]])
    assert portfolio(cost, 1) == Portfolio((0,), 4, 4)
    assert portfolio(cost, 2) == Portfolio((1, 2), 0, 0)
    assert fewest(cost, None, 3) == Portfolio((1, 2), 0, 0)
    assert fewest(cost, None, 4) == Portfolio((0,), 4, 4)
    assert fewest(cost, None, -1) is None


def test_a_problem_that_nobody_may_answer_has_no_portfolio() -> None:
    cost = np.zeros((2, 3), np.int64)
    barred = np.array([[True, True, True], [False, False, False]])
    assert portfolio(cost, 3, barred) is None
    assert fewest(cost, barred, 100) is None


def test_no_candidate_is_taken_that_saves_nothing() -> None:
    cost = np.array([[5, 5, 3], [5, 5, 3]])
    assert portfolio(cost, 3) == Portfolio((2,), 6, 6)


def test_wrong_sizes_and_sums_that_are_not_exact_are_refused() -> None:
    with pytest.raises(ValueError, match="size is 0"):
        portfolio(np.zeros((1, 1), np.int64), 0)
    with pytest.raises(OverflowError, match="2 problems"):
        portfolio(np.array([[0, 2**60], [2**60, 0]]), 1)


def test_costs_of_thousands_of_candidates_are_summed_as_exactly_as_those_of_few():
    """A search of a large space times thousands of configs, of which a set needs at most one a problem."""
    cost = np.random.default_rng(3).integers(0, 1 << 44, (8, 3000))
    least = int(cost.min(axis=1).sum())
    assert portfolio(cost, 9) == Portfolio(tuple(sorted({*cost.argmin(axis=1).tolist()})), least, least)
