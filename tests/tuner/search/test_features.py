"""Codes of configs, and moves among them, against every pair."""

import itertools
from typing import Annotated

import numpy as np

from normtune.kernels.config import Config, Implementation
from normtune.tuner.search.plane.features import Configs


class Block(Config):
    order: Annotated[str, "order."]
    width: Annotated[int, "columns."]
    step: Annotated[int, "signed."]
    same: Annotated[int, "one value."] = 3


BLOCKS = [
    Block(order, width, step)
    for order, width, step in itertools.product(("a", "b", "c"), (1, 2, 4, 64), (-8, -1, 0, 7))
    if not (order == "b" and width == 2)
]
MIXED = Configs([*BLOCKS, Implementation("torch"), Implementation("other")])


def knobs_apart(one, other):
    left, right = one._asdict(), other._asdict()
    return sum(left.get(knob) != right.get(knob) for knob in left.keys() | right.keys())


def test_configs_are_numbered_in_order_and_have_distinct_codes():
    assert MIXED.all == sorted(MIXED.all) and len(MIXED.all) == len(BLOCKS) + 2
    assert all(MIXED.all[MIXED.number[config]] == config for config in MIXED.all)
    assert len({tuple(row) for row in MIXED.codes.tolist()}) == len(MIXED.all)
    blocks = Configs(BLOCKS)
    assert blocks.codes.shape == (len(BLOCKS), 3)  # one knob has one value


def test_distances_are_shares_of_the_range_in_octaves():
    order, step, width = Configs(BLOCKS).distances
    assert np.array_equal(order, 1 - np.eye(3))
    logs = np.log2(np.array([2, 3, 5, 65]))
    assert np.allclose(width, abs(logs[:, None] - logs) / (logs[-1] - logs[0]))
    assert np.allclose(step[0], np.array([0, np.log2(9) - 1, np.log2(9), np.log2(9) + 3]) / (np.log2(9) + 3))


def test_near_configs_are_those_with_one_different_knob_and_some_with_two_if_these_are_few():
    for number, config in enumerate(MIXED.all):
        apart = np.array([knobs_apart(config, other) for other in MIXED.all])
        one = {*np.flatnonzero(apart == 1).tolist()}
        assert {*MIXED.near(number, 0).tolist()} == one
        more = MIXED.near(number, 20).tolist()
        assert one <= {*more} and {*apart[more].tolist()} <= {1, 2}
        assert len(more) == len({*more}) == max(len(one), min(20, int((apart <= 2).sum()) - 1))


def test_children_have_their_parents_values_but_for_one_knob():
    configs = Configs(BLOCKS)
    parents = [configs.number[Block("a", 1, -8)], configs.number[Block("b", 64, 7)]]
    found = configs.children(np.array(parents), 400, np.random.default_rng(0))
    assert len(found) == len({*found.tolist()}) and len(found) > 20
    strange = []
    for number in found.tolist():
        child = configs.all[number]
        pairs = zip(*(configs.all[parent] for parent in parents), strict=True)
        strange.append(sum(value not in pair for value, pair in zip(child, pairs, strict=True)))
    assert {*strange} == {0, 1}
    again = configs.children(np.array(parents), 400, np.random.default_rng(0))
    assert np.array_equal(found, again)
