"""Compares a function of a fitted table with the configs that would be launched without it.

They come from the baseline of the fit, else the GPU's present table, unless that is the same, else the first rule of
another library for the operator, else the operator's default config, if it is declared. All run the same kernels.
"""

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.heuristics.fitting.baseline import DEFAULT, DEFAULT_RULE, Choice, Incumbents
from normtune.heuristics.fitting.figures import Slower
from normtune.heuristics.fitting.guard import Guard
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.rules import RULES
from normtune.heuristics.solver.bins import losses
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec, read_config
from normtune.kernels.problem import Problem, Shape
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.selection import TableSelection
from normtune.kernels.tablefile.tree import Tree, choose
from normtune.kernels.target import Target
from normtune.results.records import Device


class Compared(NamedTuple):
    """A function at the measured shapes.

    Attributes:
        worst: the shape of the function's largest loss.
        name: of the compared table or rule.
        faster: unweighted mean over the shapes of log(its time / the function's time), log_ppm; None if no shape has
            times of both.
        most: the largest such log, and its shape; None likewise.
        shapes: at how many shapes there are times of both, and the number of all.
        is_paired: whether the times were taken in rounds; others prove no difference.
        slower: the shapes at which the function is slower by paired times; None without any.
    """

    worst: Shape
    name: str
    faster: int | None
    most: tuple[int, Shape] | None
    shapes: tuple[int, int]
    is_paired: bool
    slower: Slower | None = None


@dataclass(frozen=True)
class InUse:
    """The tables and rules that the functions of a fit are compared with.

    Attributes:
        baseline: of the fit, or the table that is replaced; None without either.
        name: of the baseline, if it is a table.
        device: the GPU of the fit.
        target: the GPU's limits.
    """

    baseline: Incumbents | None
    name: str
    device: Device
    target: Target

    def compared(self, spec: OperatorSpec, matrix: TimingMatrix, tree: Tree) -> Compared:
        """Compare a function on the problems of a matrix; it has a time on at least one."""
        regrets = losses(matrix, tree)
        worst = max((loss, shape) for loss, shape in zip(regrets, matrix.problems, strict=True) if loss is not None)[1]
        name, choice = self._of(spec, matrix, tree)
        logs = []
        for index, (shape, regret) in enumerate(zip(matrix.problems, regrets, strict=True)):
            other = choice(shape)
            loss = None if other is None else matrix.loss(index, other)
            if loss is not None and regret is not None:
                logs.append((loss - regret, shape))
        faster = round(sum(log for log, _ in logs) / len(logs)) if logs else None
        slower = Guard(matrix, choice).slower(tree) if matrix.rounds else None
        shapes = len(logs), len(matrix.problems)
        most = max(logs, default=None)
        return Compared(worst, name, faster, most, shapes, matrix.rounds is not None, slower)

    def _of(self, spec: OperatorSpec, matrix: TimingMatrix, tree: Tree) -> tuple[str, Choice]:
        key = matrix.key

        def default(shape: Shape) -> Config | None:
            # An operator that is not declared has none.
            return spec.default_config(Problem.at(key, shape), self.target) if spec.kernel_calls else None

        incumbent = self.baseline.of(key, self.target) if self.baseline else None
        if incumbent and self.baseline:
            rule = self.baseline.rule
            title = rule and (rule.title if rule.name == DEFAULT else f"the rule of {rule.title}")
            return title or self.name, incumbent
        if self._serving and (functions := self._serving.functions(key)):
            served, header = self._serving.answer(key), functions[0].table.header

            def choice(shape: Shape) -> Config | None:
                config = served(*shape)
                return default(shape) if config is None else read_config(key.operator, config.to_json())

            if any(choice(shape) != choose(tree, shape, matrix.axes) for shape in matrix.problems):
                return f"the {'portable table' if header.portable else f'table for {header.gpu}'}", choice
        smallest = Problem.at(key, matrix.problems[0])
        library = next((rule for rule in RULES.values() if rule.choose(smallest, self.target)), None)
        if library and (answer := Incumbents({}, library).of(key, self.target)):
            return f"the rule of {library.title}", answer
        return DEFAULT_RULE.title if spec.kernel_calls else "", default

    @cached_property
    def _serving(self) -> TableSelection | None:
        with suppress(UsageError):  # dispatch reports a table that cannot be used
            return locate.select(self.device.name, self.device.target, self.device.sms)
        return None
