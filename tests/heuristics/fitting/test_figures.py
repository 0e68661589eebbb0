import numpy as np
import pytest

from normtune.heuristics.fitting.figures import Loss, of_configs, of_tree, summarise
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.rules import liger
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split

NARROW, WIDE = RMSNormConfig("row", 1, 4), RMSNormConfig("row", 1, 8)


@pytest.fixture
def matrix() -> TimingMatrix:
    regret = np.array([[0, 300], [500, 0], [900, -20]], np.int64)
    usable = np.array([[True, True], [True, False], [True, True]])
    return TimingMatrix(Key.of("toy", "", "bfloat16"), ((1, 64), (1, 2048), (8, 64)), (NARROW, WIDE), regret, usable)


def test_summary_of_ten() -> None:
    assert summarise([*range(1, 11), None]) == Loss(mean=5, plain=5, ninetieth=9, worst=10, problems=10)
    assert summarise([4]) == Loss(4, 4, 4, 4, 1)
    assert summarise([None]) is None
    assert summarise([10, 30, None], [3, 1, 7]) == Loss(mean=15, plain=20, ninetieth=30, worst=30, problems=2)
    assert summarise([10, None], [0, 7]) is None


def test_a_tree_is_scored_where_its_choice_has_a_time(matrix: TimingMatrix) -> None:
    assert of_tree(matrix, Leaf(NARROW)) == Loss(466, 466, 900, 900, 3)
    # WIDE has its largest regret, 300, at the nearest shapes with its time.
    assert of_tree(matrix, Leaf(WIDE)) == Loss(140, 140, 300, 300, 2, untimed=1, bound=(280 + 300) // 3)
    assert of_tree(matrix, Split("rows", 8, Leaf(NARROW), Leaf(WIDE))) == Loss(160, 160, 500, 500, 3)


def test_a_rule_is_scored_on_the_same_problems(matrix: TimingMatrix) -> None:
    of_shapes = [NARROW if hidden == 64 else WIDE for _, hidden in matrix.problems]
    assert of_configs(matrix, of_shapes)[:5] == (450, 450, 900, 900, 2)
    assert of_configs(matrix, [None] * len(of_shapes)) is None


@pytest.mark.parametrize(
    ("rows", "hidden", "forward", "backward"),
    [
        (32767, 256, RMSNormConfig("row", 1, 4), RMSNormConfig("persistent", 1, 4, 1, 1, "reduce")),
        (32768, 256, RMSNormConfig("block_row", 16, 4), RMSNormConfig("persistent", 16, 4, 1, 1, "reduce")),
        (32768, 257, RMSNormConfig("row", 1, 4), RMSNormConfig("persistent", 1, 4, 1, 1, "reduce")),
        (1, 1025, RMSNormConfig("row", 1, 8), RMSNormConfig("persistent", 1, 8, 1, 1, "reduce")),
        (1, 8192, RMSNormConfig("row", 1, 16), RMSNormConfig("persistent", 1, 16, 1, 1, "reduce")),
        (1, 65536, RMSNormConfig("row", 1, 32), RMSNormConfig("persistent", 1, 32, 1, 1, "reduce")),
    ],
)
def test_ligers_rule(rows: int, hidden: int, forward: Config, backward: Config) -> None:
    assert liger.choose("rms_norm_forward", rows, hidden) == forward
    assert liger.choose("rms_norm_backward", rows, hidden) == backward


def test_ligers_rule_has_no_answer_for_longer_rows_and_other_operators() -> None:
    assert liger.choose("rms_norm_forward", 1, 65537) is None
    assert liger.choose("toy", 1, 64) is None
