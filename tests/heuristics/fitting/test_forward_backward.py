"""Forward and backward together: by hand, and the printed text."""

import math

import numpy as np
import pytest

from normtune.heuristics.fitting.forward_backward import OneFunction, lines, together
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.writing import report
from normtune.kernels.key import Key
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split
from normtune.results.evidence import Evidence
from normtune.results.exchange.recording import load_recording

ONE, TWO = RMSNormConfig("row", 1, 1), RMSNormConfig("row", 1, 2)


def side(operator, shapes, regrets, best, tree, dtype="bfloat16", weights=None):
    """Regrets as slowdowns, 1.5 for half as slow again; None where a config has no time."""
    regret = np.array([[0 if x is None else round(1e6 * math.log(x)) for x in row] for row in regrets], np.int64)
    usable = np.array([[x is not None for x in row] for row in regrets])
    weighed = None if weights is None else np.array(weights, np.int64)
    matrix = TimingMatrix(Key.of(operator, "", dtype), tuple(shapes), (ONE, TWO), regret, usable, weights=weighed)
    return OneFunction(matrix, np.array(best, np.int64), tree)


def slowdown(millionths):
    return math.exp(millionths / 1e6)


def never(operator, rows, hidden):
    return None


def test_each_problem_counts_by_its_time():
    shapes = [(1, 64), (4096, 64)]
    forward = side("a_forward", shapes, [[2, 1], [1, 1.5]], [1000, 9000], Leaf(ONE))
    backward = side("a_backward", shapes, [[1, 3], [1.1, 1]], [2000, 20000], Leaf(ONE))
    (found,) = together([forward, backward], lambda operator, rows, hidden: TWO)
    assert (found.name, found.dtype, found.shapes) == ("a", "bfloat16", 2)
    # (2000 + 9000 + 2000 + 22000) / 32000 and (1000 + 13500 + 6000 + 20000) / 32000
    assert slowdown(found.loss) == pytest.approx(35000 / 32000, abs=1e-5)
    assert slowdown(found.rule) == pytest.approx(40500 / 32000, abs=1e-5)


def test_a_shape_weighs_what_its_two_problems_weigh():
    shapes = [(1, 64), (4096, 64)]
    forward = side("a_forward", shapes, [[2, 1], [1, 1]], [1000, 1000], Leaf(ONE), weights=[1, 2])
    backward = side("a_backward", shapes, [[1, 1], [1, 1]], [1000, 1000], Leaf(ONE), weights=[3, 2])
    (found,) = together([forward, backward], never)
    # 4 (2000 + 1000) + 4 (1000 + 1000) over 8 x 2000
    assert slowdown(found.loss) == pytest.approx(20000 / 16000, abs=1e-5)
    assert found.rule is None


def test_only_shapes_of_both_with_a_time_count():
    tree = Split("rows", 16, Leaf(ONE), Leaf(TWO))
    forward = side("a_forward", [(1, 64), (64, 64)], [[2, 1], [1, 4]], [1000, 1000], tree)
    backward = side("a_backward", [(1, 64), (64, 64), (9, 9)], [[1, 1], [1, None], [1, 1]], [1000] * 3, tree)
    (found,) = together([forward, backward], never)
    assert found.shapes == 1
    assert slowdown(found.loss) == pytest.approx(3000 / 2000, abs=1e-5)


def test_pairs_are_of_one_name_and_dtype():
    def alone(name, dtype):
        return side(name, [(1, 64)], [[1, 1]], [1000], Leaf(ONE), dtype)

    sides = [alone("b_forward", "float32"), alone("a_backward", "bfloat16"), alone("a_forward", "float32")]
    assert together(sides, never) == []
    assert list(lines([], "Liger")) == []
    sides += [alone("b_backward", "float32"), alone("a_backward", "float32"), alone("other", "float32")]
    assert [(one.name, one.dtype) for one in together(sides, never)] == [("a", "float32"), ("b", "float32")]


@pytest.mark.slow
def test_a_fit_of_measurements_has_the_figures_of_both_dtypes():
    everything = load_recording("nvidia-h200").current()
    frame = everything.frame
    few = frame["rows"].isin([16, 1024, 32768]) & frame["hidden"].isin([256, 4096, 32768]) & (frame["variant"] == "")
    evidence = Evidence(frame[few & (frame["dtype"] != "float16")].reset_index(drop=True), everything.runs)
    fitted = fit(evidence, FitOptions(leaves=9))
    assert [(one.name, one.dtype, one.shapes) for one in fitted.together] == [
        ("rms_norm", "bfloat16", 8),
        ("rms_norm", "float32", 8),
    ]
    # As many leaves as shapes lose nothing, Liger's rule loses most where a launch takes longest.
    assert all(abs(one.loss) < 2000 and 200_000 < one.rule < 1_000_000 for one in fitted.together)
    alone = fit(evidence, FitOptions(leaves=9, operators=("rms_norm_forward",)))
    assert alone.together == ()
    printed = list(report.figures(fitted))
    assert any(line.startswith("  rms_norm float32: ") and line.endswith(" on 8 shapes") for line in printed)


def test_what_is_printed():
    forward = side("a_forward", [(1, 64)], [[1.01, 2]], [1000], Leaf(ONE))
    backward = side("a_backward", [(1, 64)], [[1.03, 2]], [1000], Leaf(ONE))
    printed = list(lines(together([forward, backward], lambda *arguments: TWO), "Liger"))
    assert printed == [
        "Loss of forward and backward of one call together (Liger: its rule):",
        "  a bfloat16: 2.00 %, Liger 100.00 %, on 1 shape",
    ]
