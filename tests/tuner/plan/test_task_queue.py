"""Order of the tasks: prefixes cover the grid, contested shapes come early, and tables gain by it."""

import random
from itertools import pairwise
from statistics import mean

import numpy as np
import pytest

from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.regret.matrix import timing_matrix
from normtune.heuristics.solver.bins import losses
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.results.exchange.recording import load_recording
from normtune.tuner.plan.grids import shapes
from normtune.tuner.plan.plan import Task, plan, problems
from normtune.tuner.plan.task_queue import TaskQueue, covering

TARGET = TARGETS["sm_90"]
FAST, OTHER = RMSNormConfig("row", 1, 1), RMSNormConfig("row", 1, 2)


def queue_of(rows, hidden, known=None, keys=("rms_norm_forward",)):
    """A queue over a grid; what candidates there are does not matter to it."""
    wanted = problems(keys, ["bfloat16"], [(row, size) for size in hidden for row in rows])
    return TaskQueue([Task(problem, ()) for problem in wanted], known)


def drained(queue, medians_of):
    """The problems in the order in which they are measured."""
    found = []
    while queue.pending():
        task = next(queue.choices())
        queue.take(task)
        queue.learn(task.problem, medians_of(task.problem))
        found.append(task.problem)
    return found


def agreeing(problem):
    return {FAST: 100, OTHER: 110}


def test_every_beginning_of_the_coverage_is_even():
    grid = shapes("default")
    order = [grid[place] for place in covering(grid)]
    assert sorted(order) == sorted(grid)
    ranks = [{size: rank for rank, size in enumerate(sorted({shape[axis] for shape in grid}))} for axis in (0, 1)]
    for count in (12, 24, 48, 94):
        for axis in (0, 1):  # each quarter of an axis has its share, and no size more than its own
            places = [ranks[axis][shape[axis]] for shape in order[:count]]
            whole = [ranks[axis][shape[axis]] for shape in grid]
            quarters, expected = (np.histogram(values, 4, (0, len(ranks[axis])))[0] for values in (places, whole))
            assert (np.abs(quarters - expected * count / len(grid)) <= 0.5 * expected * count / len(grid) + 1).all()
    # Far apart: nobody begins with neighbours.
    for left, right in pairwise(order[:8]):
        assert max(abs(ranks[axis][left[axis]] - ranks[axis][right[axis]]) for axis in (0, 1)) >= 3


def test_operators_and_dtypes_take_turns_over_the_same_shapes():
    queue = queue_of((1, 64, 4096), (64, 512, 4096), keys=("rms_norm_forward", "rms_norm_backward"))
    order = [task.problem for task in queue.pending()]
    for forward, backward in zip(order[::2], order[1::2], strict=True):
        assert (forward.operator, backward.operator) == ("rms_norm_forward", "rms_norm_backward")
        assert forward[1:] == backward[1:]


def test_everything_comes_once_and_the_order_is_the_same_each_time():
    runs = [drained(queue_of((1, 8, 64, 512, 4096), (64, 256, 1024, 4096, 8192)), agreeing) for _ in range(2)]
    assert runs[0] == runs[1] and len(set(runs[0])) == 25


def test_where_neighbours_disagree_is_measured_before_where_they_agree():
    rows, hidden = [2**power for power in range(17)], [64 * number for number in range(1, 18)]

    def disagreeing(problem):
        # One config serves small hidden sizes everywhere; above, the best alternates with the rows.
        odd = problem.hidden > 576 and problem.rows.bit_length() % 4 < 2
        return {FAST: 110, OTHER: 100} if odd else {FAST: 100, OTHER: 110}

    order = drained(queue_of(rows, hidden), disagreeing)
    early = order[len(order) // 5 : len(order) // 2]
    contested = sum(problem.hidden > 576 for problem in early) / len(early)
    agreed = drained(queue_of(rows, hidden), agreeing)[len(order) // 5 : len(order) // 2]
    assert contested > 0.6 > 0.55 > sum(problem.hidden > 576 for problem in agreed) / len(agreed)


def test_the_shape_that_comes_first_is_a_neighbour_as_well():
    queue = queue_of((1, 4096), (64,))
    first, second = (task.problem for task in queue.pending())
    queue.learn(first, {FAST: 100, OTHER: 105})
    queue.learn(second, {FAST: 105, OTHER: 100})
    (group,) = queue._groups.values()
    assert group.neighbour_losses().tolist() == pytest.approx([np.log(1.05)] * 2)


def test_what_an_earlier_sweep_measured_is_not_covered_again():
    grid = (1, 8, 64, 512, 4096), (64, 256, 1024, 4096, 8192)
    left = problems(["rms_norm_forward"], ["bfloat16"], [(row, size) for row in grid[0] for size in grid[1][:2]])
    known = {problem: agreeing(problem) for problem in left}
    queue = TaskQueue(
        [task for task in queue_of(*grid).pending() if task.problem not in known],
        known,
    )
    assert len(queue.pending()) == 15
    # The hidden sizes farthest from the known ones come first.
    assert next(queue.choices()).problem.hidden == 8192
    order = drained(queue, agreeing)
    assert set(order).isdisjoint(known) and len(order) == 15


def test_a_problem_in_which_everything_failed_teaches_nothing_and_stops_nothing():
    order = drained(queue_of((1, 8, 64, 512, 4096), (64, 256, 1024, 4096, 8192)), lambda problem: {})
    assert len(order) == 25


@pytest.fixture(scope="module")
def recording():
    """The recording's measurements of the default grid in bfloat16, with the medians of each problem."""
    evidence = load_recording("nvidia-h200").select(["rms_norm_forward:", "rms_norm_backward:"], ["bfloat16"])
    grid = set(shapes("default"))
    frame = evidence.frame
    kept = [
        (rows, hidden) in grid and not variant
        for rows, hidden, variant in zip(frame["rows"], frame["hidden"], frame["variant"], strict=True)
    ]
    evidence = Evidence(frame[kept].reset_index(drop=True), evidence.runs)
    medians = {}
    for item in evidence.measurements():
        if len(item.samples):
            medians.setdefault(item.problem, {})[item.config] = int(np.median(item.samples))
    names = ("rms_norm_forward", "rms_norm_backward")
    matrices = {name: timing_matrix(evidence, operator(name), operator(name).key("bfloat16"), TARGET) for name in names}
    return evidence, medians, matrices


def loss_of_table(evidence, matrices, measured, leaves):
    """Mean regret over all problems, millionths, of a table fitted to some of them."""
    shown = set(measured)
    frame = evidence.frame
    rows = zip(frame["operator"], frame["rows"], frame["hidden"], strict=True)
    part = Evidence(frame[[name in shown for name in rows]].reset_index(drop=True), evidence.runs)
    found = []
    for function in fit(part, FitOptions(leaves=leaves)).functions:
        # What has no time anywhere on the recording is no better than a bad choice.
        found += [100_000 if loss is None else loss for loss in losses(matrices[function.key.operator], function.tree)]
    return mean(found)


@pytest.mark.long
# Four fifths of the time of a fit go into the number of leaves, which the order has no part in.
@pytest.mark.parametrize(
    ("share", "leaves", "draws"),
    [
        (0.2, 12, 3),
        pytest.param(0.2, None, 6, marks=pytest.mark.slow),
        pytest.param(0.35, None, 6, marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow
def test_a_table_fitted_on_a_beginning_loses_less_than_one_fitted_on_as_many_at_random(recording, share, leaves, draws):
    evidence, medians, matrices = recording
    tasks = plan(problems([], ["bfloat16"], shapes("default")), "default", TARGET).tasks
    order = [problem.columns[:3] for problem in drained(TaskQueue(tasks), lambda problem: medians[problem])]
    count = round(share * len(order))

    def loss(measured):
        return loss_of_table(evidence, matrices, measured, leaves)

    by_chance = [loss(random.Random(seed).sample(order, count)) for seed in range(draws)]
    assert loss(order[:count]) < mean(by_chance)
