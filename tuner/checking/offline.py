"""Check of a table against its data and its kernels, without a GPU.

In: the path of a table. Out: `CheckedTable`: failures, stale kernels, and notes.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.options import MOST_LEAVES
from normtune.heuristics.regret.legality import Legality, Registered, is_known_to_fit, registered
from normtune.heuristics.solver.row_classes import RowClasses
from normtune.heuristics.writing import named_files
from normtune.heuristics.writing.entries import comment, decisions, ends
from normtune.heuristics.writing.regenerate import command_of
from normtune.kernels.key import Key
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import UNPAIRED, Header, comment_of, is_edited, parse
from normtune.kernels.tablefile.parse import trees
from normtune.kernels.tablefile.syntax import statements
from normtune.kernels.tablefile.tree import Tree
from normtune.kernels.target import relatives, target_for
from normtune.tuner.staleness.table import changed_kernels

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence
    from normtune.results.exchange.recorded_code import RecordedCode

# Name and evidence of the data behind a table; None if its command names a store.
LoadEvidence = Callable[[], "tuple[str, Evidence] | None"]
_DIFF_LINES = 24
# Seconds after which a damaged table is read again.
_MOMENT = 0.2
# The most compared lines, over twice those of shipped tables: the time of a comparison grows with their square.
_MOST_LINES = 5000


class CheckedTable(NamedTuple):
    """Result of a check; each entry is a line or a short diff.

    Attributes:
        failures: reasons not to use or commit the table.
        stale: kernels that changed since the measurements.
        notes: on the checks that were made, and those that were impossible.
    """

    failures: tuple[str, ...]
    stale: tuple[str, ...]
    notes: tuple[str, ...]


def check(
    path: Path,
    quick: bool = False,
    announce: Callable[[str], None] = lambda line: None,
) -> CheckedTable:
    """Check one table.

    The table must be unedited and equal to a fit of its data (if available), its kernels must be those that were
    measured, and each of its configs must be legal on its target at every shape of its regions.

    Args:
        path: of its file.
        quick: whether to skip the data, and read no other file.
        announce: receives a line before slow work.

    Raises:
        UsageError: the file cannot be read or is not a table.
    """
    text, header, body = _read(path)
    data = cache(partial(named_files.measured, header, path))  # loaded once, for the fit and for the comparison of code
    failures: list[str] = []
    notes: list[str] = []
    if is_edited(header, body):
        failures.append(
            f"it was edited by hand: its code does not match the hash in its facts; {_refit_advice(header)}"
        )
    if not _is_readable(header):
        failures.append(f"its command cannot be read: {_refit_advice(header)}")
    elif not _is_commented(header, text):
        failures.append(f"its first lines are not those that normtune writes for its facts; {_refit_advice(header)}")
    if header.data.unpaired:
        notes.append(f"its times are {UNPAIRED}: another program measured them, and their noise is unknown")
    if quick:
        notes.append("not fitted again, as --quick was given")
    else:
        failures += _against_data(header, text, path, data, notes, announce)
    failures += _legality(header, text, notes)
    with suppress(UsageError):  # code of another form, which is among the failures
        notes += ends(locate.load(path).measured)
    stale, lines = changed_kernels(header, text, None if quick else _timed(header, data))
    return CheckedTable(tuple(failures), tuple(stale), (*notes, *lines))


def stale_kernels(path: Path) -> tuple[list[str], list[str]]:
    """The lines of `check` about a table's kernels: those that are stale, and notes.

    Raises:
        UsageError: the file cannot be read or is not a table.
        NormtuneError: the digests of a recording are damaged, or code cannot be compiled at all.
    """
    text, header, _ = _read(path)
    return changed_kernels(header, text, _timed(header, partial(named_files.measured, header, path)))


def _read(path: Path, retries: bool = True) -> tuple[str, Header, str]:
    """The text of a table, its header and its body.

    With `retries` it is read again where it is damaged, because an editor may be writing it.

    Raises:
        NormtuneError: as `check`.
    """
    try:
        whole = locate.read(path)
        header, body = parse(whole, locate.quoted(path))
        lines = whole.split("\n")
        text = "\n".join(lines[comment_of(lines).start :])
    except NormtuneError:
        if not retries:
            raise
    else:
        if not (retries and is_edited(header, body)):
            return text, header, body
    sleep(_MOMENT)
    return _read(path, retries=False)


def _is_readable(header: Header) -> bool:
    try:
        return bool(command_of(header))
    except UsageError:
        return False


def _refit_advice(header: Header) -> str:
    if not _is_readable(header):
        return "fit it again, but not by its command"
    return f"`{command_of(header).line()}` in its folder writes it again"


def _against_data(
    header: Header, text: str, path: Path, load: LoadEvidence, notes: list[str], announce: Callable[[str], None]
) -> list[str]:
    from normtune.heuristics.fitting.pipeline import fit, used
    from normtune.heuristics.writing.emit import module_text

    try:
        command = command_of(header)
        options, decided = command.fit_options(), decisions(header)
        if any(not entry.donor and not 1 <= entry.figures.asked <= MOST_LEAVES for entry in decided.values()):
            raise UsageError(f"its functions need 1 to {MOST_LEAVES} leaves")
        data = load()
        if data is None:
            notes.append(
                "not fitted again: its command names a store and no file; --evidence of a fit writes the measurements "
                "beside a table"
            )
            return []
        source, evidence = data
        options = replace(options, weights=named_files.weights(options, path))
        in_use = named_files.baseline(options, path)
        count = len(used(evidence, options.operators, options.weights).frame)
        announce(
            f"{locate.quoted(path)}: fitting {count} measurements of {source} again to compare; --quick skips this"
        )
        refit = fit(
            evidence,
            options,
            incumbents=in_use,
            decisions=decided if options.leaves is not None else {},
        )
        expected = module_text(refit, command)
    except (NormtuneError, ValueError, OverflowError) as error:
        return [f"its data cannot be fitted as its command says: {error}"]
    return _compared(expected, text, header, source, notes, options.leaves is not None)


def _compared(
    expected: str, text: str, header: Header, source: str, notes: list[str], is_decided: bool = False
) -> list[str]:
    canonical = [_canonical(side) for side in (text, expected)]
    if canonical[0] == canonical[1]:
        alike = "byte for byte" if expected == text else "but for its formatting"
        limits = "; cross-validation and what shares a function are taken from its facts" if is_decided else ""
        notes.append(f"equal, {alike}, to a fit of {source}{limits}")
        return []
    table, refit = (side[:_MOST_LINES] for side in canonical)
    lines = difflib.unified_diff(table, refit, "this table", f"fit of {source}", lineterm="", n=1)
    excerpt = list(islice(lines, _DIFF_LINES + 1))
    if len(excerpt) > _DIFF_LINES:
        excerpt[-1] = "..."
    return ["\n".join([f"it differs from a fit of {source}; {_refit_advice(header)}", *excerpt])]


def _is_commented(header: Header, text: str) -> bool:
    """Whether a table has the comment at its top that normtune writes for its facts; False if there is none."""
    lines = text.split("\n")
    try:
        return "\n".join(lines[comment_of(lines)]) == comment(header)
    except UsageError:
        return False


def _canonical(text: str) -> list[str]:
    """The lines of a table, independent of its formatter."""
    header, body = parse(text, "the table")
    return [*statements(body), *header._replace(body="").text().splitlines()]


def _timed(header: Header, load: LoadEvidence) -> "Iterator[tuple[RecordedCode, Evidence]]":
    """The measurements behind a table, by device, with the digests of their code.

    Nothing if its command names a store, or a file that cannot be read, which is reported elsewhere.
    """
    from normtune.results.exchange.recorded_code import code_of
    from normtune.results.exchange.recording import load_recording, recorded_code
    from normtune.results.source import is_recording

    try:
        store = command_of(header).store
        name = store if is_recording(store) else ""
        data = None if name else load()
        recording = load_recording(name, None) if name else None
    except NormtuneError:
        return
    if recording:
        yield recorded_code(name), recording
    if data is not None:
        for device in data[1].devices():
            measured = data[1].of(device).current()
            yield code_of(measured), measured


def _legality(header: Header, text: str, notes: list[str]) -> list[str]:
    try:
        target = target_for(header.target, header.sms)
        functions = trees(text)
        measured = decisions(header)
        others, where = (relatives(target), "a known target") if header.portable else ((), header.target)
    except (NormtuneError, ValueError) as error:
        return [str(error)]
    failures = []
    for key, tree, registration in _registered(functions, notes):
        alike = [one.dtype for one in measured if one._replace(dtype=key.dtype) == key]
        if alike and not is_known_to_fit(registration.spec, key.dtype, alike):
            failures.append(
                f"{key}: it was not measured, and configs of {', '.join(alike)} may need more shared memory in "
                f"{key.dtype} than {header.target} has: measure it, or declare `legal`; {_refit_advice(header)}"
            )
        legality = Legality(registration.spec, target, [key.dtype], registration.variants, others)
        if key.is_batch_invariant:
            failures += [
                f"{key}: its configs sum a row of {least} to {most} elements in several orders"
                for _, least, most in RowClasses(legality).mixed(tree)
            ]
        failures += [
            f"{key}: {config} is illegal on {where} at {box[0].most} rows of {box[1].most}, where the table has it"
            for config, box in legality.breaches(tree)
        ]
    return failures


def _registered(functions: Mapping[Key, Tree], notes: list[str]) -> Iterator[tuple[Key, Tree, Registered]]:
    """The functions of registered operators; `notes` gets a note on each other function."""
    for key, tree in functions.items():
        if registration := registered(key):
            yield key, tree, registration
        else:
            notes.append(f"{key} is not registered here: its configs were not checked")
