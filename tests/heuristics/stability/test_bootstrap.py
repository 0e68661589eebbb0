"""Matrices of resampled blocks: all blocks give the matrix itself; halves and draws by hand."""

import numpy as np
import pytest

from normtune.heuristics.regret.matrix import MISSING, TimingMatrix, timing_matrix
from normtune.heuristics.regret.paired import block_ratios
from normtune.heuristics.stability.bootstrap import Blocks
from normtune.kernels.key import Key
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.results.exchange.recording import load_recording
from normtune.tests.heuristics.made_up import rounds_of

ONE, TWO, THREE = (RMSNormConfig("row", 1, warps) for warps in (1, 2, 4))


def matrix(*blocks, short=()):
    """One problem; of each block the logs of two rounds of each config; `short` are configs of the first block only."""
    logs = np.array(blocks, np.int32).transpose(1, 0, 2).reshape(len(blocks[0]), -1)
    for config in short:
        logs[config, 2:] = MISSING
    labels = np.arange(logs.shape[1], dtype=np.int32)[None]
    usable = np.ones((1, len(logs)), np.bool_)
    regret = np.zeros(usable.shape, np.int64)
    configs = (ONE, TWO, THREE)[: len(logs)]
    return TimingMatrix(
        Key.of("toy", "", "bfloat16"), ((64, 64),), configs, regret, usable, rounds_of(labels, logs[None])
    )


def taken(found, *places):
    return Blocks(found).taken(np.array([places]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recording", "name", "dtype"),
    [
        ("nvidia-h200-qk-norm", "qk_norm.heads_q=32.heads_k=8.heads=48.rotary_dim=128", "bfloat16"),
    ],
)
def test_all_blocks_in_their_order_give_the_matrix_of_the_measurements(recording, name, dtype):
    # Of the others, configs were timed in up to eight runs, in blocks that the runs do not share.
    key = Key.parse(name, dtype)
    evidence = load_recording(recording).current()
    found = timing_matrix(evidence, operator(key.operator), key, TARGETS["sm_90"])
    blocks = np.arange(found.rounds.labels.shape[1] // 2)  # of two rounds each, in up to three runs
    again = Blocks(found).taken(np.tile(blocks, (len(found.problems), 1)))
    assert np.array_equal(again.usable, found.usable)
    assert np.array_equal(again.regret, found.regret)
    assert np.array_equal(again.rounds.logs, found.rounds.logs)
    assert np.array_equal(again.rounds.labels >= 0, found.rounds.labels >= 0)  # blocks of a second run are renumbered
    assert int(found.regret.max()) > 100_000


def test_the_best_of_one_half_is_scored_on_the_other():
    # Config 0 is better by 10 in the first block, and worse by 4 in the second.
    found = matrix([[0, 0], [10, 10]], [[4, 4], [0, 0]])
    # (4 - 4 + 0 - 10) / 2 and (0 - 4 + 10 - 10) / 2: the first half prefers config 0, the second one config 1.
    assert taken(found, 0, 1).regret.tolist() == [[-5, -2]]
    assert taken(found, 0, 0).regret.tolist() == [[0, 10]]
    assert taken(found, 1, 1).regret.tolist() == [[4, 0]]


def test_halves_are_every_other_block():
    found = matrix([[0, 0], [10, 10]], [[4, 4], [0, 0]], [[0, 2], [20, 20]], [[6, 6], [0, 0]])
    first, second = (Blocks(found).of_half(half) for half in (0, 1))
    assert first.regret.tolist() == [[0, (10 + 20 - 1) // 2]]
    assert second.regret.tolist() == [[5, 0]]
    assert first.rounds.of(0, 0).tolist() == [0, 0, 0, 2]
    assert block_ratios(first.rounds, 0, 1, 0).tolist() == [10.0, 19.0]


def test_a_config_that_was_dropped_has_the_level_of_the_half_that_it_was_in():
    found = matrix([[0, 0], [10, 12]], [[0, 0], [99, 99]], [[0, 0], [99, 99]], short=[1])
    assert taken(found, 0, 2).regret.tolist() == [[0, 11]]
    none = taken(found, 1, 2)
    assert none.usable.tolist() == [[True, False]]
    assert none.regret.tolist() == [[0, 0]]


def test_a_draw_keeps_the_regret_of_a_config_of_which_no_round_was_drawn():
    found = matrix([[0, 0], [10, 12]], *([[[0, 0], [99, 99]]] * 5), short=[1])
    found.regret[0] = 0, 77
    regrets = {int(Blocks(found).drawn(np.random.default_rng(seed)).regret[0, 1]) for seed in range(20)}
    assert regrets == {11, 77}


def test_draws_scatter_as_blocks_do():
    """The variance of a mean level is near that of the blocks, by their number."""
    draw = np.random.default_rng(1)
    luck = draw.normal(0, 1000, 16).astype(int)
    found = matrix(*([[0, 0], [int(one) + 50_000] * 2] for one in luck))
    blocks = Blocks(found)
    regrets = [int(blocks.drawn(draw).regret[0, 1]) for _ in range(400)]
    # Medians of halves scatter more than means do: by pi / 2 for many normal values.
    expected = luck.std() / 4
    assert 0.8 * expected < np.std(regrets) < 1.6 * expected
    assert np.mean(regrets) == pytest.approx(50_000 + np.median(luck), abs=2 * expected)


def test_a_matrix_without_rounds_has_no_blocks():
    found = TimingMatrix(
        Key.of("toy", "", "bfloat16"), ((1, 1),), (ONE,), np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    )
    with pytest.raises(ValueError, match="no blocks"):
        Blocks(found)
