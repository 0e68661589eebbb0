"""The share of a function's configs that a search timed, and the result of its audit of the others.

The protocol of a run describes its search; it is validated, because a store may be a stranger's. The result is a line
for the header of the table, or none if every config was timed.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.kernels.config import COPY, Config
from normtune.kernels.key import Key
from normtune.kernels.operator import read_config
from normtune.kernels.problem import AXES, Problem, Shape, function_key
from normtune.kernels.tablefile.tree import Tree, choose
from normtune.results.records import SEARCHED, Run

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

_COPY = COPY.to_json()
_MOST = 10**9


class _SearchedFunction(NamedTuple):
    """A run's search for one function: see `tuner.search.audit.Audited.report`."""

    strategy: str
    pairs: int
    audited: list[tuple[Shape, Config]]
    missed: int | None


def searched(data: "Evidence", matrix: TimingMatrix, tree: Tree) -> str | None:
    """The line of a function: `rms_norm_forward bfloat16: plane, 31 % of 2123 configs, of 34 audited ...`."""
    keys = [key for key in data.measured_keys() if matrix.key in (key, function_key(key))]
    entries = [entry for run in data.runs if (entry := _joined([_entry(run, key) for key in keys]))]
    if not entries:
        return None
    # The newest run may be of a few shapes only; of a search that was continued it knows most.
    widest = max(reversed(entries), key=lambda entry: entry.pairs)
    part = data.part(matrix.key)
    timed = part.loc[part["config"] != _COPY, ["operator", *AXES, "config"]].drop_duplicates()
    share = round(100 * min(1.0, len(timed) / widest.pairs))
    names = " and ".join(sorted({entry.strategy for entry in entries}))
    gains = [*_gains(matrix, tree, {pair for entry in entries for pair in entry.audited})]
    faster = [gain for gain in gains if gain > 0]
    result = f"{len(faster)} {'was' if len(faster) == 1 else 'were'} faster than the choice"
    parts = [
        f"{matrix.key}: {names}, {share} % of {widest.pairs} configs",
        *([f"of {len(gains)} audited, {result}"] if gains else ["none audited"]),
        *([f"by at most {percent(max(faster), 1)}"] if faster else []),
        *([f"expected to have missed {percent(widest.missed)}"] if widest.missed is not None else []),
    ]
    return ", ".join(parts)


def _gains(matrix: TimingMatrix, tree: Tree, audited: set[tuple[Shape, Config]]) -> Iterator[int]:
    """How much faster each audited config is than the tree's config, log_ppm; 0 for a failed one.

    The tree's own config is compared with the best config that was not audited at that shape.
    """
    indices = {shape: index for index, shape in enumerate(matrix.problems)}
    for shape, config in sorted(audited):
        if shape not in indices:
            continue
        index, choice = indices[shape], choose(tree, shape, matrix.axes)
        audited_loss, loss = matrix.loss(index, config), matrix.loss(index, choice)
        if choice == config:
            losses = (matrix.loss(index, other) for other in matrix.configs if (shape, other) not in audited)
            loss = min((known for known in losses if known is not None), default=None)
        yield 0 if audited_loss is None or loss is None else loss - audited_loss


def _joined(parts: Sequence[_SearchedFunction | None]) -> _SearchedFunction | None:
    """A run's search for all keys of a function, one for each third size; None if it did not search."""
    entries = [part for part in parts if part]
    if not entries:
        return None
    pairs = sum(entry.pairs for entry in entries)
    missed = sum(entry.pairs * (entry.missed or 0) for entry in entries) // pairs
    audited = [pair for entry in entries for pair in entry.audited]
    return _SearchedFunction(
        entries[0].strategy, pairs, audited, None if None in [entry.missed for entry in entries] else missed
    )


def _entry(run: Run, key: Key) -> _SearchedFunction | None:
    """A run's search for a key, from its protocol; None if the protocol has none, or an invalid one."""
    of_run = run.protocol.get(SEARCHED)
    match of_run.get(str(key)) if isinstance(of_run, dict) else None:
        case {"pairs": int(pairs), "audited": list(audited), "missed": None | int() as missed}:
            strategy = run.protocol.get("strategy")
            if not 0 < pairs < _MOST or not isinstance(strategy, str) or not strategy.isidentifier():
                return None
            if missed is not None and not 0 <= missed < _MOST:
                return None
            valid = [pair for entry in audited if (pair := _pair(key, entry))]
            return _SearchedFunction(strategy, pairs, valid, missed)
    return None


def _pair(key: Key, text: Any) -> tuple[Shape, Config] | None:
    match text:
        case [int(first), int(second), str(config)]:
            try:
                return Problem(key, first, second).function_shape, read_config(key.operator, config)
            except ValueError:
                return None
    return None
