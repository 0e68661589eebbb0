"""The flips between two regimes of one device.

In: its measurements in each of two regimes. Out: for each operator, variant and dtype measured in both, the flips in
both directions, and the losses of each regime's table in the other.
"""

from typing import TYPE_CHECKING, NamedTuple

from normtune.errors import NormtuneError
from normtune.heuristics.fitting.figures import Loss, summarise
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.regret.build import matrices_of
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.showing.flips import Shape, flips
from normtune.heuristics.showing.flips_report import Direction
from normtune.kernels.tablefile.tree import Tree, choose

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence
    from normtune.results.records import Device

# Leaves of the compared tables: about as many as the committed ones have, without the time of a cross-validation.
LEAVES = 16


class BothWays(NamedTuple):
    """The flips of one operator variant and dtype.

    Attributes:
        key, dtype: of it.
        directions: from the one regime to the other, and back.
    """

    key: str
    dtype: str
    directions: tuple[Direction, Direction]


def both_ways(one: "Evidence", other: "Evidence", device: "Device") -> list[BothWays]:
    """The flips of everything that was measured in both regimes.

    Args:
        one: of one device, in one regime and with the newest kernels.
        other: the same in another regime.
        device: of both.
    """
    names = one.runs[0].regime, other.runs[0].regime
    matrices = [{(m.key, m.dtype): m for m in matrices_of(part, device)[0]} for part in (one, other)]
    both = [key for key in matrices[0] if key in matrices[1]]
    tables = [_trees(part) for part in (one, other)]
    result = []
    for key in both:
        pair = matrices[0][key], matrices[1][key]
        common = set(pair[0].problems) & set(pair[1].problems)
        if not common:
            continue
        there, back = (
            Direction(
                names[index],
                names[1 - index],
                flips(pair[index], pair[1 - index]),
                _loss(pair[1 - index], tables[index].get(key), common),
                _loss(pair[1 - index], tables[1 - index].get(key), common),
            )
            for index in (0, 1)
        )
        result.append(BothWays(*key, (there, back)))
    return result


def _trees(evidence: "Evidence") -> dict[tuple[str, str], Tree]:
    """A table's tree for each measured key and dtype; empty if nothing can be fitted."""
    try:
        fitted = fit(evidence, FitOptions(leaves=LEAVES))
    except NormtuneError:  # of a single problem, for example
        return {}
    trees = {(function.key, function.dtype): function.tree for function in fitted.functions}
    return trees | {(function.key, function.dtype): trees[function.donor] for function in fitted.shared}


def _loss(matrix: TimingMatrix, tree: Tree | None, shapes: set[Shape]) -> Loss | None:
    """Loss of a tree on some shapes of a matrix, with equal weights."""
    if tree is None:
        return None
    indices = [index for index, shape in enumerate(matrix.problems) if shape in shapes]
    return summarise([matrix.loss(index, choose(tree, *matrix.problems[index])) for index in indices])
