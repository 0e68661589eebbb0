"""The function of one class at each hidden size: the optimum by hand and by brute force, and bounds."""

from dataclasses import replace

import numpy as np
import pytest

from normtune.heuristics.fitting.batch_invariant import bounded, cost_of, fit_batch_invariant
from normtune.heuristics.regret.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.solver.bins import losses, solve
from normtune.kernels.box import Box
from normtune.kernels.key import Key
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split, choose, leaves, regions
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.results.records import Measurement
from normtune.tests.heuristics import made_up
from normtune.tests.heuristics.made_up import matrix_of

H200 = TARGETS["sm_90"]
CONFIGS = tuple(RMSNormConfig("row", 1, warps) for warps in (8, 16, 32))


def made(regret, problems, usable=None, weights=None):
    return matrix_of(regret, problems, CONFIGS, usable, weights)


def cuts_rows(tree):
    return isinstance(tree, Split) and (tree.axis == "rows" or cuts_rows(tree.low) or cuts_rows(tree.high))


def timed(matrix, best=None, failed=()):
    return made_up.timed(matrix, best or [1000] * len(matrix.problems), failed)


SHAPES = [(rows, hidden) for hidden in (64, 256, 1024, 4096) for rows in (1, 64, 4096)]


@pytest.mark.parametrize("seed", range(12))
def test_where_no_two_configs_are_of_a_class_no_choice_by_hidden_alone_is_better(seed, legality):
    draw = np.random.default_rng(seed)
    usable = draw.random((len(SHAPES), 3)) < 0.9
    usable[:, 0] = True
    weights = draw.integers(1, 9000, len(SHAPES))
    matrix = made(draw.integers(0, 300_000, (len(SHAPES), 3)), SHAPES, usable, weights)
    most_at_hidden = {}
    for hidden in (64, 256, 1024, 4096):
        places = [place for place, shape in enumerate(SHAPES) if shape[1] == hidden]
        sums = [
            sum(int(weights[place]) * int(matrix.regret[place, column]) for place in places)
            for column in range(3)
            if usable[places, column].all()
        ]
        most_at_hidden[hidden] = min(sums)
    # A later time never bounds an earlier one here, as each problem's best takes far longer than those of fewer rows.
    times = timed(matrix, [{1: 10, 64: 10**4, 4096: 10**7}[rows] for rows, _ in SHAPES])
    found = fit_batch_invariant(times, legality, Leaf(CONFIGS[0]))
    total = sum(loss * int(weight) for loss, weight in zip(losses(found.matrix, found.tree), weights, strict=True))
    assert not cuts_rows(found.tree)
    assert sum(most_at_hidden.values()) <= total <= sum(most_at_hidden.values()) + 1000 * int(weights.sum())


def test_what_it_costs_is_told_against_the_function_that_looks_at_rows(legality):
    by_rows = [[0, 200_000, 400_000], [100_000, 0, 400_000], [300_000, 0, 400_000]]
    matrix = made([*by_rows, *by_rows], SHAPES[:6])
    usual = solve(matrix, legality, 4).tree(4)
    assert usual == Split("rows", 8, Leaf(CONFIGS[0]), Leaf(CONFIGS[1]))
    found = fit_batch_invariant(timed(matrix), legality, usual)
    assert found.tree == Leaf(CONFIGS[1])
    assert found.cost == (200_000 // 3, 200_000, 6, 0)
    heavy = replace(matrix, weights=np.array([8192, 2048, 2048] * 2, np.int64))
    assert cost_of(heavy, found.tree, usual).mean == 200_000 * 2 // 3


def test_leaves_that_gain_nothing_are_left_out_and_no_more_are_taken_than_asked(legality):
    flat = [[0, 500, 90_000]] * 6 + [[90_000, 500, 0]] * 6
    matrix = made(flat, SHAPES)
    assert fit_batch_invariant(timed(matrix), legality, Leaf(CONFIGS[0])).tree == Leaf(CONFIGS[1])
    steep = [[0, 50_000, 90_000]] * 6 + [[90_000, 50_000, 0]] * 6
    matrix = made(steep, SHAPES)
    found = [fit_batch_invariant(timed(matrix), legality, Leaf(CONFIGS[0]), most) for most in (None, 1)]
    assert [leaves(one.tree) for one in found] == [2, 1]
    assert found[0].tree == Split("hidden", 512, Leaf(CONFIGS[0]), Leaf(CONFIGS[2]))


def test_a_size_at_which_every_config_loses_much_lifts_the_cap_of_no_other(legality):
    # At the first size each config loses over 2.7 times somewhere; at the second the one of least mean does.
    first = [[0, 1_400_000, 1_300_000], [1_300_000, 0, 1_200_000], [1_500_000, 1_500_000, 1_100_000]]
    second = [[0, 900_000, 1_200_000], [0, 900_000, 1_200_000], [1_900_000, 900_000, 1_200_000]]
    matrix = made([*first, *second], SHAPES[:6])
    found = fit_batch_invariant(timed(matrix), legality, Leaf(CONFIGS[0]))
    assert [choose(found.tree, (1, hidden)) for hidden in (64, 256)] == [CONFIGS[2], CONFIGS[1]]


def test_a_config_that_was_not_timed_with_few_rows_is_bounded_by_more(legality):
    usable = [[True, True, False], [True, True, True], [True, True, True]]
    regret = [[0, 100_000, 0], [500_000, 700_000, 0], [600_000, 500_000, 0]]
    matrix = made(regret, SHAPES[:3], usable)
    filled = bounded(timed(matrix, [1000, 1100, 4000]), legality)
    # It took 1100 ns at 64 rows, so no longer at 1 row, where the best takes 1000.
    assert filled.regret[0, 2] == round(1e6 * np.log(1.1)) and filled.usable[0, 2]
    assert (filled.regret[matrix.usable] == matrix.regret[matrix.usable]).all()
    found = fit_batch_invariant(timed(matrix, [1000, 1100, 4000]), legality, Leaf(CONFIGS[1]))
    assert found.tree == Leaf(CONFIGS[2])
    # The bound chose it; what it costs is told where both were timed.
    assert found.cost == (-600_000, -500_000, 2, 1)
    # A bound never goes the other way: what was timed with few rows alone says nothing of more.
    few = made(regret, SHAPES[:3], [[True, True, True], [True, True, False], [True, True, False]])
    assert not bounded(timed(few), legality).usable[1:, 2].any()


def test_a_bound_is_never_better_than_the_best(legality):
    matrix = made([[0, 0, 0], [0, 0, 0]], SHAPES[:2], [[True, True, False], [True, True, True]])
    assert bounded(timed(matrix, [1000, 900]), legality).regret[0, 2] == 0


def test_what_failed_is_not_bounded_nor_is_the_same_launch(legality, spec):
    wide, same = RMSNormConfig("block_row", 16, 1), RMSNormConfig("block_row", 4, 1)
    problem = Problem.of("toy", 1, 1024, "bfloat16")
    assert spec.resolve(wide, problem, H200, None) == spec.resolve(same, problem, H200, None)
    regret, usable = np.zeros((2, 3), np.int64), np.array([[True, False, False], [True, True, True]])
    matrix = TimingMatrix(
        Key.of("toy", "", "bfloat16"), ((1, 1024), (64, 1024)), (CONFIGS[0], wide, same), regret, usable
    )
    assert bounded(timed(matrix), legality).usable.all()
    assert bounded(timed(matrix, failed=[(0, 1)]), legality).usable.tolist() == usable.tolist()


@pytest.fixture
def alike(spec):
    """The operator with launches that sum a row in one order with 8 and with 16 warps, up to 1000 rows with 8."""
    resolve = spec.resolve

    def resolved(config, problem, target, alignment=None):
        if config.num_warps == 8 and problem.rows > 1000:
            raise IllegalConfigError("too many rows")
        launch = resolve(config, problem, target, alignment)
        return launch._replace(row_layout=(8, 32, max(16, config.num_warps)))

    object.__setattr__(spec, "resolve", resolved)


def test_few_rows_take_a_config_that_is_illegal_for_many_if_it_sums_a_row_alike(legality, alike):
    matrix = made(
        [[0, 100_000, 0], [0, 100_000, 0], [0, 0, 900_000]], SHAPES[:3], [[True] * 3] * 2 + [[False, True, True]]
    )
    found = fit_batch_invariant(timed(matrix), legality, Leaf(CONFIGS[1]))
    assert found.tree == Split("rows", 512, Leaf(CONFIGS[0]), Leaf(CONFIGS[1]))
    assert found.cost[:3] == (-200_000 // 3, 0, 3)
    # A leaf alone serves all rows.
    assert fit_batch_invariant(timed(matrix), legality, Leaf(CONFIGS[1]), 1).tree == Leaf(CONFIGS[1])
    assert fit_batch_invariant(timed(matrix), legality, Leaf(CONFIGS[1]), 2).tree == found.tree


def test_a_size_takes_the_class_of_least_regret(legality, alike):
    few_alone = [[0, 100_000, 200_000], [0, 100_000, 200_000], [0, 900_000, 0]]
    matrix = made([*few_alone, [0, 90_000, 900_000], [0, 90_000, 900_000], [0, 0, 900_000]], SHAPES[:6])
    found = fit_batch_invariant(timed(matrix), legality, Leaf(CONFIGS[1]))
    assert found.tree == Split("hidden", 128, Leaf(CONFIGS[2]), Split("rows", 512, Leaf(CONFIGS[0]), Leaf(CONFIGS[1])))


def test_where_no_class_serves_all_rows_there_is_no_function(legality, alike):
    usable = [[True, False, False], [True, False, False], [False, False, True]]
    matrix = made([[0, 0, 0]] * 3, SHAPES[:3], usable)
    best = timed(matrix, [10, 100, 10**7])
    assert bounded(best, legality).usable[:2, 2].all()  # a bound, although far off
    wrong = timed(matrix, [10, 100, 10**7], [(0, 2)])
    assert fit_batch_invariant(wrong, legality, Leaf(CONFIGS[0])) is None


def test_a_fit_of_measurements_is_legal_at_every_size(evidence, spec, legality):
    matrix = timing_matrix(evidence, spec, spec.key("bfloat16"), H200)
    found = fit_batch_invariant(matrix, legality, Leaf(RMSNormConfig("row", 1, 16)))
    assert not cuts_rows(found.tree) and not list(legality.breaches(found.tree))
    assert {box[0].most for _, box in regions(found.tree, Box.of(rows=(1, MAX_ROWS), hidden=(1, 16384)))} == {MAX_ROWS}
    # Few warps for short rows and many for long ones, by the law of the measurements.
    assert [choose(found.tree, (1, hidden)).num_warps for hidden in (64, 4096)] == [4, 16]
    assert found.cost.bounded == 0


def test_best_times_are_medians_of_the_newest_run_in_ns(measure, run, spec):
    def law(config, problem):
        return config.num_warps / 8 - 1 + problem.rows / 1000

    shapes = [(1, 64), (1000, 64)]
    early = measure(law, shapes, configs=CONFIGS)
    late = [
        one._replace(samples=(one.samples * (0.5 if one.config == CONFIGS[0] else 1)).astype(np.int32))
        for one in measure(law, shapes, configs=CONFIGS[:2], run="run2")
    ]
    later = run._replace(id="run2", started="2026-11-21T10:00:00")
    failed = Measurement(
        Problem.of("toy", 1, 64, "bfloat16"), CONFIGS[2], "run2", "sha256:0", "timeout", "late", [], []
    )
    both = Evidence.from_measurements([*early, *late, failed], [run, later])
    matrix = timing_matrix(both, spec, spec.key("bfloat16"), H200)
    found = matrix.times
    newest = {(one.problem.rows, one.config): one.samples for one in late}
    wanted = [int(np.sort(newest[rows, CONFIGS[0]])[7:9].sum()) // 2 for rows, _ in matrix.problems]
    assert found.best.tolist() == wanted
    assert np.argwhere(found.failed).tolist() == [[0, 2]]
