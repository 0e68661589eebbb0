"""`plane` on small landscapes beside the best of the simple searches at as many timings."""

import itertools

import numpy as np
import pytest

from normtune.benchmarks.landscapes import Case, run
from normtune.benchmarks.lib.landscapes import KINDS
from normtune.benchmarks.lib.rivals import RIVALS

SEEDS, TIMINGS = 10, 60
# What `plane` may lose more than the best of the others: a share of that loss, or so many percent.
SHARE, PERCENT = 0.1, 0.3
# Few configs at some shapes, many at one and at some.
SIZES = (60, 9), (600, 1), (600, 6)


def losses(case, seeds):
    """Mean losses over seeds, percent: of plane, and the least of a simple search."""
    plane = [run(case, seed, "plane", TIMINGS) for seed in range(1, seeds + 1)]
    others = [[run(case, one["seed"], name, round(one["timings"]))["mean"] for one in plane] for name in RIVALS]
    return float(np.mean([one["mean"] for one in plane])), float(np.mean(others, axis=1).min())


@pytest.mark.slow
@pytest.mark.parametrize("case", [Case(kind, *size) for kind, size in itertools.product(KINDS, SIZES)], ids=str)
def test_plane_loses_little_more_than_the_best_simple_search(case):
    # On a plateau it takes many tasks to find out that nothing helps.
    plane, others = losses(case, SEEDS if case.kind != "needle" else 3)
    assert plane <= max((1 + SHARE) * others, others + PERCENT)


@pytest.mark.slow
def test_plane_loses_little_more_where_times_are_smooth_and_few_are_made():
    plane, others = losses(Case("smooth", 200, 4), 3)
    assert plane <= max((1 + SHARE) * others, others + PERCENT)
