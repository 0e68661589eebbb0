"""A measured check on made-up times: a fresh table passes, a stale one is found, a failure is reported."""

import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from normtune.kernels.box import Box
from normtune.kernels.config import COPY, Config
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile.tree import Leaf, Split, Tree
from normtune.kernels.target import TARGETS
from normtune.tuner.checking.session import MOST_SHAPES, CheckSession, ProbeRequest
from normtune.tuner.checking.subject import Checked, Promise
from normtune.tuner.checking.verdict import LEAST_SHAPES, OK, STALE, UNMEASURED, Judgement

TARGET = TARGETS["sm_90"]
BOX = Box.of(rows=(1, 65536), hidden=(64, 4096))
# What is fastest by the law of `evidence`: blocks of rows for many short ones, few warps for short rows, else many.
BLOCKS, FEW, MANY = RMSNormConfig("block_row", 4, 4), RMSNormConfig("row", 1, 4), RMSNormConfig("row", 1, 16)
FRESH = Split("hidden", 512, Split("rows", 4096, Leaf(FEW), Leaf(BLOCKS)), Leaf(MANY))
MOVED = Split("hidden", 2048, Split("rows", 16384, Leaf(FEW), Leaf(BLOCKS)), Leaf(MANY))

Law = Callable[[RMSNormConfig, Problem], float]


class Answer(NamedTuple):
    """An answer of the tuner, as a session sees it."""

    status: str
    reason: str = ""
    rounds: tuple[int, ...] = ()
    nanoseconds: tuple[int, ...] = ()


PROMISE = Promise(5000, 100_000, "cross-validated")


def checked(tree: Tree, dtype: str = "bfloat16", key: str = "toy") -> Checked:
    return Checked(Key.parse(key, dtype), tree, (Key.parse(key, dtype),), PROMISE)


def session(*functions: Checked, seed: int = 0, known: set[tuple[int, int]] | None = None) -> CheckSession:
    return CheckSession(functions, BOX, TARGET, seed, [known] * len(functions))


def measured(law: Law, probe: ProbeRequest, draw: random.Random) -> dict[Config, Answer]:
    """Times by a law, with a noise of 2 % that all configs share and one of 0.3 % of each."""
    rounds = tuple(range(16))
    of_round = [draw.gauss(1, 0.02) for _ in rounds]
    found = {COPY: Answer("ok", "", rounds, (500,) * 16)}
    for config in (probe.config, *probe.rivals):
        base = 1e6 * (1 + law(config, probe.problem))
        found[config] = Answer("ok", "", rounds, tuple(int(base * r * draw.gauss(1, 0.003)) for r in of_round))
    return found


def carried_out(asked: CheckSession, law: Law, seed: int = 0) -> int:
    """Answer what a session asks as long as it wants to know; how many answers it took."""
    draw = random.Random(seed)
    count = 0
    for probe in asked.probes:
        if asked.wants(probe):
            asked.learn(probe, probe.config, measured(law, probe, draw))
            count += 1
    return count


def judgements(asked: CheckSession) -> list[Judgement]:
    return [found for _, found in asked.judged()]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(5))
def test_a_fresh_function_is_ok_after_all_shapes(spec: OperatorSpec, penalty: Law, seed: int) -> None:
    asked = session(checked(FRESH), seed=seed)
    assert carried_out(asked, penalty, seed) == MOST_SHAPES
    (found,) = judgements(asked)
    assert (found.verdict, len(found.findings)) == (OK, MOST_SHAPES)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(5))
def test_moved_thresholds_are_not_ok_and_the_worst_shape_says_what_is_better(
    spec: OperatorSpec, penalty: Law, seed: int
) -> None:
    asked = session(checked(MOVED), seed=seed)
    carried_out(asked, penalty, seed)
    (found,) = judgements(asked)
    assert found.verdict != OK
    worst = found.findings[0]
    assert worst.rival != worst.config
    assert penalty(worst.config, Problem.of("toy", *worst.shape, "bfloat16")) > 0.1
    assert worst.low <= worst.loss <= worst.high


def test_plain_functions_take_turns_before_the_others_one_by_one(spec: OperatorSpec, penalty: Law) -> None:
    functions = (
        checked(FRESH, "float32", "toy:batch_invariant"),
        checked(FRESH, "float16", "toy:light"),
        checked(FRESH),
        checked(MOVED, "float16"),
    )
    asked = session(*functions)
    order = [probe.function for probe in asked.probes if not probe.is_second_look]
    assert order == [2, 3] * MOST_SHAPES + [1] * MOST_SHAPES + [0] * MOST_SHAPES


@pytest.mark.slow
def test_a_stale_function_is_asked_no_more_and_the_others_are(spec: OperatorSpec, penalty: Law) -> None:
    asked = session(checked(FRESH), checked(MOVED, "float16"))
    probe = next(one for one in asked.probes if one.function == 1)
    asked.learn(probe, probe.config, {probe.config: Answer("wrong_result", "y is off by 3")})
    assert {probe.function for probe in asked.probes if asked.wants(probe)} == {0}
    carried_out(asked, penalty)
    assert [found.verdict for found in judgements(asked)] == [OK, STALE]


def test_a_leaf_is_looked_at_again_where_its_only_shape_is_an_alarm(spec: OperatorSpec, penalty: Law) -> None:
    """A narrow leaf, in which its config takes four times as long."""
    slow = RMSNormConfig("row", 1, 8)
    asked = session(checked(Split("hidden", 72, Leaf(slow), FRESH)))
    looks = [probe for probe in asked.probes if probe.is_second_look and probe.config == slow]
    assert [asked.wants(probe) for probe in looks] == [False]
    law: Law = lambda config, problem: 3.0 if config == slow else penalty(config, problem)  # noqa: E731
    draw = random.Random(0)
    for probe in asked.probes:
        if asked.wants(probe):
            asked.learn(probe, probe.config, measured(law, probe, draw))
    (found,) = judgements(asked)
    assert [one.is_second_look for one in found.findings if one.config == slow] == [False, True]
    assert (found.verdict, found.why) == (STALE, f"{slow} loses more than the worst of the grid and 15 %")


def test_a_config_that_fails_makes_its_function_stale_at_once(spec: OperatorSpec, penalty: Law) -> None:
    asked = session(checked(FRESH))
    probe = asked.probes[0]
    answers = measured(penalty, probe, random.Random(0))
    answers[probe.config] = Answer("wrong_result", "y is off by 3")
    asked.learn(probe, probe.config, answers)
    (found,) = judgements(asked)
    assert found.verdict == STALE
    assert found.findings[0].failure == "wrong_result: y is off by 3"
    assert not asked.wants(asked.probes[1])


def test_a_rival_that_fails_says_nothing(spec: OperatorSpec, penalty: Law) -> None:
    asked = session(checked(FRESH))
    for probe in asked.probes[:LEAST_SHAPES]:
        answers: Mapping[Config, Answer] = {
            config: answer if config == probe.config or config == COPY else Answer("timeout", "no answer")
            for config, answer in measured(penalty, probe, random.Random(0)).items()
        }
        asked.learn(probe, probe.config, answers)
    (found,) = judgements(asked)
    assert [one.loss for one in found.findings] == [0] * LEAST_SHAPES


def test_what_was_not_recorded_is_left_out(spec: OperatorSpec, penalty: Law) -> None:
    asked = session(checked(FRESH))
    for probe in asked.probes:
        answers = measured(penalty, probe, random.Random(0)) | {probe.config: Answer("not_recorded", "not there")}
        asked.learn(probe, probe.config, answers)
    (found,) = judgements(asked)
    assert (found.verdict, found.findings) == (UNMEASURED, ())


def test_a_shape_at_which_no_rival_was_recorded_is_left_out(spec: OperatorSpec, penalty: Law) -> None:
    """Else a replay that has times of the table's configs alone would call any table OK."""
    asked = session(checked(FRESH))
    for probe in asked.probes:
        answers = measured(penalty, probe, random.Random(0))
        unknown = {rival: Answer("not_recorded", "not there") for rival in probe.rivals}
        asked.learn(probe, probe.config, answers | unknown)
    (found,) = judgements(asked)
    assert (found.verdict, found.findings) == (UNMEASURED, ())
    probe = asked.probes[0]
    asked.learn(probe, probe.config, {probe.config: measured(penalty, probe, random.Random(0))[probe.config]})
    assert [one.loss for one in judgements(asked)[0].findings] == [0]  # nothing else is legal there


def test_a_config_that_is_illegal_on_the_device_is_told_without_measuring(spec: OperatorSpec) -> None:
    asked = session(checked(Leaf(RMSNormConfig("row", 1, 1))))  # a warp holds 2048 elements
    (found,) = judgements(asked)
    assert found.verdict == STALE
    assert found.findings[0].failure == "illegal: too many elements a thread"
    assert all(probe.problem.hidden <= 2048 for probe in asked.probes)


def test_an_equal_launch_is_told_under_the_name_of_the_tables_config(spec: OperatorSpec, penalty: Law) -> None:
    asked = session(checked(FRESH))
    probe = asked.probes[0]
    twin = RMSNormConfig("row", 1, 2)
    answers = measured(penalty, probe, random.Random(0))
    answers[twin] = answers.pop(probe.config)
    asked.learn(probe, twin, answers)
    (found,) = judgements(asked)
    assert found.findings[0].config == probe.config


def test_only_known_shapes_are_asked(spec: OperatorSpec) -> None:
    known = {(rows, hidden) for rows in (1, 8, 64) for hidden in (64, 128)}
    asked = session(checked(FRESH), known=known)
    assert {probe.problem.shape for probe in asked.probes} == known
