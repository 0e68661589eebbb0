"""Where two tables or rules answer differently, and what each loses there.

In: a timing matrix and two `Side`s, each of a table or of another library's rule. Out: `Difference`. How it is printed
is left to `difference_text`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.heuristics.figures import Loss, summarise
from normtune.heuristics.locate import load, shipped, told
from normtune.heuristics.matrix import TimingMatrix
from normtune.heuristics.rules import RULES
from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError, Launch, operator
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target

Shape = tuple[int, int]
Answer = Callable[[Problem, Target], Config | None]


class Side(NamedTuple):
    """One of the two that are compared: how it is named, and its config for a problem, None where it has none."""

    name: str
    choose: Answer


def side(text: str) -> Side:
    """The rule of that name, else the table in the file of that name, else the shipped table of that name.

    Raises:
        UsageError: there is none of them, or the file is no table.
    """
    if text in RULES:
        return Side(text, RULES[text].choose)
    path: str | Path = text
    if not os.path.lexists(text):
        named = {path.stem.replace("_", "-"): path for path in shipped()}
        if text not in named:
            raise UsageError(
                f"{told(text)} is no file, rule or shipped table: expected a table that `normtune fit --out` wrote, or "
                f"one of {', '.join([*RULES, *named])}"
            )
        path = named[text]
    table = load(path)

    def choose(problem: Problem, target: Target) -> Config | None:
        answer = table.answer(problem.key, problem.dtype)
        return answer(problem.rows, problem.hidden) if answer else None

    return Side(told(text), choose)


class Choice(NamedTuple):
    """What a side answers for a shape: its config, None without; its log-regret in millionths, None without a time."""

    config: Config | None
    loss: int | None


@dataclass(frozen=True)
class Difference:
    """Two sides on the problems of a timing matrix.

    Attributes:
        matrix: the times.
        names: of the two sides.
        choices: for each side, what it answers for each problem, in the order of the matrix.
        same: the shapes (rows, hidden) at which both answer and launch the same.
    """

    matrix: TimingMatrix
    names: tuple[str, str]
    choices: tuple[tuple[Choice, ...], tuple[Choice, ...]]
    same: frozenset[Shape]

    @cached_property
    def pairs(self) -> dict[Shape, tuple[Choice, Choice]]:
        """What both sides answer at each shape."""
        return dict(zip(self.matrix.problems, zip(*self.choices, strict=True), strict=True))

    def loss(self, which: int) -> Loss | None:
        """What a side, 0 or 1, loses over the shapes at which its config has a time."""
        return summarise([choice.loss for choice in self.choices[which]])

    def common(self) -> tuple[Loss, Loss] | None:
        """What both lose over the shapes at which both have a time; None where there is no such shape."""
        timed = [(a.loss, b.loss) for a, b in self.pairs.values() if a.loss is not None and b.loss is not None]
        first, second = summarise([a for a, _ in timed]), summarise([b for _, b in timed])
        return (first, second) if first and second else None

    def without_answer(self, which: int) -> int:
        """The number of shapes at which a side has no config."""
        return sum(choice.config is None for choice in self.choices[which])

    def without_time(self, which: int) -> int:
        """The number of shapes at which the config of a side was not measured."""
        return sum(choice.config is not None and choice.loss is None for choice in self.choices[which])

    def worst(self, which: int, count: int) -> list[tuple[Shape, tuple[Choice, Choice]]]:
        """The shapes at which a side loses most, the worst first, with what both answer there."""
        timed = [(shape, pair, loss) for shape, pair in self.pairs.items() if (loss := pair[which].loss) is not None]
        timed.sort(key=lambda found: (-found[2], found[0]))
        return [(shape, pair) for shape, pair, _ in timed[:count]]


def difference(matrix: TimingMatrix, target: Target, first: Side, second: Side) -> Difference:
    """Compare two sides on the problems of a matrix.

    Args:
        matrix: the times, of one operator, variant and dtype.
        target: of the device that they were measured on.
        first: one side.
        second: the other.
    """
    choices: tuple[list[Choice], list[Choice]] = ([], [])
    same = set()
    for place, shape in enumerate(matrix.problems):
        problem = Problem(matrix.operator, *shape, matrix.dtype, matrix.variant)
        configs = [one.choose(problem, target) for one in (first, second)]
        for found, config in zip(choices, configs, strict=True):
            found.append(Choice(config, _loss(matrix, place, problem, target, config)))
        launches = [_launch(config, problem, target) for config in configs]
        if launches[0] is not None and launches[0] == launches[1]:
            same.add(shape)
    return Difference(matrix, (first.name, second.name), (tuple(choices[0]), tuple(choices[1])), frozenset(same))


def _launch(config: Config | None, problem: Problem, target: Target) -> Launch | None:
    """The launch of a config; None where it has none."""
    if config is None:
        return None
    try:
        return operator(problem.operator).resolve(config, problem, target, None)
    except IllegalConfigError:
        return None


def _loss(matrix: TimingMatrix, place: int, problem: Problem, target: Target, config: Config | None) -> int | None:
    """The regret of a config, or of a measured one that launches the same; None where there is no time."""
    if config is None:
        return None
    known = matrix.loss(place, config)
    launch = _launch(config, problem, target) if known is None else None
    if launch is None:
        return known
    for other in matrix.configs:
        loss = matrix.loss(place, other)
        if loss is not None and other.num_warps == launch.num_warps and _launch(other, problem, target) == launch:
            return loss
    return None
