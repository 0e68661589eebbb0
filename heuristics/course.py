"""The course of a measured check: what to ask about a table, and what the answers say so far.

In: the functions of a table, the target and the shapes that can be measured; then, shape by shape, what came of its
race. Out: questions, and the `Judgement` of each function at any time. Pure; measuring is left to the tuner, and which
shapes are asked and when they suffice to `probes` and `verdict`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple, Protocol

import numpy as np

from normtune.heuristics.levels import Samples
from normtune.heuristics.micrologs import micrologs
from normtune.heuristics.probes import probes, rivals
from normtune.heuristics.suspect import Box, Checked
from normtune.heuristics.tree import choose
from normtune.heuristics.verdict import AMBIGUOUS, Finding, Judgement, finding, judge
from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError, operator
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.records import COPY

# Shapes a function, at most: of 32 fits of 6 to 32 leaves to half of the recorded shapes each is called OK within them
# in 99 of 100 checks, and after 40 in 95 of 100.
MOST_SHAPES = 48
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
    """

    function: int
    problem: Problem
    config: Config
    rivals: tuple[Config, ...]


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
        questions: in the order in which they are worth most; functions in turn.
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
        # It is asked before each race for each question that is left, and changes with a finding only.
        self._judgements: dict[int, Judgement] = {}
        streams = [
            self._questions(place, target, list(islice(probes(one, box, seed, most_elements, known(one)), MOST_SHAPES)))
            for place, one in enumerate(functions)
        ]
        self.questions = tuple(one for turn in zip_longest(*streams) for one in turn if one)

    def wants(self, question: Question) -> bool:
        """Whether the answer may still change something: its function is not decided."""
        return self.judgement(question.function).verdict == AMBIGUOUS

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
        elif own.status == "ok" and self.wants(question):  # what is decided stays: bets hold at the first that wins
            samples = {
                config: Samples(
                    np.asarray(answer.rounds, np.int32), micrologs(np.asarray(answer.nanoseconds, np.int64))
                )
                for config, answer in answers.items()
                if answer.status == "ok" and config != COPY
            }
            found = finding(shape, samples, asked)
            if found:
                self._add(question, found._replace(config=question.config))

    def judgement(self, function: int) -> Judgement:
        """What is known of the function at that place."""
        if function not in self._judgements:
            one = self.functions[function]
            self._judgements[function] = judge(self._findings[function], one.promised, len(self.functions))
        return self._judgements[function]

    def judgements(self) -> list[Judgement]:
        """What is known of each function."""
        return [self.judgement(place) for place in range(len(self.functions))]

    def _questions(self, place: int, target: Target, shapes: Sequence[tuple[int, int]]) -> list[Question]:
        """The questions of a function; a config that is illegal at a shape has answered already."""
        one = self.functions[place]
        spec = operator(one.operator)
        found = []
        for rows, hidden in shapes:
            problem = Problem(one.operator, rows, hidden, one.dtype, one.variant)
            config = choose(one.tree, rows, hidden)
            question = Question(place, problem, config, tuple(rivals(one.tree, spec, problem, target)))
            try:
                spec.resolve(config, problem, target, None)
            except IllegalConfigError as error:
                self._fail(question, f"illegal: {error}")
            else:
                found.append(question)
        return found

    def _fail(self, question: Question, reason: str) -> None:
        problem, config = question.problem, question.config
        self._add(question, Finding(problem.rows, problem.hidden, config, config, 0, 0, 0, " ".join(reason.split())))

    def _add(self, question: Question, found: Finding) -> None:
        self._findings[question.function].append(found)
        self._judgements.pop(question.function, None)
