"""Where two sides answer differently, what each loses there, and what one instead of the other gains.

In: a timing matrix and two sides, each a table, another library's rule or its autotuner. Out: `Difference`. How it is
printed is left to `report`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.comparing.gains import Gain, Pair, gain
from normtune.heuristics.comparing.regions import Differing, rectangles
from normtune.heuristics.comparing.sides import Side, Tuned
from normtune.heuristics.comparing.traffic import PARTS, part
from normtune.heuristics.fitting.figures import Loss, summarise
from normtune.heuristics.regret.matrix import MISSING, TimingMatrix
from normtune.kernels.config import Config
from normtune.kernels.operator import AnyLaunch, operator
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target

Shape = tuple[int, int]


class Choice(NamedTuple):
    """What a side answers for a shape.

    Attributes:
        config: None without an answer.
        loss: its log-regret, millionths; None without a time.
        column: whose times these are, of the matrix's configs: its own, or those of one that launches the same.
        tuned: of an autotuner, how many configs of its list have a time there, and how many are legal.
    """

    config: Config | None
    loss: int | None
    column: int | None = None
    tuned: tuple[int, int] | None = None


class Change(NamedTuple):
    """A rectangle in which two sides choose differently.

    Attributes:
        where: its edges and configs.
        shapes: what was measured in it and launches differently.
        gain: of the first instead of the second over those of them at which both have a time; None without.
    """

    where: Differing
    shapes: tuple[Shape, ...]
    gain: Gain | None


@dataclass(frozen=True)
class Difference:
    """Two sides on the problems of a timing matrix.

    Attributes:
        matrix: the times.
        names: of the two sides.
        choices: for each side, what it answers for each problem, in the order of the matrix.
        same: the shapes (rows, hidden) at which both answer and launch the same.
        best: int64 (problems,), ns, the best time of each problem.
        parts: of each problem, what bounds it, as `traffic.part`.
        boxes: where their tables choose differently.
    """

    matrix: TimingMatrix
    names: tuple[str, str]
    choices: tuple[tuple[Choice, ...], tuple[Choice, ...]]
    same: frozenset[Shape]
    best: NDArray[np.int64]
    parts: tuple[int, ...]
    boxes: tuple[Differing, ...] = ()

    @cached_property
    def pairs(self) -> dict[Shape, tuple[Choice, Choice]]:
        """What both sides answer at each shape."""
        return dict(zip(self.matrix.problems, zip(*self.choices, strict=True), strict=True))

    @cached_property
    def timed(self) -> tuple[int, ...]:
        """The problems at which both have a time."""
        found = zip(*self.choices, strict=True)
        return tuple(place for place, (a, b) in enumerate(found) if a.loss is not None and b.loss is not None)

    def loss(self, which: int) -> Loss | None:
        """What a side, 0 or 1, loses over the shapes at which its config has a time."""
        return summarise([choice.loss for choice in self.choices[which]], self.matrix.weight)

    def common(self, bounded: int | None = None) -> tuple[Loss, Loss] | None:
        """What both lose over the shapes at which both have a time; None where there is no such shape.

        Args:
            bounded: only those of this part of `traffic`.
        """
        places = self.within(bounded)
        weights = self.matrix.weight[places]
        first, second = (summarise([choices[place].loss for place in places], weights) for choices in self.choices)
        return (first, second) if first and second else None

    def gain(self, bounded: int | None = None) -> Gain | None:
        """What the first instead of the second gains over those shapes."""
        return self._gain(self.within(bounded))

    def without_answer(self, which: int) -> int:
        """The number of shapes at which a side has no config."""
        return sum(choice.config is None for choice in self.choices[which])

    def without_time(self, which: int) -> int:
        """The number of shapes at which the config of a side was not measured."""
        return sum(choice.config is not None and choice.loss is None for choice in self.choices[which])

    def tuned(self, which: int) -> tuple[int, int, int] | None:
        """Of an autotuner: at how many shapes some of its list, and all of it, has times, and at how many it has one.

        None for a side that is no autotuner.
        """
        lists = [choice.tuned for choice in self.choices[which] if choice.tuned]
        if not lists:
            return None
        return sum(timed > 0 for timed, _ in lists), sum(timed == legal for timed, legal in lists), len(lists)

    def worst(self, which: int, count: int) -> list[tuple[Shape, tuple[Choice, Choice]]]:
        """The shapes at which a side loses most, the worst first, with what both answer there."""
        timed = [(shape, pair, loss) for shape, pair in self.pairs.items() if (loss := pair[which].loss) is not None]
        timed.sort(key=lambda found: (-found[2], found[0]))
        return [(shape, pair) for shape, pair, _ in timed[:count]]

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """Where the choice differs, the largest gain first, summed over its shapes; what has none comes last."""
        found = []
        for differing in self.boxes:
            inside = [place for place, shape in enumerate(self.matrix.problems) if differing.box.holds(*shape)]
            places = [place for place in inside if self.matrix.problems[place] not in self.same]
            if inside and not places:
                continue
            gained = self._gain([place for place in places if place in self._timed])
            found.append(Change(differing, tuple(self.matrix.problems[place] for place in places), gained))
        return tuple(sorted(found, key=_rank))

    @cached_property
    def _timed(self) -> frozenset[int]:
        return frozenset(self.timed)

    def within(self, bounded: int | None) -> list[int]:
        """The problems of a part of `traffic`, or of all, at which both have a time."""
        return [place for place in self.timed if bounded in (None, self.parts[place])]

    def _gain(self, places: Sequence[int]) -> Gain | None:
        pairs = []
        for place in places:
            first, second = (choices[place].column for choices in self.choices)
            if first is None or second is None:
                raise AssertionError("what has a time has a column")
            pairs.append(Pair(place, first, second))
        return gain(self.matrix, self.best, pairs)


def _rank(change: Change) -> tuple[bool, float, Differing]:
    gained = change.gain
    return gained is None, -gained.log.mean * gained.weight if gained else 0.0, change.where


def difference(
    matrix: TimingMatrix,
    target: Target,
    first: Side | Tuned,
    second: Side | Tuned,
    best: NDArray[np.int64],
) -> Difference:
    """Compare two sides on the problems of a matrix.

    Args:
        matrix: the times, of one operator, variant and dtype, and what each problem counts.
        target: of the device that they were measured on, with its own last-level cache.
        first: one side.
        second: the other.
        best: int64 (problems,), ns, the best time of each problem.
    """
    spec, known = operator(matrix.operator), _Answers(matrix, target)
    choices: tuple[list[Choice], list[Choice]] = ([], [])
    same, parts = set(), []
    for place, shape in enumerate(matrix.problems):
        problem = Problem(matrix.operator, *shape, matrix.dtype, matrix.variant)
        answers = [known.choice(place, problem, one) for one in (first, second)]
        for found, answer in zip(choices, answers, strict=True):
            found.append(answer)
        launches = [_launch(answer.config, problem, target) for answer in answers]
        if launches[0] is not None and launches[0] == launches[1]:
            same.add(shape)
        parts.append(part(spec, problem, target.l2_bytes))
    key = matrix.key, matrix.dtype
    left, right = (one.tree(*key, target) if isinstance(one, Side) else None for one in (first, second))
    boxes = tuple(rectangles(left, right, spec.max_hidden))
    names = first.name, second.name
    return Difference(matrix, names, (tuple(choices[0]), tuple(choices[1])), frozenset(same), best, tuple(parts), boxes)


def parts_of(found: Difference) -> list[int]:
    """The parts of `traffic` that have shapes at which both sides have a time."""
    return [which for which in PARTS if any(found.parts[place] == which for place in found.timed)]


class _Answers:
    """What sides answer for the problems of a matrix."""

    def __init__(self, matrix: TimingMatrix, target: Target) -> None:
        self._matrix = matrix
        self._target = target
        self._columns = {config: column for column, config in enumerate(matrix.configs)}

    def choice(self, place: int, problem: Problem, side: Side | Tuned) -> Choice:
        """What a side answers for the problem of that place."""
        if isinstance(side, Side):
            return self._choice(place, problem, side.choose(problem, self._target))
        configs = side.configs(problem, self._target)
        legal = [config for config in configs if _launch(config, problem, self._target)]
        if not legal:
            return Choice(None, None)
        found = [self._choice(place, problem, config) for config in legal]
        timed = [choice for choice in found if choice.column is not None]
        picked = min(timed, key=lambda choice: self._median(place, choice)) if timed else found[0]
        return picked._replace(tuned=(len(timed), len(legal)))

    def _choice(self, place: int, problem: Problem, config: Config | None) -> Choice:
        """A config with its time, or that of a measured one that launches the same."""
        if config is None:
            return Choice(None, None)
        column = self._columns.get(config)
        if column is None or not self._matrix.usable[place, column]:
            column = self._alias(place, problem, config)
        return Choice(config, None if column is None else int(self._matrix.regret[place, column]), column)

    def _alias(self, place: int, problem: Problem, config: Config) -> int | None:
        launch = _launch(config, problem, self._target)
        for column in np.flatnonzero(self._matrix.usable[place]).tolist() if launch else ():
            other = self._matrix.configs[column]
            if _launch(other, problem, self._target) == launch:
                return int(column)
        return None

    def _median(self, place: int, choice: Choice) -> float:
        """The median log-time of all rounds, each less that of its round; the regret where no rounds are kept."""
        if self._matrix.rounds is None or choice.column is None:
            return float(choice.loss or 0)
        logs = self._matrix.rounds.logs[place, choice.column]
        return float(np.median(logs[logs != MISSING]))


def _launch(config: Config | None, problem: Problem, target: Target) -> AnyLaunch | None:
    """The launch of a config; None where it has none."""
    if config is None:
        return None
    return operator(problem.operator).launch_of(config, problem, target)
