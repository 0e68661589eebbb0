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


def sets_of(cost: np.ndarray, barred: np.ndarray, size: int) -> dict[tuple[int, ...], int]:
    """What every set of at most `size` undominated candidates costs, those alone that cover every problem."""
    told = np.where(barred, BARRED, cost)
    candidates = [
        place
        for place in range(told.shape[1])
        if not any(
            (told[:, other] <= told[:, place]).all() and ((told[:, other] < told[:, place]).any() or other < place)
            for other in range(told.shape[1])
            if other != place
        )
    ]
    found = {}
    for count in range(1, size + 1):
        for chosen in combinations(candidates, count):
            least = told[:, chosen].min(axis=1)
            if least.max() < BARRED:
                found[chosen] = int(least.sum())
    return found


def first_of_the_least(sets: dict[tuple[int, ...], int]) -> tuple[int, ...]:
    return min(sets, key=lambda chosen: (sets[chosen], len(chosen), chosen))


@pytest.mark.slow
@given(tables(), st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_it_is_the_first_of_the_best_of_all_sets(table: tuple[np.ndarray, np.ndarray], size: int) -> None:
    cost, barred = table
    sets = sets_of(cost, barred, size)
    found = portfolio(cost, size, barred)
    if not sets:
        assert found is None
    else:
        best = first_of_the_least(sets)
        assert found == Portfolio(best, sets[best], sets[best])


@pytest.mark.slow
@given(tables(), st.integers(-20, 200))
@settings(max_examples=200, deadline=None)
def test_the_fewest_within_a_budget_are_those_of_all_sets(table: tuple[np.ndarray, np.ndarray], budget: int) -> None:
    cost, barred = table
    sets = {chosen: of for chosen, of in sets_of(cost, barred, cost.shape[1]).items() if of <= budget}
    found = fewest(cost, barred, budget)
    if not sets:
        assert found is None
    else:
        count = min(map(len, sets))
        best = first_of_the_least({chosen: of for chosen, of in sets.items() if len(chosen) == count})
        assert found == Portfolio(best, sets[best], sets[best])


@pytest.mark.slow
@given(tables(most=10**12), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_what_barred_entries_hold_is_not_looked_at(table: tuple[np.ndarray, np.ndarray], size: int) -> None:
    cost, barred = table
    filled = np.where(barred, np.int64(-(2**60)), cost)
    assert portfolio(filled, size, barred) == portfolio(cost, size, barred)


def noisy(seed: int, problems: int, candidates: int) -> np.ndarray:
    """Costs without any structure, on which bounds are far from tight."""
    return np.random.default_rng(seed).integers(0, 1000, (problems, candidates))


@pytest.mark.parametrize("seed", range(6))
def test_out_of_nodes_the_bound_still_holds(seed: int) -> None:
    cost = noisy(seed, 40, 16)
    sizes = range(2, 6)
    best = [portfolio(cost, size) for size in sizes]
    stopped = [portfolio(cost, size, max_nodes=1) for size in sizes]
    open_gaps = 0
    for least, found in zip(best, stopped, strict=True):
        assert least is not None and found is not None
        assert least.cost == least.bound
        assert found.bound <= least.cost <= found.cost
        assert found.cost == int(cost[:, found.chosen].min(axis=1).sum())
        open_gaps += found.bound < found.cost
    assert open_gaps, "the limit was never reached"


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
