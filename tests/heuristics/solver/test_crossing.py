"""Row thresholds where interpolated times cross, on made-up regrets."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.bins import bins, losses
from normtune.heuristics.solver.crossing import at_crossings
from normtune.heuristics.solver.optimum import Optima
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split
from normtune.kernels.target import MOST_SMS
from normtune.tests.heuristics.made_up import matrix_of

FEW, MANY = RMSNormConfig("row", 1, 8), RMSNormConfig("row", 1, 16)
TREE = Split("rows", 2048, Leaf(FEW), Leaf(MANY))
ENDS = [(1024, 128), (4096, 128)]


def made(few, many, shapes=None, untimed=None, usable=None):
    untimed = untimed and np.array(untimed)
    return matrix_of(np.transpose([few, many]), shapes or ENDS, (FEW, MANY), usable, untimed=untimed)


@pytest.mark.parametrize(
    ("below", "above", "threshold"),
    [
        (100, 100, 2048),  # at the middle, as without interpolation
        (10, 70, 1280),  # an eighth of the way, by ratio: 1024 * 4**(1/8) = 1218
        (75, 25, 3072),  # three quarters: 1024 * 4**(3/4) = 2896
        (0, 100, 1024 + 128),  # as fast at the lower size
        (100, 0, 4096),
    ],
)
def test_a_threshold_moves_to_the_crossing(legality, below: int, above: int, threshold: int) -> None:
    assert at_crossings(made([0, above], [below, 0]), legality, TREE) == TREE._replace(threshold=threshold)


def test_hidden_sizes_of_the_region_count_together_by_weight(legality) -> None:
    shapes = [(rows, hidden) for rows in (1024, 4096) for hidden in (128, 256)]
    matrix = made([0, 0, 70, 25], [10, 75, 0, 0], shapes)
    assert at_crossings(matrix, legality, TREE) == TREE
    weighted = replace(matrix, weights=np.array([8190, 2, 8190, 2]))
    assert at_crossings(weighted, legality, TREE).threshold == 1280
    apart = Split("hidden", 128, TREE, TREE)
    assert at_crossings(matrix, legality, apart) == Split(
        "hidden", 128, TREE._replace(threshold=1280), TREE._replace(threshold=3072)
    )


def test_each_hidden_size_is_interpolated_between_its_own_nearest_rows(legality) -> None:
    """The measured rows beside the threshold are 1024 and 4096; no hidden size has both."""
    shapes = [(256, 128), (1024, 256), (4096, 128), (16384, 256)]
    # Of 128, -40 at 256 rows and 40 at 4096, so 0 at 1024. Of 256, -30 at 1024 rows and 90 at 16384, so 30 at 4096.
    # Together -30 and 70, which cross at 0.3 of the gap: 1024 * 4**0.3 = 1552.
    assert at_crossings(made([0, 0, 40, 90], [40, 30, 0, 0], shapes), legality, TREE).threshold == 1536
    # A row count at which a config has no time is passed over.
    shapes, usable = [(1024, 128), (3072, 128), (4096, 128)], [[True, True], [True, False], [True, True]]
    assert at_crossings(made([0, 30, 70], [10, 0, 0], shapes, None, usable), legality, TREE).threshold == 1280


@pytest.mark.parametrize(("below", "above"), [(10, 70), (100, 100), (75, 25)])
def test_a_threshold_lies_where_a_wave_of_programs_is_full(legality, below: int, above: int) -> None:
    """132 multiprocessors hold 8 programs of 8 warps each, and 4 of 16: 1056 rows, in one and in two waves."""
    matrix = made([0, above], [below, 0], [(1024, 128), (1536, 128)])
    tree = TREE._replace(threshold=1280)
    assert at_crossings(matrix, legality, tree).threshold == 1057
    # Between 2048 and 4096 rows each has several, and a gap from 1024 to 4096 is wide.
    matrix = made([0, above], [below, 0], [(2048, 128), (4096, 128)])
    assert at_crossings(matrix, legality, TREE._replace(threshold=3072)).threshold % 132 != 1


def test_an_assumed_time_counts(legality) -> None:
    usable, untimed = [[True, False], [True, True]], [[False, True], [False, False]]
    assert at_crossings(made([0, 70], [10, 0], None, untimed, usable), legality, TREE).threshold == 1280


@pytest.mark.parametrize(
    "matrix",
    [
        made([0, 70], [10, 0], usable=[[True, False], [True, True]]),
        made([0, 70], [10, 0], [(1024, 128), (4096, 256)]),
        made([0], [10], [(1024, 128)]),
        made([0, 70], [0, 70]),
        made([70, 0], [0, 10]),
    ],
    ids=["a time lacks", "no hidden size at both ends", "beyond all sizes", "as fast", "the other way round"],
)
def test_a_threshold_of_which_nothing_is_known_stays(legality, matrix: TimingMatrix) -> None:
    assert at_crossings(matrix, legality, TREE) == TREE


def test_a_threshold_stays_where_the_lower_side_would_be_illegal(legality, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = made([0, 25], [75, 0])
    monkeypatch.setattr(Legality, "reaches", lambda self, config, shape: config == MANY or shape[0] < 3072)
    assert at_crossings(matrix, legality, TREE).threshold == 3072
    monkeypatch.setattr(Legality, "reaches", lambda self, config, shape: config == MANY or shape[0] < 3071)
    assert at_crossings(matrix, legality, TREE) == TREE


def test_all_stay_where_the_tree_would_breach_anything_else(legality, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Legality, "breaches", lambda self, tree: iter([] if tree == TREE else [tree]))
    assert at_crossings(made([0, 25], [75, 0]), legality, TREE) == TREE


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_measured_sizes_keep_their_configs(legality, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, hidden = (sorted(random.choice(2000, 5, replace=False) + 1) for _ in range(2))
    shapes = [(int(one), int(other)) for one in rows for other in hidden if random.random() < 0.8 or one == rows[0]]
    regret = random.integers(0, 300_000, (2, len(shapes)))
    matrix = made(*regret.tolist(), shapes, usable=(random.random((len(shapes), 2)) < 0.9) | [True, False])
    optima = Optima(*bins(matrix, legality), 8)
    tree = optima.tree(8)
    assert tree is not None
    moved = at_crossings(matrix, legality, tree)
    assert losses(matrix, moved) == losses(matrix, tree)
    assert not [*legality.breaches(moved)]
    assert at_crossings(matrix, legality, moved) == moved


@given(st.integers(1, 2**8), st.integers(2, 64), st.integers(1, 10**6), st.integers(1, 10**6))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
def test_the_threshold_is_near_the_crossing(legality, low: int, times: int, below: int, above: int) -> None:
    legality.target = legality.target._replace(sms=MOST_SMS)  # no wave is ever full
    high = low * times
    matrix = made([0, above], [below, 0], [(low, 128), (high, 128)])
    threshold = at_crossings(matrix, legality, TREE._replace(threshold=high)).threshold
    assert low < threshold <= high
    # 2 of 16 parts off, and 1 for rounding down to a part and to an integer
    crossing, slack = low * times ** float(Fraction(below, below + above)), times ** (3 / 16)
    assert crossing / slack - 1 <= threshold <= crossing * slack + 1
