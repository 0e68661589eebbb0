"""The flips between two regimes of one device.

In: its measurements in each of two regimes. Out: for each operator, variant and dtype measured in both, what the best
configs of each do in the other, and what the tables fitted to each lose in the other.
"""

from typing import TYPE_CHECKING

from normtune.errors import NormtuneError
from normtune.heuristics.fitting.figures import Loss, summarise
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.regret.build import matrices_of
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.showing.flips import Shape, flips
from normtune.heuristics.showing.flips_report import Direction
from normtune.heuristics.tablefile.tree import Tree, choose

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence
    from normtune.results.records import Device

# Of the tables that are compared: as many as the committed ones have about, and no cross-validation to wait for.
LEAVES = 16


def directions(one: "Evidence", other: "Evidence", device: "Device") -> list[tuple[str, tuple[Direction, Direction]]]:
    """Name, and the directions there and back, of all that was measured in both regimes.

    Args:
        one: of one device, in one regime and with the newest kernels.
        other: the same in another regime.
        device: both are of.
    """
    names = one.runs[0].regime, other.runs[0].regime
    matrices = [{(m.key, m.dtype): m for m in matrices_of(part, device)[0]} for part in (one, other)]
    both = [key for key in matrices[0] if key in matrices[1]]
    tables = [_trees(part) for part in (one, other)]
    found = []
    for key in both:
        pair = matrices[0][key], matrices[1][key]
        common = set(pair[0].problems) & set(pair[1].problems)
        if not common:
            continue
        there, back = (
            Direction(
                names[place],
                names[1 - place],
                flips(pair[place], pair[1 - place]),
                _loss(pair[1 - place], tables[place].get(key), common),
                _loss(pair[1 - place], tables[1 - place].get(key), common),
            )
            for place in (0, 1)
        )
        found.append((" ".join(key), (there, back)))
    return found


def _trees(evidence: "Evidence") -> dict[tuple[str, str], Tree]:
    """The tree that a table has for each key and dtype that was measured; none where nothing can be fitted."""
    try:
        fitted = fit(evidence, FitOptions(leaves=LEAVES))
    except NormtuneError:  # of a single problem, for example
        return {}
    trees = {(one.key, one.dtype): one.tree for one in fitted.functions}
    return trees | {(one.key, one.dtype): trees[one.donor] for one in fitted.shared}


def _loss(matrix: TimingMatrix, tree: Tree | None, shapes: set[Shape]) -> Loss | None:
    """What a tree loses on some shapes of a matrix, each counted once."""
    if tree is None:
        return None
    places = [place for place, shape in enumerate(matrix.problems) if shape in shapes]
    return summarise([matrix.loss(place, choose(tree, *matrix.problems[place])) for place in places])
