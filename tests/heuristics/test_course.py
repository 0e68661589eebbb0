"""The course of a measured check, on made-up times: a fresh table passes, a stale one is found, a failure is told."""

import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from normtune.heuristics.course import MOST_SHAPES, Course, Question
from normtune.heuristics.suspect import Box, Checked
from normtune.heuristics.tree import Leaf, Split, Tree
from normtune.heuristics.verdict import AMBIGUOUS, LEAST_SHAPES, OK, STALE
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.target import TARGETS
from normtune.results.records import COPY

TARGET = TARGETS["sm_90"]
BOX = Box(1, 65536, 64, 4096)
# What is fastest by the law of `evidence`: blocks of rows for many short ones, few warps for short rows, else many.
BLOCKS, FEW, MANY = Config("block_row", 4, 4), Config("row", 1, 4), Config("row", 1, 16)
FRESH = Split("hidden", 512, Split("rows", 4096, Leaf(FEW), Leaf(BLOCKS)), Leaf(MANY))
MOVED = Split("hidden", 2048, Split("rows", 16384, Leaf(FEW), Leaf(BLOCKS)), Leaf(MANY))

Law = Callable[[Config, Problem], float]


class Answer(NamedTuple):
    """An answer of the tuner, as a course sees it."""

    status: str
    reason: str = ""
    rounds: tuple[int, ...] = ()
    nanoseconds: tuple[int, ...] = ()


def checked(tree: Tree, dtype: str = "bfloat16", promised: int = 0) -> Checked:
    return Checked("toy", dtype, "toy", "", tree, (("toy", dtype),), promised)


def course(*functions: Checked, seed: int = 0, known: set[tuple[int, int]] | None = None) -> Course:
    return Course(functions, BOX, TARGET, seed, 1 << 28, lambda one: known)


def measured(law: Law, question: Question, draw: random.Random) -> dict[Config, Answer]:
    """Times by a law, with a noise of 2 % that all configs share and one of 0.3 % of each."""
    rounds = tuple(range(16))
    of_round = [draw.gauss(1, 0.02) for _ in rounds]
    found = {COPY: Answer("ok", "", rounds, (500,) * 16)}
    for config in (question.config, *question.rivals):
        base = 1e6 * (1 + law(config, question.problem))
        found[config] = Answer("ok", "", rounds, tuple(int(base * r * draw.gauss(1, 0.003)) for r in of_round))
    return found


def carried_out(asked: Course, law: Law, seed: int = 0) -> int:
    """Answer what a course asks as long as it wants to know; how many answers it took."""
    draw = random.Random(seed)
    count = 0
    for question in asked.questions:
        if asked.wants(question):
            asked.learn(question, question.config, measured(law, question, draw))
            count += 1
    return count


@pytest.mark.parametrize("seed", range(5))
def test_a_fresh_function_is_ok_after_few_shapes(spec: OperatorSpec, penalty: Law, seed: int) -> None:
    asked = course(checked(FRESH, promised=5000), seed=seed)
    assert LEAST_SHAPES <= carried_out(asked, penalty, seed) < MOST_SHAPES
    (found,) = asked.judgements()
    assert (found.verdict, found.confidence > 0.95) == (OK, True)


@pytest.mark.parametrize("seed", range(5))
def test_moved_thresholds_are_stale_and_the_worst_shape_says_what_is_better(
    spec: OperatorSpec, penalty: Law, seed: int
) -> None:
    asked = course(checked(MOVED, promised=5000), seed=seed)
    carried_out(asked, penalty, seed)
    (found,) = asked.judgements()
    assert (found.verdict, found.confidence > 0.99) == (STALE, True)
    worst = found.findings[0]
    assert worst.rival != worst.config
    assert penalty(worst.config, Problem("toy", worst.rows, worst.hidden, "bfloat16")) > 0.1
    assert worst.low <= worst.loss <= worst.high


def test_functions_take_turns_and_a_decided_one_is_asked_no_more(spec: OperatorSpec, penalty: Law) -> None:
    asked = course(checked(FRESH, promised=5000), checked(MOVED, "float16"))
    assert [question.function for question in asked.questions[:6]] == [0, 1, 0, 1, 0, 1]
    assert {question.problem.dtype for question in asked.questions} == {"bfloat16", "float16"}
    carried_out(asked, penalty)
    assert [found.verdict for found in asked.judgements()] == [OK, STALE]
    assert not any(map(asked.wants, asked.questions))


def test_a_config_that_fails_makes_its_function_stale_at_once(spec: OperatorSpec, penalty: Law) -> None:
    asked = course(checked(FRESH))
    question = asked.questions[0]
    answers = measured(penalty, question, random.Random(0))
    answers[question.config] = Answer("wrong_result", "y is off by 3")
    asked.learn(question, question.config, answers)
    (found,) = asked.judgements()
    assert (found.verdict, found.confidence) == (STALE, 1.0)
    assert found.findings[0].failure == "wrong_result: y is off by 3"
    assert not asked.wants(asked.questions[1])


def test_what_is_decided_stays_unless_a_config_fails(spec: OperatorSpec, penalty: Law) -> None:
    asked = course(checked(FRESH, promised=5000))
    count = carried_out(asked, penalty)
    decided = asked.judgements()
    left = asked.questions[count]
    answers = measured(lambda config, _: float(config == left.config), left, random.Random(0))
    asked.learn(left, left.config, answers)  # asked for by another function, say
    assert asked.judgements() == decided
    answers[left.config] = Answer("wrong_result", "y is off by 3")
    asked.learn(left, left.config, answers)
    assert asked.judgements()[0].verdict == STALE


def test_a_rival_that_fails_says_nothing(spec: OperatorSpec, penalty: Law) -> None:
    asked = course(checked(FRESH))
    for question in asked.questions[:LEAST_SHAPES]:
        answers: Mapping[Config, Answer] = {
            config: answer if config == question.config or config == COPY else Answer("timeout", "no answer")
            for config, answer in measured(penalty, question, random.Random(0)).items()
        }
        asked.learn(question, question.config, answers)
    (found,) = asked.judgements()
    assert [one.loss for one in found.findings] == [0] * LEAST_SHAPES


def test_what_was_not_recorded_is_left_out(spec: OperatorSpec, penalty: Law) -> None:
    asked = course(checked(FRESH))
    for question in asked.questions:
        answers = measured(penalty, question, random.Random(0)) | {question.config: Answer("not_recorded", "not there")}
        asked.learn(question, question.config, answers)
    (found,) = asked.judgements()
    assert (found.verdict, found.findings) == (AMBIGUOUS, ())


def test_a_config_that_is_illegal_on_the_device_is_told_without_measuring(spec: OperatorSpec) -> None:
    asked = course(checked(Leaf(Config("row", 1, 1))))  # a warp holds 2048 elements
    (found,) = asked.judgements()
    assert found.verdict == STALE
    assert found.findings[0].failure == "illegal: too many elements a thread"
    assert all(question.problem.hidden <= 2048 for question in asked.questions)


def test_an_equal_launch_is_told_under_the_name_of_the_tables_config(spec: OperatorSpec, penalty: Law) -> None:
    asked = course(checked(FRESH))
    question = asked.questions[0]
    twin = Config("row", 1, 2)
    answers = measured(penalty, question, random.Random(0))
    answers[twin] = answers.pop(question.config)
    asked.learn(question, twin, answers)
    (found,) = asked.judgements()
    assert found.findings[0].config == question.config


def test_only_known_shapes_are_asked(spec: OperatorSpec) -> None:
    known = {(rows, hidden) for rows in (1, 8, 64) for hidden in (64, 128)}
    asked = course(checked(FRESH), known=known)
    assert {(question.problem.rows, question.problem.hidden) for question in asked.questions} == known
