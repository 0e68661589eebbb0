"""A check on a device: the races to run, and the judgement so far.

In: the functions of a table, the target and the measurable shapes; then the result of each race. Out: probes, and the
`Judgement` of each function. `shapes` chooses shapes, `recheck` measures, `verdict` judges.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np

from normtune.heuristics.regret.effects import LogSamples
from normtune.heuristics.regret.fixed_log import log_ppm
from normtune.kernels.box import Box
from normtune.kernels.config import COPY, Config
from normtune.kernels.operator import IllegalConfigError, operator
from normtune.kernels.problem import Problem, Shape, axes_of
from normtune.kernels.tablefile.tree import choose
from normtune.kernels.target import Target
from normtune.results.records import Outcome
from normtune.tuner.checking.shapes import population, rivals, sample
from normtune.tuner.checking.subject import Checked
from normtune.tuner.checking.verdict import Judgement, ShapeLoss, alarming, doubtful, finding, judge
from normtune.tuner.plan.grids import MAX_ELEMENTS

# Shapes per function, without second looks; more if more leaves matter. Five functions take 60 s on a GPU with 0.25 s
# per race.
MOST_SHAPES = 40
# The status of configs without a result.
_UNKNOWN = "not_recorded"


class ProbeRequest(NamedTuple):
    """A race for one function.

    Attributes:
        function: index of the function.
        problem: of the race.
        config: config of the table.
        rivals: the other configs.
        leaf: number of the leaf with the config.
        is_second_look: whether the race is only needed if the leaf's only shape is an alarm.
    """

    function: int
    problem: Problem
    config: Config
    rivals: tuple[Config, ...]
    leaf: int
    is_second_look: bool


class CheckSession:
    """A check of one table on a device.

    Args:
        functions: to check.
        box: the measured sizes of the table.
        target: limits of the device.
        seed: of the draw of shapes.
        measurable: the measurable shapes of each function; None for all of at most `MAX_ELEMENTS`.

    Attributes:
        functions: the functions.
        probes: most informative first: plain functions in turn, then those of variants one after the other, then
            batch-invariant ones.
    """

    def __init__(
        self,
        functions: Sequence[Checked],
        box: Box,
        target: Target,
        seed: int,
        measurable: Sequence[Collection[Shape] | None],
    ) -> None:
        self.functions = tuple(functions)
        self._findings: list[list[ShapeLoss]] = [[] for _ in functions]
        self._alarmed: set[int] = set()
        self._doubtful: list[set[int]] = [set() for _ in functions]
        self._samples = [
            sample(
                *(function.tree, population(box, seed, MAX_ELEMENTS, shapes), MOST_SHAPES, f"{seed} {function.key}"),
                axes_of(function.key.family),
            )
            for function, shapes in zip(functions, measurable, strict=True)
        ]
        # Plain ones first, then variants, then batch-invariant ones.
        keys = [function.key for function in functions]
        order = sorted(range(len(keys)), key=lambda index: (keys[index].is_batch_invariant, bool(keys[index].modes)))
        of_plain = [index for index in order if functions[index].is_plain]
        groups = [of_plain, *([index] for index in order if index not in of_plain)]
        self.probes = tuple(chain.from_iterable(self._of_group(group, target) for group in groups))

    def wants(self, probe: ProbeRequest) -> bool:
        """Whether the result can still matter: its function is not stale yet."""
        function = probe.function
        return function not in self._alarmed and (not probe.is_second_look or probe.leaf in self._doubtful[function])

    def learn(self, probe: ProbeRequest, config: Config, outcomes: Mapping[Config, Outcome]) -> None:
        """Add the outcomes of a race, in which `config` has the launch of the table's config."""
        outcome = outcomes[config]
        if outcome.status not in ("ok", _UNKNOWN):
            self._fail(probe, f"{outcome.status}: {outcome.reason}")
        elif outcome.status == "ok" and _is_race(config, outcomes):
            samples = {
                timed: LogSamples(np.asarray(other.rounds, np.int32), log_ppm(np.asarray(other.nanoseconds, np.int64)))
                for timed, other in outcomes.items()
                if other.status == "ok" and timed != COPY
            }
            result = finding(probe.problem.shape, samples, config)
            if result:
                self._add(probe, result)

    def judged(self) -> list[tuple[Checked, Judgement]]:
        """The functions with their judgements, after the last measurement."""
        return [
            (function, judge(findings, function.promise, shape_sample.shares, len(self.functions)))
            for function, shape_sample, findings in zip(self.functions, self._samples, self._findings, strict=True)
        ]

    def _of_group(self, group: Sequence[int], target: Target) -> Iterator[ProbeRequest]:
        """The probes of some functions in turn, and then their second looks."""
        for is_second_look in (False, True):
            streams = [self._probes_of(index, target, is_second_look) for index in group]
            yield from (probe for turn in zip_longest(*streams) for probe in turn if probe)

    def _probes_of(self, index: int, target: Target, is_second_look: bool) -> list[ProbeRequest]:
        """The probes of a function; illegal configs fail at once."""
        function, shape_sample = self.functions[index], self._samples[index]
        spec = operator(function.key.operator)
        others = [
            other.tree
            for other in self.functions
            if other.key.operator == function.key.operator and other is not function
        ]
        probes = []
        for shape, leaf in shape_sample.reserve if is_second_look else shape_sample.probes:
            problem = Problem.at(function.key.usual, shape)
            config = choose(function.tree, shape, axes_of(function.key.family))
            against = tuple(rivals(function.tree, spec, problem, target, others))
            probe = ProbeRequest(index, problem, config, against, leaf, is_second_look)
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
        findings, promise = self._findings[function], self.functions[function].promise
        findings.append(result._replace(config=probe.config, leaf=probe.leaf, is_second_look=probe.is_second_look))
        self._doubtful[function] = doubtful(findings, promise)
        if alarming(findings, promise):
            self._alarmed.add(function)


def _is_race(config: Config, outcomes: Mapping[Config, Outcome]) -> bool:
    """Whether a config was compared with a rival, or has no rivals; a replay may lack the times of all rivals."""
    rivals = [outcome.status for other, outcome in outcomes.items() if other not in (config, COPY)]
    return not rivals or any(status != _UNKNOWN for status in rivals)
