"""Loss of a forward and its backward together, as a module in training runs them.

A mean of ratios weights a launch of 2 us as much as one of 2 ms. Here each problem is also weighted by its time: the
slowdown is the sum of w (t_f exp r_f + t_b exp r_b) over the sum of w (t_f + t_b), with t the time of the best config,
r the log-regret of the chosen config, and w the sum of the weights of a shape's two problems. The operators of a pair
are `NAME_forward` and `NAME_backward`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.fitting.figures import RuleAt
from normtune.heuristics.regret.best_times import best_times
from normtune.heuristics.regret.fixed_log import MILLION, percent
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.kernels.key import Key
from normtune.kernels.problem import Shape
from normtune.kernels.tablefile.tree import Tree, choose

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

FORWARD, BACKWARD = "_forward", "_backward"


class OneFunction(NamedTuple):
    """A plain operator in one dtype.

    Attributes:
        matrix: of P problems.
        best: int64 (P,), ns, the time of each problem's best config.
        tree: of the operator's function.
    """

    matrix: TimingMatrix
    best: NDArray[np.int64]
    tree: Tree


class Together(NamedTuple):
    """Loss of a forward and its backward together, log-slowdowns in log_ppm.

    Attributes:
        name: common part of the two operators' names.
        dtype: of both.
        loss: of the table.
        rule: of the rule; None if it has no time on any shape measured for both.
        shapes: number of shapes.
    """

    name: str
    dtype: str
    loss: int
    rule: int | None
    shapes: int


def sides_of(evidence: "Evidence", matrices: Sequence[TimingMatrix], trees: Mapping[Key, Tree]) -> list[OneFunction]:
    """The plain functions of an operator whose other pass was also measured; `trees` has a tree for each plain key."""
    measured = {key.operator for key in evidence.measured_keys()}
    return [
        OneFunction(matrix, best_times(evidence, matrix).best, trees[matrix.key])
        for matrix in matrices
        if _other(matrix.key.operator) in measured and matrix.key in trees
    ]


def together(sides: Sequence[OneFunction], rule: RuleAt) -> list[Together]:
    """The figures of all pairs, by name, then in the order of the forwards.

    `sides` has each operator and dtype at most once. The rule is scored on the shapes at which it has times.
    """
    by_name = {(side.matrix.key.operator, side.matrix.key.dtype): side for side in sides}
    pairs = []
    for (operator, dtype), forward in by_name.items():
        backward = by_name.get((_other(operator) or "", dtype))
        if not operator.endswith(FORWARD) or backward is None:
            continue
        table = [
            _times(side, lambda _, *shape, side=side: choose(side.tree, shape, side.matrix.axes))
            for side in (forward, backward)
        ]
        loss, shapes = _slowdown(*table)
        by_rule, _ = _slowdown(*(_times(side, rule) for side in (forward, backward)))
        if loss is not None:
            pairs.append(Together(operator.removesuffix(FORWARD), dtype, loss, by_rule, shapes))
    return sorted(pairs, key=lambda pair: pair.name)


def lines(pairs: Sequence[Together], rule: str) -> Iterable[str]:
    """The lines of `fit` about one table; `rule` is the rule's name."""
    if pairs:
        yield f"Loss of forward and backward of one call together ({rule}: its rule):"
    for pair in pairs:
        shapes = f"{pair.shapes} shape{'s' * (pair.shapes != 1)}"
        by_rule = "" if pair.rule is None else f", {rule} {percent(pair.rule)}"
        yield f"  {pair.name} {pair.dtype}: {percent(pair.loss)}{by_rule}, on {shapes}"


def _other(operator: str) -> str | None:
    """The backward of a forward, and the reverse; None for any other operator."""
    for suffix, other in ((FORWARD, BACKWARD), (BACKWARD, FORWARD)):
        if operator.endswith(suffix):
            return operator.removesuffix(suffix) + other
    return None


# By shape: weight, best time, and time of the choice, ns.
_Times = dict[Shape, tuple[int, int, float]]


def _times(side: OneFunction, chosen: RuleAt) -> _Times:
    matrix = side.matrix
    times: _Times = {}
    for index, shape in enumerate(matrix.problems):
        config = chosen(matrix.key.operator, *shape)
        regret = None if config is None else matrix.loss(index, config)
        if regret is not None:
            best = int(side.best[index])
            times[shape] = int(matrix.weight[index]), best, best * math.exp(regret / MILLION)
    return times


def _slowdown(forward: _Times, backward: _Times) -> tuple[int | None, int]:
    """The log-slowdown over the common shapes, log_ppm (None if their weights are all 0), and their number."""
    shapes = sorted(set(forward) & set(backward))
    weights = [forward[shape][0] + backward[shape][0] for shape in shapes]
    best = sum(weight * (forward[s][1] + backward[s][1]) for weight, s in zip(weights, shapes, strict=True))
    taken = sum(weight * (forward[s][2] + backward[s][2]) for weight, s in zip(weights, shapes, strict=True))
    return (round(MILLION * math.log(taken / best)) if best else None), len(shapes)
