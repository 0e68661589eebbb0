"""The search at the shapes where thresholds are uncertain, on a made-up operator with a planted threshold."""

import math
from itertools import pairwise

import numpy as np
import pytest

from normtune.benchmarks.lib.simulation import Space, simulate
from normtune.kernels.key import Key
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split
from normtune.results.records import Coverage, Outcome
from normtune.tuner.plan.grids import between
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.search.disputes import Disputes
from normtune.tuner.search.refine import Refine, Refinement

FEW, MANY = RMSNormConfig("row", 1, 1), RMSNormConfig("row", 1, 8)
KIND = Key.of("made_up", "", "float32")
ROWS, HIDDEN = between(1, 65536), (256, 1024, 4096)
GRID = [(rows, hidden) for rows in (1, 64, 4096, 65536) for hidden in HIDDEN]
PLANTED = 1500
FITTED = Split("rows", 512, Leaf(FEW), Leaf(MANY))


def times(rows):
    """Of FEW rows the one config is faster, of many the other: 3 % an octave."""
    return {FEW: 100_000 * 2 ** (0.03 * math.log2(rows / PLANTED)), MANY: 100_000}


def space(shape):
    problem = Problem(KIND, *shape)
    blocks = {config: np.full((8, 2), round(time), np.int64) for config, time in times(shape[0]).items()}
    task = Task(problem, tuple(Candidate(config, None) for config in sorted(blocks)))
    return Space(task, blocks, dict.fromkeys(blocks, 0.0))


def known(shapes):
    return {
        Problem(KIND, *shape): {config: Coverage("ok", "", 16, round(time)) for config, time in times(shape[0]).items()}
        for shape in shapes
    }


POOL = [(rows, hidden) for rows in ROWS for hidden in HIDDEN if (rows, hidden) not in GRID]


def refined(until, before=GRID, seconds=math.inf):
    refinement = Refinement({}, until, {KIND: POOL})
    made = []

    def strategy(tasks, _):
        made.append(Refine(tasks, known(before), refinement))
        return made[0]

    result = simulate(strategy, [space(shape) for shape in POOL if shape not in before], 0, seconds)
    return [task.problem.shape for task, _ in result.measured], made[0], result


def test_other_functions_and_shapes_at_which_all_failed_dispute_nothing():
    refinement = Refinement({}, 0.0, {KIND: POOL})
    other, failed = Problem(KIND._replace(dtype="float16"), *GRID[0]), Problem(KIND, *POOL[0])
    given = known(GRID) | {other: {FEW: Coverage("ok", "", 16, 1)}, failed: {FEW: Coverage("timeout", "", 0, None)}}
    found, expected = (refinement.disputes(stored) for stored in (given, known(GRID)))
    assert [*found] == [KIND] and found[KIND].open() == expected[KIND].open() != []


def test_a_planted_threshold_is_found_within_half_an_octave():
    measured, search, result = refined(0.0)
    assert result.is_done and not search.pending()
    for hidden in HIDDEN:
        rows = [size for size, other in (*GRID, *measured) if other == hidden]
        below, above = max(size for size in rows if size < PLANTED), min(size for size in rows if size > PLANTED)
        assert above / below <= 2**0.5 * 1.01
    # Of those that were not drawn at random, the first lie between the measured sizes around the threshold.
    chosen = [rows for number, (rows, _) in enumerate(measured) if (len(POOL) - number) % 3]
    assert all(64 < rows < 4096 for rows in chosen[:5])


def test_it_ends_when_the_stated_loss_is_reached_and_not_before():
    counts = []
    for until in (0.00001, 0.0001, 0.002, 0.1):
        measured, search, _ = refined(until)
        assert search._disputes[KIND].expected <= until
        counts.append(len(measured))
    # A third of them are drawn at random, and with fewer than ten of those nothing is promised.
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[2] >= 24
    assert refined(0.1, seconds=0.0)[1]._disputes[KIND].expected is None


def test_a_race_whose_device_was_lost_begins_again():
    search = Refine([space(shape).task for shape in POOL], known(GRID), Refinement({}, 0.0, {KIND: POOL}))
    task = next(search.ask())
    for _ in range(2):
        assert next(search.race(task)).configs == task.configs
        assert task.problem not in {other.problem for other in search.pending()}
    outcomes = {config: Outcome("ok", "", [0, 1], [100, 100]) for config in task.configs}
    search.tell(task, outcomes)
    near = {other for shape in POOL for other in search._disputes[KIND].neighbours(shape)}
    assert task.problem.shape in near  # it was learned


def test_what_is_expected_at_other_shapes_is_what_is_lost_there():
    def uneven(shape):
        """As `times`, with up to 6 % of each shape's own, so that neighbours often answer wrongly."""
        few = times(shape[0])[FEW] * math.exp(0.06 * math.sin(sum(shape)))
        return {FEW: few, MANY: 100_000}

    disputes = Disputes(POOL, {shape: uneven(shape) for shape in GRID})
    assert disputes.expected is None
    for _ in range(60):
        shape = disputes.draw()
        disputes.learn(shape, uneven(shape))
    others = [disputes._index[one.shape] for one in disputes.open()]
    configs = [*disputes._of_near.columns]
    lost = []
    for index in others:
        own = uneven(disputes.shapes[index])
        lost.append(math.log(own[configs[disputes._of_near.answers[index]]] / min(own.values())))
    share = disputes._shares[others]
    assert len(others) > 80 and share @ lost / share.sum() > 0.002
    assert disputes.expected == pytest.approx(share @ lost / share.sum(), rel=0.3)


def test_each_task_is_the_one_worth_most():
    _, search, _ = refined(0.1)
    worth = [one.worth for one in search._disputes[KIND].open()]
    assert worth == sorted(worth, reverse=True)
    tasks = [space(shape).task for shape in POOL]
    drawn, first = [*Refine(tasks, known(GRID), Refinement({}, 0.0, {KIND: POOL})).ask()][:2]
    fresh = Disputes(POOL, {shape: times(shape[0]) for shape in GRID})
    assert drawn.problem.shape == fresh.draw() and first.problem.shape == fresh.open()[0].shape


def test_only_configs_that_are_nearly_the_best_at_a_neighbour_are_raced_at_a_chosen_shape():
    tasks = [space(shape).task for shape in POOL]
    search = Refine(tasks, known(GRID), Refinement({}, 0.0, {KIND: POOL}))
    drawn, *chosen = search.ask()
    assert {*drawn.configs} == {FEW, MANY}
    assert {*next(task for task in chosen if task.problem.rows > 4096).configs} == {MANY}
    assert {*next(task for task in chosen if 512 < task.problem.rows < 4096).configs} == {FEW, MANY}


def test_the_same_seed_measures_the_same_shapes():
    assert refined(0.0005)[0] == refined(0.0005)[0]


def test_a_search_that_was_cut_off_goes_on_where_it_was():
    whole, *_ = refined(0.0005)
    spent = refined(0.0005)[2].ends[len(whole) // 2]
    half, _, result = refined(0.0005, seconds=spent)
    assert not result.is_done and 0 < len(half) < len(whole)
    rest, search, _ = refined(0.0005, before=[*GRID, *half])
    assert half + rest == whole and not search.pending()


def test_a_task_that_fails_is_not_asked_for_again():
    search = Refine([space(shape).task for shape in POOL], known(GRID), Refinement({}, 0.0, {KIND: POOL}))
    task = search.pending()[0]
    search.race(task)
    search.tell(task, {})
    assert task not in search.pending()


def test_the_expected_loss_is_told():
    (line,) = refined(0.1)[1].report()["refinement"]
    assert line.startswith("made_up float32: expected loss at shapes that were not measured: 0.0")
    (line,) = refined(0.1, seconds=0.0)[1].report()["refinement"]
    assert "not measured: too few shapes (10 drawn at random) to say" in line


def test_sizes_between():
    assert between(1, 8) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert between(64, 128, 16) == [64, 80, 96, 112, 128]
    assert between(7, 7) == [7]
    sizes = between(64, 262144)
    assert max(high / low for low, high in pairwise(sizes)) == pytest.approx(2**0.25, rel=0.02)


def test_the_configs_of_the_table_are_timed_wherever_a_shape_is_measured():
    """At few rows MANY is 12 % slower than FEW, so that neighbours alone do not ask for it."""

    def first(choices):
        search = Refine([space(shape).task for shape in POOL], known(GRID), Refinement(choices, 0.0, {KIND: POOL}))
        return {task.problem.shape: set(task.configs) for task in search.pending()}

    few = [shape for shape, configs in first({}).items() if configs == {FEW}]
    assert few
    invariant = first({KIND: FITTED, KIND.batch_invariant: Leaf(MANY)})
    assert {shape: invariant[shape] for shape in few} == {shape: {FEW, MANY} for shape in few}
