"""Changes of a table's kernels since it was measured.

In: a table's header and text, its measurements, and a function that compares compiled code. Out: a line for each
operator whose kernels changed, and notes. The compiled code of the table's configs decides if it can be compared, else
the sources.
"""

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING

from normtune.kernels.fingerprint import is_current
from normtune.kernels.operator import operators
from normtune.kernels.problem import split_batch_invariant, split_key
from normtune.kernels.tablefile.header import Header
from normtune.kernels.tablefile.parse import normalised_trees, trees
from normtune.kernels.tablefile.relative_tree import choose_on
from normtune.kernels.tablefile.tree import choose

if TYPE_CHECKING:
    from normtune.kernels.config import Config
    from normtune.kernels.problem import Problem
    from normtune.results.evidence import Evidence
    from normtune.results.exchange.recorded_code import Cell, CodeChange, RecordedCode

# Measurements behind a table, of one device, and the digests of their code.
RecordedEvidence = tuple["RecordedCode | None", "Evidence"]
# Compares the code of cells with the launches of the present sources: (digests, measurements, cells).
Comparing = Callable[["RecordedCode | None", "Evidence", Collection["Cell"]], "CodeChange"]
# Number of changed configs in a message.
_NAMED = 5
_UNCHANGED = "its kernels are those that were measured"


def changed_kernels(
    header: Header, text: str, notes: list[str], timed: Iterable[RecordedEvidence], compare: Comparing | None
) -> list[str]:
    """A line for each operator whose kernels changed since a table was measured.

    Args:
        header: of the table.
        text: of the table.
        notes: extended by a line on the comparison.
        timed: the measurements; where there are none the kernels' sources decide.
        compare: compares compiled code; without it the kernels' sources decide.

    Raises:
        NormtuneError: code cannot be compiled at all, or `timed` raises it.
    """
    specs = operators()
    changed = [name for name, known in header.kernels.items() if name in specs and not is_current(specs[name], known)]
    measured = [] if compare is None else list(timed)
    if compare is None:
        why = "code is compared without --quick"
    elif not measured:
        why = "its measurements are not at hand"
    else:
        differences = [_difference(*one, header, text, compare) for one in measured]
        why = "; ".join(dict.fromkeys(difference.undecided for _, difference in differences if difference.undecided))
        if not why:
            kernels = {pair for _, evidence in measured for pair in evidence.fingerprints().items()}
            changed = [name for name in changed if (name, header.kernels[name]) not in kernels]  # measured elsewhere
            if not changed or any(difference.suspects for _, difference in differences):
                return [*_by_code(differences, notes), *map(_stale_by_source, changed)]
            why = "its measurements are of other kernels than its header says"
    if not changed:
        notes.append(_UNCHANGED)
        return []
    notes.append(f"whether their compiled code changed is not known: {why}")
    return [*map(_stale_by_source, changed)]


def _stale_by_source(name: str) -> str:
    return f"the kernels of {name} changed since they were measured: `normtune sweep --stale`, then fit"


def _difference(
    code: "RecordedCode | None", evidence: "Evidence", header: Header, text: str, compare: Comparing
) -> "tuple[Collection[Cell], CodeChange]":
    """The table's cells in its measurements, and the result of comparing their code."""
    from normtune.results.exchange.recorded_code import cell_of, pairs_of

    (device,) = evidence.devices()
    if header.is_for_any_gpu:
        relative = normalised_trees(text)
        answers = {
            entry: partial(choose_on, tree, sms=device.sms, l2_bytes=device.l2_bytes)
            for entry, tree in relative.items()
        }
    else:
        answers = {entry: partial(choose, tree) for entry, tree in trees(text).items()}
    configs: dict[Problem, set[Config]] = {}
    for problem, config in pairs_of(evidence):
        configs.setdefault(problem, set()).add(config)
    cells = set()
    for (key, dtype), answer in answers.items():
        kind = (*split_key(split_batch_invariant(key)[0]), dtype)
        for problem in configs:
            if (problem.operator, problem.variant, problem.dtype) == kind:
                config = answer(rows=problem.rows, hidden=problem.hidden)
                if config in configs[problem]:
                    cells.add(cell_of(problem, config))
    return cells, compare(code, evidence, cells)


def _by_code(differences: "list[tuple[Collection[Cell], CodeChange]]", notes: list[str]) -> list[str]:
    stale = []
    suspects = sorted({name for _, difference in differences for name in difference.suspects})
    for name in suspects:
        configs = {cell.config for cells, _ in differences for cell in cells if cell.operator == name}
        changed = sorted(
            {cell.config for _, difference in differences for cell in difference.changed if cell.operator == name}
        )
        if not changed:
            notes.append(
                f"the sources of the kernels of {name} changed since they were measured, the compiled code of the "
                f"table's {len(configs)} configs did not"
            )
            continue
        named = "; ".join(map(str, changed[:_NAMED])) + ("; ..." if len(changed) > _NAMED else "")
        stale.append(
            f"the compiled code of {len(changed)} of the table's {len(configs)} configs of {name} changed since they "
            f"were measured ({named}): `normtune sweep --stale`, then fit"
        )
    if not suspects:
        notes.append(_UNCHANGED)
    return stale
