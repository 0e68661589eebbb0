"""The course of a measured check: what to ask about a table, and what the answers say so far.

In: the functions of a table, the target and the shapes that can be measured; then, shape by shape, what came of its
race. Out: questions, and the `Judgement` of each function. Pure; measuring is left to the tuner, and which
shapes are asked and when they suffice to `shapes` and `verdict`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple, Protocol

import numpy as np

from normtune.heuristics.checking.shapes import Sample, population, rivals, sample
from normtune.heuristics.checking.subject import Checked
from normtune.heuristics.checking.verdict import Finding, Judgement, alarming, doubtful, finding, judge
from normtune.heuristics.regret.effects import Samples
from normtune.heuristics.regret.fixed_log import micrologs
from normtune.heuristics.tablefile.tree import Box, choose
from normtune.kernels.config import COPY, Config
from normtune.kernels.operator import IllegalConfigError, operator
from normtune.kernels.problem import Problem, split_batch_invariant
from normtune.kernels.target import Target

# Shapes a function, second looks left out, and leaves that matter beyond so many: five functions within 60 s on a GPU
# that takes 0.25 s for a race.
MOST_SHAPES = 40
# A status that says nothing of the config.
_UNKNOWN = "not_recorded"


class Answer(Protocol):
    """What came of one config: see `results.records.Measurement`."""

    @property
    def status(self) -> str:
        """One of `STATUSES`."""
        ...

    @property
    def reason(self) -> str:
        """Why it is not `ok`."""
        ...

    @property
    def rounds(self) -> Sequence[int]:
        """Numbers of the rounds."""
        ...

    @property
    def nanoseconds(self) -> Sequence[int]:
        """Times, one a round."""
        ...


class Question(NamedTuple):
    """A race that tells something of one function.

    Attributes:
        function: its place among the functions.
        problem: the shape.
        config: the table's.
        rivals: the others.
        leaf: the number of the leaf that answers.
        is_second_look: wanted only where the leaf's one shape is an alarm.
    """

    function: int
    problem: Problem
    config: Config
    rivals: tuple[Config, ...]
    leaf: int
    is_second_look: bool


class Course:
    """A measured check of one table.

    Args:
        functions: that are checked.
        box: that the table was measured on.
        target: the device's.
        seed: other seeds ask other shapes.
        most_elements: rows x hidden of the largest shape.
        known: the only shapes of a function that can be measured; None for all.

    Attributes:
        functions: as given.
        questions: in the order in which they are worth most: plain functions in turn, then one after the other those
            of variants, then batch-invariant ones.
    """

    def __init__(
        self,
        functions: Sequence[Checked],
        box: Box,
        target: Target,
        seed: int,
        most_elements: int,
        known: Callable[[Checked], Collection[tuple[int, int]] | None],
    ) -> None:
        self.functions = tuple(functions)
        self._findings: list[list[Finding]] = [[] for _ in functions]
        self._alarmed: set[int] = set()
        self._doubtful: list[set[int]] = [set() for _ in functions]
        self._samples = [self._sample(one, box, seed, most_elements, known(one)) for one in functions]
        order = sorted(range(len(functions)), key=lambda place: _worth(functions[place]))
        plain = [place for place in order if functions[place].is_plain]
        groups = [plain, *([place] for place in order if place not in plain)]
        self.questions = tuple(chain.from_iterable(self._of_group(group, target) for group in groups))

    def wants(self, question: Question) -> bool:
        """Whether the answer may still change something: nothing has made its function stale."""
        function = question.function
        return function not in self._alarmed and (
            not question.is_second_look or question.leaf in self._doubtful[function]
        )

    def learn(self, question: Question, asked: Config, answers: Mapping[Config, Answer]) -> None:
        """Hear what came of a race.

        Args:
            question: the race.
            asked: the config that was timed as the table's: of equal launches one is enough.
            answers: of all configs that took part; the copy may be among them.
        """
        shape = question.problem.rows, question.problem.hidden
        own = answers[asked]
        if own.status not in ("ok", _UNKNOWN):
            self._fail(question, f"{own.status}: {own.reason}")
        elif own.status == "ok":
            samples = {
                config: Samples(
                    np.asarray(answer.rounds, np.int32), micrologs(np.asarray(answer.nanoseconds, np.int64))
                )
                for config, answer in answers.items()
                if answer.status == "ok" and config != COPY
            }
            found = finding(shape, samples, asked)
            if found:
                self._add(question, found)

    def judged(self) -> list[tuple[Checked, Judgement]]:
        """The functions, and what is known of each; asked once, when no more is measured."""
        return [
            (one, judge(found, one.promise, drawn.shares, len(self.functions)))
            for one, drawn, found in zip(self.functions, self._samples, self._findings, strict=True)
        ]

    def _sample(
        self, one: Checked, box: Box, seed: int, most_elements: int, known: Collection[tuple[int, int]] | None
    ) -> Sample:
        shapes = population(box, seed, most_elements, known)
        return sample(one.tree, shapes, MOST_SHAPES, f"{seed} {one.key} {one.dtype}")

    def _of_group(self, group: Sequence[int], target: Target) -> Iterator[Question]:
        """The questions of some functions in turn, and then their second looks."""
        for is_second_look in (False, True):
            streams = [self._questions(place, target, is_second_look) for place in group]
            yield from (one for turn in zip_longest(*streams) for one in turn if one)

    def _questions(self, place: int, target: Target, is_second_look: bool) -> list[Question]:
        """The questions of a function; a config that is illegal at a shape has answered already."""
        one, drawn = self.functions[place], self._samples[place]
        spec = operator(one.operator)
        others = [other.tree for other in self.functions if other.operator == one.operator and other is not one]
        found = []
        for rows, hidden, leaf in drawn.reserve if is_second_look else drawn.probes:
            problem = Problem(one.operator, rows, hidden, one.dtype, one.variant)
            config = choose(one.tree, rows, hidden)
            question = Question(
                place, problem, config, tuple(rivals(one.tree, spec, problem, target, others)), leaf, is_second_look
            )
            try:
                spec.launch(config, problem, target)
            except IllegalConfigError as error:
                self._fail(question, f"illegal: {error}")
            else:
                found.append(question)
        return found

    def _fail(self, question: Question, reason: str) -> None:
        problem, config = question.problem, question.config
        found = Finding(problem.rows, problem.hidden, config, config, 0, 0, 0, " ".join(reason.split()))
        self._add(question, found)

    def _add(self, question: Question, found: Finding) -> None:
        function = question.function
        known, promise = self._findings[function], self.functions[function].promise
        known.append(found._replace(config=question.config, leaf=question.leaf, is_second_look=question.is_second_look))
        self._doubtful[function] = doubtful(known, promise)
        if alarming(known, promise):
            self._alarmed.add(function)


def _worth(one: Checked) -> tuple[bool, bool]:
    """Orders functions: plain ones, those of variants, batch-invariant ones."""
    return split_batch_invariant(one.key)[1], bool(one.variant)
