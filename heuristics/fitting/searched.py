"""How much of its space a table's data were chosen from, and what an audit of the rest found.

In: the runs of the evidence, whose protocols say what was searched; the matrix and the tree of a function. Out: a line
for the header of the table; none where every config was timed. What a protocol says is checked: the file may be of
somebody else.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.kernels.config import COPY, Config
from normtune.kernels.operator import read_config
from normtune.kernels.problem import AXES, Shape
from normtune.kernels.tablefile.tree import Tree, choose
from normtune.results.records import SEARCHED, Run

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

_COPY = COPY.to_json()
_MOST = 10**9


class _SearchedFunction(NamedTuple):
    """What a run searched of one function: see `tuner.search.audit.Audited.report`."""

    strategy: str
    pairs: int
    audited: list[tuple[Shape, Config]]
    missed: int | None


def searched(data: "Evidence", matrix: TimingMatrix, tree: Tree) -> str | None:
    """The line of a function: `rms_norm_forward bfloat16: plane, 31 % of 2123 configs, of 34 audited ...`."""
    entries = [entry for run in data.runs if (entry := _entry(run, matrix))]
    if not entries:
        return None
    widest = max(entries, key=lambda entry: entry.pairs)  # the last of a store may be of a few shapes
    part = data.part(matrix.key)
    tried = part.loc[part["config"] != _COPY, [*AXES, "config"]].drop_duplicates()
    share = round(100 * min(1.0, len(tried) / widest.pairs))
    names = " and ".join(sorted({entry.strategy for entry in entries}))
    gains = [*_gains(matrix, tree, {pair for entry in entries for pair in entry.audited})]
    faster = [gain for gain in gains if gain > 0]
    said = f"{len(faster)} {'was' if len(faster) == 1 else 'were'} faster than the choice"
    parts = [
        f"{matrix.key}: {names}, {share} % of {widest.pairs} configs",
        *([f"of {len(gains)} audited, {said}"] if gains else ["none audited"]),
        *([f"by at most {percent(max(faster), 1)}"] if faster else []),
        *([f"expected to have missed {percent(widest.missed)}"] if widest.missed is not None else []),
    ]
    return ", ".join(parts)


def _gains(matrix: TimingMatrix, tree: Tree, audited: set[tuple[Shape, Config]]) -> Iterator[int]:
    """By how much each audited config is faster than the tree's choice, millionths of a logarithm; failed ones by 0.

    Where it is the choice itself, than the best config of the shape that was not audited there.
    """
    places = {shape: place for place, shape in enumerate(matrix.problems)}
    for shape, config in sorted(audited):
        if shape not in places:
            continue
        place, choice = places[shape], choose(tree, shape)
        loss, rest = matrix.loss(place, config), matrix.loss(place, choice)
        if choice == config:
            others = (one for one in matrix.configs if (shape, one) not in audited)
            rest = min((one for other in others if (one := matrix.loss(place, other)) is not None), default=None)
        yield 0 if loss is None or rest is None else rest - loss


def _entry(run: Run, matrix: TimingMatrix) -> _SearchedFunction | None:
    """What a run says of a function; None if it says nothing, or what normtune does not write."""
    of_run = run.protocol.get(SEARCHED)
    match of_run.get(str(matrix.key)) if isinstance(of_run, dict) else None:
        case {"pairs": int(pairs), "audited": list(audited), "missed": None | int() as missed}:
            strategy = run.protocol.get("strategy")
            if not 0 < pairs < _MOST or not isinstance(strategy, str) or not strategy.isidentifier():
                return None
            if missed is not None and not 0 <= missed < _MOST:
                return None
            found = [_pair(matrix.key.operator, one) for one in audited]
            return _SearchedFunction(strategy, pairs, [one for one in found if one], missed)
    return None


def _pair(operator: str, text: Any) -> tuple[Shape, Config] | None:
    match text:
        case [int(first), int(second), str(config)]:
            try:
                return (first, second), read_config(operator, config)
            except ValueError:
                return None
    return None
