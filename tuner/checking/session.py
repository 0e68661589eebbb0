"""A measured check: the races to run, and the judgement so far.

In: the functions of a table, the target and the measurable shapes; then, shape by shape, the result of its race. Out:
probes, and the `Judgement` of each function. Pure: the tuner measures, `shapes` chooses shapes, `verdict` decides
when they suffice.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np

from normtune.heuristics.regret.effects import LogSamples
from normtune.heuristics.regret.fixed_log import log_ppm
from normtune.kernels.config import COPY, Config
from normtune.kernels.operator import IllegalConfigError, operator
from normtune.kernels.problem import Problem, Shape
from normtune.kernels.tablefile.tree import Box, choose
from normtune.kernels.target import Target
from normtune.results.records import Outcome
from normtune.tuner.checking.shapes import Sample, population, rivals, sample
from normtune.tuner.checking.subject import Checked
from normtune.tuner.checking.verdict import Judgement, ShapeLoss, alarming, doubtful, finding, judge

# Shapes per function, without second looks, and without leaves that matter beyond this number: five functions within 60
# s on a GPU that takes 0.25 s for a race.
MOST_SHAPES = 40
# A status without information on the config.
_UNKNOWN = "not_recorded"


class ProbeRequest(NamedTuple):
    """A race that informs on one function.

    Attributes:
        function: its index among the functions.
        problem: the shape.
        config: the table's.
        rivals: the others.
        leaf: the number of the leaf that answers.
        is_second_look: needed only if the leaf's one shape is an alarm.
    """

    function: int
    problem: Problem
    config: Config
    rivals: tuple[Config, ...]
    leaf: int
    is_second_look: bool


class CheckSession:
    """A measured check of one table.

    Args:
        functions: to check.
        box: that the table was measured on.
        target: the device's.
        seed: other seeds choose other shapes.
        most_elements: of the largest shape.
        known: the only measurable shapes of a function; None for all.

    Attributes:
        functions: as given.
        probes: the most informative first: plain functions in turn, then those of variants one after the other, then
            batch-invariant ones.
    """

    def __init__(
        self,
        functions: Sequence[Checked],
        box: Box,
        target: Target,
        seed: int,
        most_elements: int,
        known: Callable[[Checked], Collection[Shape] | None],
    ) -> None:
        self.functions = tuple(functions)
        self._findings: list[list[ShapeLoss]] = [[] for _ in functions]
        self._alarmed: set[int] = set()
        self._doubtful: list[set[int]] = [set() for _ in functions]
        self._samples = [self._sample(function, box, seed, most_elements, known(function)) for function in functions]
        order = sorted(range(len(functions)), key=lambda index: _worth(functions[index]))
        plain = [index for index in order if functions[index].is_plain]
        groups = [plain, *([index] for index in order if index not in plain)]
        self.probes = tuple(chain.from_iterable(self._of_group(group, target) for group in groups))

    def wants(self, probe: ProbeRequest) -> bool:
        """Whether the answer can still matter: its function is not stale yet."""
        function = probe.function
        return function not in self._alarmed and (not probe.is_second_look or probe.leaf in self._doubtful[function])

    def learn(self, probe: ProbeRequest, asked: Config, answers: Mapping[Config, Outcome]) -> None:
        """Take the result of a race.

        Args:
            probe: the race.
            asked: the config that was timed as the table's: of equal launches one is enough.
            answers: of all configs that took part; the copy may be among them.
        """
        own = answers[asked]
        if own.status not in ("ok", _UNKNOWN):
            self._fail(probe, f"{own.status}: {own.reason}")
        elif own.status == "ok" and _is_race(asked, answers):
            samples = {
                config: LogSamples(
                    np.asarray(answer.rounds, np.int32), log_ppm(np.asarray(answer.nanoseconds, np.int64))
                )
                for config, answer in answers.items()
                if answer.status == "ok" and config != COPY
            }
            result = finding(probe.problem.shape, samples, asked)
            if result:
                self._add(probe, result)

    def judged(self) -> list[tuple[Checked, Judgement]]:
        """The functions and their judgements; called once, after the last measurement."""
        return [
            (function, judge(findings, function.promise, drawn.shares, len(self.functions)))
            for function, drawn, findings in zip(self.functions, self._samples, self._findings, strict=True)
        ]

    def _sample(
        self, function: Checked, box: Box, seed: int, most_elements: int, known: Collection[Shape] | None
    ) -> Sample:
        shapes = population(box, seed, most_elements, known)
        return sample(function.tree, shapes, MOST_SHAPES, f"{seed} {function.key}")

    def _of_group(self, group: Sequence[int], target: Target) -> Iterator[ProbeRequest]:
        """The probes of some functions in turn, and then their second looks."""
        for is_second_look in (False, True):
            streams = [self._questions(index, target, is_second_look) for index in group]
            yield from (probe for turn in zip_longest(*streams) for probe in turn if probe)

    def _questions(self, index: int, target: Target, is_second_look: bool) -> list[ProbeRequest]:
        """The probes of a function; a config that is illegal at a shape fails without one."""
        function, drawn = self.functions[index], self._samples[index]
        spec = operator(function.key.operator)
        others = [
            other.tree
            for other in self.functions
            if other.key.operator == function.key.operator and other is not function
        ]
        probes = []
        for shape, leaf in drawn.reserve if is_second_look else drawn.probes:
            problem = Problem(function.key.usual, *shape)
            config = choose(function.tree, shape)
            probe = ProbeRequest(
                index,
                problem,
                config,
                tuple(rivals(function.tree, spec, problem, target, others)),
                leaf,
                is_second_look,
            )
            try:
                spec.launch(config, problem, target)
            except IllegalConfigError as error:
                self._fail(probe, f"illegal: {error}")
            else:
                probes.append(probe)
        return probes

    def _fail(self, probe: ProbeRequest, reason: str) -> None:
        problem, config = probe.problem, probe.config
        failure = ShapeLoss(problem.shape, config, config, 0, 0, 0, " ".join(reason.split()))
        self._add(probe, failure)

    def _add(self, probe: ProbeRequest, result: ShapeLoss) -> None:
        function = probe.function
        known, promise = self._findings[function], self.functions[function].promise
        known.append(result._replace(config=probe.config, leaf=probe.leaf, is_second_look=probe.is_second_look))
        self._doubtful[function] = doubtful(known, promise)
        if alarming(known, promise):
            self._alarmed.add(function)


def _is_race(asked: Config, answers: Mapping[Config, Outcome]) -> bool:
    """Whether a rival took part, or none could: beside rivals that a replay has no times of nothing is fast or slow."""
    rivals = [answer.status for config, answer in answers.items() if config not in (asked, COPY)]
    return not rivals or any(status != _UNKNOWN for status in rivals)


def _worth(function: Checked) -> tuple[bool, bool]:
    """Sort key of functions: plain ones, those of variants, batch-invariant ones."""
    return function.key.is_batch_invariant, bool(function.key.modes)
