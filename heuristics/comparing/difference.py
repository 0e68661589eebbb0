"""Shapes at which two tables or rules choose different configs, with the losses of both and the gain of one.

Each shape belongs to one of three parts: launch bound, memory bound, or neither.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from normtune.heuristics.comparing.contenders import Side
from normtune.heuristics.comparing.gains import Gain, Pair, gain
from normtune.heuristics.fitting.figures import Loss, of_configs, summarise
from normtune.heuristics.regret.matrix import MISSING, TimingMatrix
from normtune.heuristics.rules.rule import Autotuned
from normtune.kernels.call import AnyLaunch
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem, Shape
from normtune.kernels.target import Target

# With fewer bytes no config gets near the time of a copy: the time is mostly the launch.
LAUNCH_BYTES = 1 << 20
PARTS = (0, 1, 2)


class SideAnswer(NamedTuple):
    """Answer of a side for a shape.

    Attributes:
        config: None without an answer.
        loss: the config's log-regret, log_ppm; None without a time.
        column: the column of its times in the matrix: the config's own, or of a config with the same launch.
        tuned: for an autotuner the numbers of timed and of legal configs in its list at this shape.
    """

    config: Config | None
    loss: int | None
    column: int | None = None
    tuned: tuple[int, int] | None = None


@dataclass(frozen=True)
class Difference:
    """Two sides on the problems of a timing matrix.

    Attributes:
        matrix: the times.
        names: of the two sides.
        choices: for each side the answer for each problem, in the order of the matrix.
        same: the shapes at which both have the same launch.
        parts: the part of each problem, from `part_of`.
    """

    matrix: TimingMatrix
    names: tuple[str, str]
    choices: tuple[tuple[SideAnswer, ...], tuple[SideAnswer, ...]]
    same: frozenset[Shape]
    parts: tuple[int, ...]

    @cached_property
    def pairs(self) -> dict[Shape, tuple[SideAnswer, SideAnswer]]:
        """The answers of both sides at each shape."""
        return dict(zip(self.matrix.problems, zip(*self.choices, strict=True), strict=True))

    @cached_property
    def timed(self) -> tuple[int, ...]:
        """The problems at which both have a time."""
        pairs = zip(*self.choices, strict=True)
        return tuple(index for index, (a, b) in enumerate(pairs) if a.loss is not None and b.loss is not None)

    def loss(self, which: int) -> Loss | None:
        """Loss of a side, 0 or 1."""
        configs, losses = ([getattr(choice, name) for choice in self.choices[which]] for name in ("config", "loss"))
        return of_configs(self.matrix, configs, losses)

    def common(self, bounded: int | None = None) -> tuple[Loss, Loss] | None:
        """Losses of both over the shapes of a part, or all, at which both have a time; None if there are none."""
        indices = self.within(bounded)
        weights = self.matrix.weight[indices]
        first, second = (summarise([choices[index].loss for index in indices], weights) for choices in self.choices)
        return (first, second) if first and second else None

    def gain(self, bounded: int | None = None) -> Gain | None:
        """Gain of the first over the second at the same shapes."""
        pairs = []
        for index in self.within(bounded):
            first, second = (choices[index].column for choices in self.choices)
            if first is None or second is None:
                raise AssertionError("a config with a time has a column")
            pairs.append(Pair(index, first, second))
        return gain(self.matrix, pairs)

    def faster(self, bounded: int | None = None) -> float | None:
        """How much longer the second takes over the shapes of a part, or all: the main figure of a comparison.

        The weighted mean of log(the second's time / the first's), log_ppm; None if no shape has a time of both.
        """
        indices = self.within(bounded)
        total = int(self.matrix.weight[indices].sum())
        if not total:
            return None
        losses = [[choices[index].loss or 0 for index in indices] for choices in self.choices]
        return float((np.subtract(losses[1], losses[0]) * self.matrix.weight[indices]).sum() / total)

    def without_answer(self, which: int) -> int:
        """The number of shapes at which a side has no config."""
        return sum(choice.config is None for choice in self.choices[which])

    def without_time(self, which: int) -> int:
        """The number of shapes at which the config of a side was not measured."""
        return sum(choice.config is not None and choice.loss is None for choice in self.choices[which])

    def tuned(self, which: int) -> tuple[int, int, int] | None:
        """Of an autotuner's shapes the numbers with some configs timed, with all timed, and of all; None for others."""
        lists = [choice.tuned for choice in self.choices[which] if choice.tuned]
        if not lists:
            return None
        return sum(timed > 0 for timed, _ in lists), sum(timed == legal for timed, legal in lists), len(lists)

    def worst(self, which: int, count: int) -> list[tuple[Shape, tuple[SideAnswer, SideAnswer]]]:
        """The worst shapes of a side, with the answers of both."""
        timed = [(shape, pair, loss) for shape, pair in self.pairs.items() if (loss := pair[which].loss) is not None]
        timed.sort(key=lambda entry: (-entry[2], entry[0]))
        return [(shape, pair) for shape, pair, _ in timed[:count]]

    def within(self, bounded: int | None) -> list[int]:
        """The problems at which both have a time, all or those of one part."""
        return [index for index in self.timed if bounded in (None, self.parts[index])]


def difference(
    spec: OperatorSpec,
    matrix: TimingMatrix,
    target: Target,
    first: Side | Autotuned,
    second: Side | Autotuned,
) -> Difference:
    """Compare two sides on the problems of an operator's matrix with the weights of its problems.

    `target` has the measured device's last-level cache.
    """
    lookup = Answers(spec, matrix, target)
    choices: tuple[list[SideAnswer], list[SideAnswer]] = ([], [])
    same, parts = set(), []
    for index, shape in enumerate(matrix.problems):
        problem = Problem.at(matrix.key, shape)
        answers = [lookup.choice(index, problem, side) for side in (first, second)]
        for of_side, answer in zip(choices, answers, strict=True):
            of_side.append(answer)
        launches = [_launch(spec, answer.config, problem, target) for answer in answers]
        if launches[0] is not None and launches[0] == launches[1]:
            same.add(shape)
        parts.append(part_of(spec, problem, target.l2_bytes))
    names = first.name, second.name
    both = tuple(choices[0]), tuple(choices[1])
    return Difference(matrix, names, both, frozenset(same), tuple(parts))


def parts_of(comparison: Difference) -> list[int]:
    """The parts with shapes at which both sides have a time."""
    return [which for which in PARTS if any(comparison.parts[index] == which for index in comparison.timed)]


class Answers:
    """What sides answer on the problems of a matrix, and what their configs lose there."""

    def __init__(self, spec: OperatorSpec, matrix: TimingMatrix, target: Target) -> None:
        self._spec = spec
        self._matrix = matrix
        self._target = target
        self._launches: dict[int, dict[AnyLaunch, int]] = {}

    def choice(self, index: int, problem: Problem, side: Side | Autotuned) -> SideAnswer:
        """Answer of a side for a problem and its index in the matrix."""
        if isinstance(side, Side):
            return self._choice(index, problem, side.choose(problem, self._target))
        configs = side.configs(problem, self._target)
        legal = [config for config in configs if _launch(self._spec, config, problem, self._target)]
        if not legal:
            return SideAnswer(None, None)
        choices = [self._choice(index, problem, config) for config in legal]
        timed = [choice for choice in choices if choice.column is not None]
        picked = min(timed, key=lambda choice: self._median(index, choice)) if timed else choices[0]
        return picked._replace(tuned=(len(timed), len(legal)))

    def _choice(self, index: int, problem: Problem, config: Config | None) -> SideAnswer:
        """The answer with a config; its time may be that of a config with the same launch."""
        if config is None:
            return SideAnswer(None, None)
        column = self._matrix.columns.get(config)
        if column is None or not self._matrix.usable[index, column]:
            column = self._alias(index, problem, config)
        return SideAnswer(config, None if column is None else int(self._matrix.regret[index, column]), column)

    def _alias(self, index: int, problem: Problem, config: Config) -> int | None:
        launch = _launch(self._spec, config, problem, self._target)
        return self._timed_launches(index, problem).get(launch) if launch else None

    def _timed_launches(self, index: int, problem: Problem) -> dict[AnyLaunch, int]:
        """The launches with a time at a problem, each with the first of its columns."""
        if index not in self._launches:
            launches = self._launches[index] = {}
            for column in np.flatnonzero(self._matrix.usable[index]).tolist():
                launch = _launch(self._spec, self._matrix.configs[column], problem, self._target)
                if launch is not None:
                    launches.setdefault(launch, column)
        return self._launches[index]

    def _median(self, index: int, choice: SideAnswer) -> float:
        """The median log-time of all rounds, each relative to its round; the regret if there are no rounds."""
        if self._matrix.rounds is None or choice.column is None:
            return float(choice.loss or 0)
        logs = self._matrix.rounds.of(index, choice.column)
        return float(np.median(logs[logs != MISSING]))


def _launch(spec: OperatorSpec, config: Config | None, problem: Problem, target: Target) -> AnyLaunch | None:
    return None if config is None else spec.launch_of(config, problem, target)


def part_of(spec: OperatorSpec, problem: Problem, l2_bytes: int) -> int:
    """0 if launch bound (at most 1 MB moved), 2 if memory bound (more than the last-level cache moved), else 1."""
    moved = spec.bytes_moved(problem)
    if moved <= LAUNCH_BYTES:
        return 0
    return 2 if moved > l2_bytes else 1


def part_name(which: int, l2_bytes: int) -> str:
    """Name of a part by the bytes that are moved."""
    cache = f"{l2_bytes / (1 << 20):g} MB"
    return ("to 1 MB moved", f"1 to {cache}", f"over {cache}, the L2")[which]
