"""Changes of a table's kernels since it was measured.

In: a table's header and text, its measurements and the digests of their code. Out: a line for each operator whose
kernels changed, and notes. Only the code of the table's configs is compared.
"""

from collections.abc import Collection, Iterable
from functools import partial

from normtune.errors import NormtuneError
from normtune.kernels.config import Config
from normtune.kernels.fingerprint import UNKNOWN, changed, unnoticed
from normtune.kernels.problem import Problem, axes_of, function_key, function_operator
from normtune.kernels.tablefile.header import Header
from normtune.kernels.tablefile.parse import trees
from normtune.kernels.tablefile.tree import choose
from normtune.results.evidence import Evidence
from normtune.results.exchange.recorded_code import Cell, RecordedCode, cell_of, pairs_of
from normtune.tuner.staleness.recorded import CodeChange, difference

# Number of changed configs in a message.
_NAMED = 5
_UNCHANGED = "its kernels are those that were measured"


def changed_kernels(
    header: Header, text: str, timed: Iterable[tuple[RecordedCode, Evidence]] | None
) -> tuple[list[str], list[str]]:
    """A line for each operator whose kernels changed since a table was measured, and notes on the comparison.

    Args:
        header: of the table.
        text: of the table.
        timed: its measurements, of one device each, with the digests of their code; None to compare only sources.

    Raises:
        NormtuneError: code cannot be compiled at all, or `timed` raises it.
    """
    unknown = [name for name, fingerprint in header.kernels.items() if fingerprint == UNKNOWN]
    foreign = [f"which kernels of {', '.join(unknown)} were measured is not known"] if unknown else []
    if len(unknown) == len(header.kernels):
        return [], foreign
    doubts = unnoticed(header.kernels)
    unchanged = doubts or [_UNCHANGED]
    names = changed(header.kernels)
    measured = list(timed or ())
    reason = "code is compared without --quick" if timed is None else "its measurements are not available"
    try:
        cells = [cells_of(text, evidence) for _, evidence in measured]
    except NormtuneError as error:  # a check reports it as a failure
        measured, reason = [], str(error)
    if measured:
        changes = [difference(code, evidence, part) for (code, evidence), part in zip(measured, cells, strict=True)]
        reason = "; ".join(dict.fromkeys(change.undecided for change in changes if change.undecided))
        if not reason:
            kernels = {
                (function_operator(name), mark)
                for _, evidence in measured
                for name, mark in evidence.fingerprints().items()
            }
            names = [name for name in names if (name, header.kernels[name]) not in kernels]  # measured elsewhere
            if not names or any(change.suspects for change in changes):
                stale, notes = _by_code(set().union(*cells), changes, unchanged)
                return [*stale, *map(_stale_by_source, names)], [*foreign, *notes]
            reason = "its measurements are of other kernels than those in its facts"
    if not names:
        return [], [*foreign, *unchanged]
    return [*map(_stale_by_source, names)], [*foreign, f"whether their compiled code changed is not known: {reason}"]


def _stale_by_source(name: str) -> str:
    return f"the kernels of {name} changed since they were measured: sweep with --stale, then fit"


def cells_of(text: str, evidence: Evidence) -> set[Cell]:
    """The measured cells of a table's configs."""
    answers = {key: partial(choose, tree, axes=axes_of(key.family)) for key, tree in trees(text).items()}
    configs: dict[Problem, set[Config]] = {}
    for problem, config in pairs_of(evidence):
        configs.setdefault(problem, set()).add(config)
    cells = set()
    for key, answer in answers.items():
        for problem in configs:
            if function_key(problem.key) == key.usual:
                config = answer(problem.function_shape)
                if config in configs[problem]:
                    cells.add(cell_of(problem, config))
    return cells


def _by_code(
    cells: Collection[Cell], changes: Collection[CodeChange], unchanged: list[str]
) -> tuple[list[str], list[str]]:
    stale, notes = [], []
    of_table = {cell.key.operator for cell in cells}  # a recording may have more
    suspects = sorted({name for change in changes for name in change.suspects if name in of_table})
    for name in suspects:
        configs = {cell.config for cell in cells if cell.key.operator == name}
        others = sorted({cell.config for change in changes for cell in change.changed if cell.key.operator == name})
        if not others:
            notes.append(
                f"the sources of the kernels of {name} changed since they were measured, the compiled code of the "
                f"table's {len(configs)} configs did not"
            )
            continue
        named = "; ".join(map(str, others[:_NAMED])) + ("; ..." if len(others) > _NAMED else "")
        stale.append(
            f"the compiled code of {len(others)} of the table's {len(configs)} configs of {name} changed since they "
            f"were measured ({named}): sweep with --stale, then fit"
        )
    return stale, notes if suspects else unchanged
