"""The solver of trees, against all possible trees, and against an independent solver of the same problem."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.solver.bins import solve
from normtune.heuristics.solver.grid import axis
from normtune.kernels.box import Interval
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import IllegalConfigError, OperatorSpec, operator
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import tree as tree_module
from normtune.kernels.tablefile.tree import choose, leaves, regions
from normtune.kernels.target import TARGETS, Target
from normtune.kernels.tiles.launch import Launch
from normtune.results.exchange.recording import load_recording

CONFIGS = tuple(RMSNormConfig("row", 1, warps) for warps in (1, 2, 4))
ROWS, HIDDEN = (1, 8, 64, 512, 4096), (64, 96, 128, 1024, 2048)
MOST_LEAVES = 4

Box = tuple[int, int, int, int]  # least and most rows, least and most hidden
Cost = Callable[[Box], int | None]


@dataclass(frozen=True)
class Case:
    """A matrix, and for each config the largest rows x hidden at which it is legal."""

    matrix: TimingMatrix
    limits: tuple[int, ...]

    @property
    def legality(self) -> Legality:
        def resolve(config: Config, problem: Problem, target: Target, alignment: int | None = None) -> Launch:
            if config not in CONFIGS or problem.rows * problem.hidden > self.limits[CONFIGS.index(config)]:
                raise IllegalConfigError("too large")
            return Launch(False, 1, 1, 1, config.num_warps, 1, 16, False, 0)

        spec = OperatorSpec(
            name="drawn",
            modes=(),
            config=RMSNormConfig,
            dtypes=("bfloat16",),
            max_hidden=HIDDEN[-1],
            buffers=lambda problem: (),
            space=lambda name, problem, target: list(CONFIGS),
            resolve=resolve,
            default_config=lambda problem, target: RMSNormConfig("row", 1, 32),  # illegal: no default takes part
            kernel_calls="none:calls",
            reference_module="none",
        )
        return Legality(spec, TARGETS["sm_90"], ("bfloat16",), ("",))

    def solved(self, matrix: TimingMatrix | None = None):
        """The program's trees for the measured sizes alone, so that no bins beyond them are needed in what follows."""
        nothing = np.zeros(len(self.matrix.problems), np.bool_)
        return solve(matrix or self.matrix, self.legality, MOST_LEAVES, nothing)

    def total(self, box: Box, matrix: TimingMatrix | None = None) -> int | None:
        """The least weighted regret of one config on a box; None where none may answer."""
        used = matrix or self.matrix
        return self._best(box, used, lambda losses, weights: int(losses @ weights))

    def worst(self, box: Box) -> int | None:
        """The least worst regret of one config on a box, -1 for an empty one; None where none may answer."""
        return self._best(box, self.matrix, lambda losses, _: int(losses.max(initial=-1)))

    def _best(self, box: Box, matrix: TimingMatrix, score: Callable[[np.ndarray, np.ndarray], int]) -> int | None:
        inside = [
            index
            for index, (rows, hidden) in enumerate(matrix.problems)
            if box[0] <= rows <= box[1] and box[2] <= hidden <= box[3]
        ]
        scores = [
            score(matrix.regret[inside, place], matrix.weight[inside])
            for place, limit in enumerate(self.limits)
            if box[1] * box[3] <= limit and matrix.usable[inside, place].all()
        ]
        return min(scores, default=None)

    def all_trees(self, cost: Cost, join: Callable[[int, int], int]) -> list[int | None]:
        """The least joint cost over every tree of at most 1, 2, ... leaves."""
        tops = [axis.tops for axis in self.solved().axes]
        known = cache(cost)

        def trees(box: Box, count: int) -> Iterator[int]:
            """The joint cost of each tree of exactly so many leaves that may be."""
            if count == 1:
                own = known(box)
                if own is not None:
                    yield own
                return
            for place in (0, 2):
                for top in tops[place // 2]:
                    if not box[place] <= top < box[place + 1]:
                        continue
                    low, high = list(box), list(box)
                    low[place + 1], high[place] = top, top + 1
                    for fewer in range(1, count):
                        above = list(trees(tuple(high), count - fewer))
                        for below in trees(tuple(low), fewer):
                            yield from (join(below, other) for other in above)

        whole = (1, tops[0][-1], 1, tops[1][-1])
        exact = [min(trees(whole, count), default=None) for count in range(1, MOST_LEAVES + 1)]
        known_so_far = [[one for one in exact[:count] if one is not None] for count in range(1, MOST_LEAVES + 1)]
        return [min(found, default=None) for found in known_so_far]


@st.composite
def cases(draw: st.DrawFn, *, limited: bool = True) -> Case:
    """Problems on a grid with holes; regrets and weights that tie often; failures; limits of legality."""
    rows = draw(st.lists(st.sampled_from(ROWS), min_size=1, max_size=5, unique=True))
    hidden = draw(st.lists(st.sampled_from(HIDDEN), min_size=1, max_size=5, unique=True))
    grid = sorted((row, size) for row in rows for size in hidden)
    holes = draw(st.sets(st.sampled_from(grid), max_size=len(grid) // 3))
    problems = tuple(shape for shape in grid if shape not in holes)
    seed, most = draw(st.integers(0, 2**32)), draw(st.sampled_from((3, 40)))
    random = np.random.default_rng(seed)
    shape = len(problems), len(CONFIGS)
    regret = random.integers(-1, most, shape)
    usable = random.random(shape) < draw(st.sampled_from((0.7, 0.9, 1.0)))
    weights = random.integers(1, draw(st.sampled_from((2, 9))), len(problems))
    everywhere = ROWS[-1] * HIDDEN[-1]
    limits = draw(st.tuples(*[st.sampled_from((64, 8192, 65536, everywhere))] * len(CONFIGS))) if limited else ()
    matrix = TimingMatrix(
        Key.of("drawn", "", "bfloat16"), problems, CONFIGS, np.where(usable, regret, 0), usable, weights=weights
    )
    return Case(matrix, limits or (2**60,) * len(CONFIGS))


@pytest.mark.slow
@given(cases())
@settings(max_examples=150, deadline=None)
def test_no_tree_costs_less_and_the_tree_costs_as_much(case: Case) -> None:
    check(case, case.matrix)


@pytest.mark.slow
@given(cases(), st.integers(-1, 40))
@settings(max_examples=150, deadline=None)
def test_no_tree_within_a_cap_costs_less(case: Case, cap: int) -> None:
    check(case, case.matrix.within(cap))


def check(case: Case, matrix: TimingMatrix) -> None:
    optima = case.solved(matrix)
    expected = case.all_trees(lambda box: case.total(box, matrix), lambda left, right: left + right)
    assert [optima.least(count) for count in range(1, MOST_LEAVES + 1)] == expected
    for count, least in enumerate(expected, 1):
        tree = optima.tree(count)
        assert (tree is None) == (least is None)
        if tree is None:
            continue
        assert leaves(tree) <= count
        total = 0
        for index, shape in enumerate(matrix.problems):
            place = CONFIGS.index(choose(tree, shape))
            assert matrix.usable[index, place]
            total += int(matrix.regret[index, place] * matrix.weight[index])
        assert total == least
        for config, region in regions(
            tree, tree_module.Box(Interval(own.name, 1, own.tops[-1]) for own in optima.axes)
        ):
            assert region[0].most * region[1].most <= case.limits[CONFIGS.index(config)]


@pytest.mark.slow
@given(cases(limited=False))
@settings(max_examples=150, deadline=None)
def test_no_tree_has_a_lesser_worst_case_and_none_of_those_costs_less(case: Case) -> None:
    expected = case.all_trees(case.worst, max)
    for count, worst in enumerate(expected, 1):
        if worst is not None:
            assert not worst or case.solved(case.matrix.within(worst - 1)).least(count) is None
            within = case.matrix.within(worst)
            least = case.all_trees(lambda box, within=within: case.total(box, within), lambda low, high: low + high)
            assert case.solved(within).least(count) == least[count - 1]


# STreeD (van der Linden et al. 2023) bounds the number of branching nodes and the depth. A tree of at most L leaves has
# at most L - 1 branching nodes and is at most L - 1 deep, and a tree of at most L - 1 branching nodes has at most L
# leaves: with both bounds at L - 1 the two programs choose from the same trees. With the depth bounded further STreeD
# has fewer trees to choose from, so it can only cost more, and must cost the same where our tree is that shallow.
BARRED = 10**9


def by_streed(matrix: TimingMatrix, count: int, depth: int) -> int | None:
    """The least weighted regret by STreeD of trees of at most `count` leaves and that depth; None where none may be."""
    pystreed = pytest.importorskip("pystreed", reason="pip install 'normtune[exact]'")
    shapes = np.array(matrix.problems)
    cuts = [
        shapes[:, place] > top
        for place, name in enumerate(("rows", "hidden"))
        for top in axis(name, shapes[:, place].tolist(), 1).tops[:-1]
    ]
    least = matrix.regret.min()  # STreeD takes costs from 0 on
    cost = np.where(matrix.usable, (matrix.regret - least) * matrix.weight[:, None], BARRED)
    found = pystreed.STreeDInstanceCostSensitiveClassifier(max_depth=depth, max_num_nodes=count - 1, time_limit=120)
    found.fit(np.stack(cuts, axis=1).astype(np.int32), cost.astype(np.float64))
    assert found.fit_result.is_optimal()
    chosen = found.predict(np.stack(cuts, axis=1).astype(np.int32))
    total = int(cost[np.arange(len(cost)), chosen].sum())
    return None if total >= BARRED else total + int(least * matrix.weight.sum())


def drawn(seed: int) -> Case:
    """All of the grid, with regrets of a few kinds of shapes and noise, so that deeper trees gain."""
    random = np.random.default_rng(seed)
    problems = tuple((rows, hidden) for rows in ROWS for hidden in HIDDEN)
    kinds = random.integers(0, len(CONFIGS), len(problems))
    regret = random.integers(0, 20, (len(problems), len(CONFIGS)))
    regret[np.arange(len(problems)), kinds] = 0
    usable = random.random(regret.shape) < 0.95
    weights = random.integers(1, 5, len(problems))
    matrix = TimingMatrix(
        Key.of("drawn", "", "bfloat16"), problems, CONFIGS, np.where(usable, regret, 0), usable, weights=weights
    )
    return Case(matrix, (2**60,) * len(CONFIGS))


@pytest.mark.parametrize("seed", range(8))
def test_streed_finds_trees_of_the_same_cost(seed: int) -> None:
    case = drawn(seed)
    optima = solve(case.matrix, case.legality, 8, np.zeros(len(case.matrix.problems), np.bool_))
    for count in range(2, 6):
        assert optima.least(count) == by_streed(case.matrix, count, count - 1)
    shallow = by_streed(case.matrix, 8, 3)
    least, tree = optima.least(8), optima.tree(8)
    assert least is not None and (shallow is None or least <= shallow)
    if depth_of(tree) <= 3:
        assert least == shallow


def depth_of(tree) -> int:
    return 0 if leaves(tree) == 1 else 1 + max(depth_of(tree.low), depth_of(tree.high))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["rms_norm_forward", "rms_norm_backward"])
def test_streed_finds_trees_of_the_same_cost_on_the_recorded_gpu(name: str) -> None:
    evidence = load_recording("nvidia-h200").select([name], ["bfloat16"])
    spec = operator(name)
    matrix = timing_matrix(evidence, spec, spec.key("bfloat16"), TARGETS["sm_90"])
    assert matrix is not None and len(matrix.problems) > 400
    matrix = replace(matrix, weights=np.ones(len(matrix.problems), np.int64))  # STreeD takes sums below 2**31
    # All that is legal at a measured shape was measured there, so that legality bars nothing that times do not bar.
    optima = solve(matrix, Legality(spec, TARGETS["sm_90"], (), ()), 4, np.zeros(len(matrix.problems), np.bool_))
    assert [optima.least(count) for count in (2, 3, 4)] == [by_streed(matrix, count, count - 1) for count in (2, 3, 4)]
