"""Measurements of a recording or an exported file, compared with the code that the present kernels launch.

In: measurements with the digests of their code, or the file of digests beside a recording, and the cells to compare.
Out: `CodeChange`: the cells whose code changed, or the reason why that cannot be decided. The file of a recording has a
digest per cell, a config at one hidden size and all numbers of rows: one per measurement would double its size.
"""

import base64
import hashlib
import json
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from normtune.errors import NormtuneError
from normtune.kernels.config import COPY, Config
from normtune.kernels.fingerprint import changed
from normtune.kernels.key import Key
from normtune.kernels.operator import find, operator, read_config
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target, target_for
from normtune.results.atomic import replaced
from normtune.results.evidence import Evidence
from normtune.results.exchange import recording
from normtune.results.paths import unreadable
from normtune.results.records import launch_digest
from normtune.tuner.compiling.pool import UNDIGESTED, codes_of
from normtune.tuner.staleness.code import triton_version

_FORMAT = 1
# Different codes have equal digests once in 3e14.
_BYTES = 6


class Cell(NamedTuple):
    """A config on all recorded problems that differ only in their rows."""

    key: Key
    hidden: int
    config: Config


class RecordedCode(NamedTuple):
    """Digests of the code that was launched when measurements were taken.

    Attributes:
        triton: version of Triton that computed the digests.
        fingerprints: of the kernels of each operator, as in the measurements.
        launches: digest of all launches of each operator, if they are known; it also depends on sources that are not
            part of a fingerprint.
        cells: digest of the code of each cell, if it is known.
    """

    triton: str
    fingerprints: dict[str, str]
    launches: dict[str, str]
    cells: dict[Cell, bytes]


class CodeChange(NamedTuple):
    """Result of comparing the code of measurements with the present code.

    Attributes:
        suspects: operators whose sources or launches changed.
        changed: the compared cells whose code changed.
        undecided: why code could not be compared; empty if it was compared, or if no operator is suspect.
    """

    suspects: tuple[str, ...]
    changed: tuple[Cell, ...] = ()
    undecided: str = ""


def cell_of(problem: Problem, config: Config) -> Cell:
    """The cell of a config on a problem."""
    return Cell(problem.key, problem.hidden, config)


def pairs_of(evidence: Evidence) -> list[tuple[Problem, Config]]:
    """The measured (problem, config) pairs, ordered, without the copy."""
    columns = ["operator", "rows", "hidden", "dtype", "variant", "config"]
    rows = evidence.frame[columns].drop_duplicates().itertuples(index=False, name=None)
    read_once = cache(read_config)
    pairs = [(Problem.of(*values), read_once(values[0], text)) for *values, text in rows]
    return sorted((pair for pair in pairs if pair[1] != COPY), key=lambda pair: (pair[0].columns, pair[1]))


def difference(code: RecordedCode | None, evidence: Evidence, cells: Collection[Cell]) -> CodeChange:
    """Compare cells of measurements with the launches of the present sources.

    Args:
        code: the digests of the measurements; None if there are none.
        evidence: the measurements, of one device.
        cells: the cells to compare.

    Raises:
        NormtuneError: no process that compiles can start.
    """
    fingerprints, target, pairs = evidence.fingerprints(), _target(evidence), pairs_of(evidence)
    by_sources = changed(fingerprints)
    launches = {name: digest for name, digest in code.launches.items() if find(name)} if code else {}
    suspects = tuple(
        name
        for name in fingerprints
        if name in by_sources or (name in launches and launches[name] != _launches(name, pairs, target))
    )
    if not suspects:
        return CodeChange(())
    of_suspects = {cell for cell in cells if cell.key.operator in suspects}
    digests: dict[Cell, bytes] = {}
    if not (reason := _undecidable(code, of_suspects)):
        digests = _digests([pair for pair in pairs if cell_of(*pair) in of_suspects], target)
        reason = UNDIGESTED if b"" in digests.values() else ""
    if reason:
        return CodeChange(tuple(by_sources), undecided=reason if by_sources else "")
    assert code is not None
    return CodeChange(suspects, tuple(sorted(cell for cell in of_suspects if digests.get(cell) != code.cells[cell])))


def of(evidence: Evidence) -> RecordedCode | None:
    """The digests that are stored with measurements, of the newest Triton; None without digests."""
    codes = evidence.codes()
    if not codes:
        return None
    triton = next(reversed(codes.values()))[0]
    pairs = pairs_of(evidence)
    launches: dict[str, list[bytes]] = {}
    for pair in pairs:
        launches.setdefault(pair[0].operator, []).append(codes[pair][1].launch if pair in codes else b"")
    digests_of = {pair: timed.code for pair, (version, timed) in codes.items() if version == triton}
    return RecordedCode(
        triton,
        evidence.fingerprints(),
        {name: _digest_of(digests) for name, digests in launches.items() if all(digests)},
        _cells((pair, digests_of.get(pair) or None) for pair in pairs),
    )


def record(evidence: Evidence) -> RecordedCode:
    """The digests of a recording, computed from the sources that it was measured with.

    Raises:
        NormtuneError: the present sources are others, or Triton refuses a kernel.
    """
    fingerprints, target, pairs = evidence.fingerprints(), _target(evidence), pairs_of(evidence)
    for name in changed(fingerprints):
        raise NormtuneError(f"the kernels of {name} changed since they were recorded: use the sources of that time")
    cells = _digests(pairs, target)
    if lacking := {cell_of(*pair) for pair in pairs} - {cell for cell, digest in cells.items() if digest}:
        raise NormtuneError(f"{len(lacking)} cells cannot be launched or compiled, {min(lacking)} among them")
    launches = {name: _launches(name, pairs, target) for name in fingerprints}
    return RecordedCode(triton_version(), fingerprints, launches, cells)


def path_of(name: str) -> Path:
    """The file of the digests of a recording."""
    return recording.FOLDER / f"{name}.code.json"


def write(code: RecordedCode, path: Path) -> None:
    """Write digests to a file, which `read` reads together with the recording.

    Raises:
        NormtuneError: the file cannot be written.
    """
    lines: dict[str, bytes] = {}
    for cell in sorted(code.cells):
        lines[_line(cell)] = lines.get(_line(cell), b"") + code.cells[cell]
    cells = {line: base64.b64encode(digests).decode() for line, digests in lines.items()}
    with replaced(path) as temporary:
        temporary.write_text(json.dumps({"format": _FORMAT, **code._asdict(), "cells": cells}, indent=0) + "\n")


def read(name: str, evidence: Evidence) -> RecordedCode | None:
    """The digests of a recording, from its name and measurements; None without digests of these measurements.

    Raises:
        NormtuneError: the file is damaged.
    """
    path = path_of(name)
    if unreadable(path):
        return None
    try:
        document = json.loads(path.read_text("utf-8"))
        texts = {line: base64.b64decode(text, validate=True) for line, text in document["cells"].items()}
        if document["format"] != _FORMAT or document["fingerprints"] != evidence.fingerprints():
            return None
        cells: dict[Cell, bytes] = {}
        for cell in sorted({cell_of(*pair) for pair in pairs_of(evidence)}):
            line = _line(cell)
            digests = texts.get(line, b"")
            cells[cell], texts[line] = digests[:_BYTES], digests[_BYTES:]
        if any(texts.values()) or not all(len(digest) == _BYTES for digest in cells.values()):
            return None
        return RecordedCode(str(document["triton"]), document["fingerprints"], dict(document["launches"]), cells)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NormtuneError(f"{path} is damaged ({error}): restore it from the distribution of normtune") from None


def _line(cell: Cell) -> str:
    return " ".join(filter(None, (*cell.key.columns, str(cell.hidden))))


def _undecidable(code: RecordedCode | None, cells: Collection[Cell]) -> str:
    present = triton_version()
    if code is None:
        return "the measurements have no digests of their code"
    if not present:
        return "triton, which compiles the kernels, is not installed"
    if present != code.triton:
        return f"the digests of their code are of Triton {code.triton}, here is {present}"
    if undigested := sum(cell not in code.cells for cell in cells):
        return (
            f"{undigested} of the table's {len(cells)} configs by hidden size were timed without a digest of their code"
        )
    return ""


def _target(evidence: Evidence) -> Target:
    (device,) = evidence.devices()
    return target_for(device.target, device.sms)


def _launches(name: str, pairs: Iterable[tuple[Problem, Config]], target: Target) -> str:
    """The digest of the launches of an operator, in the order of `pairs`."""
    launch_of = operator(name).launch_of
    launches = (launch_of(config, problem, target) for problem, config in pairs if problem.operator == name)
    return _digest_of(launch_digest(launch) if launch else b"-" for launch in launches)


def _digest_of(launches: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(launches)).hexdigest()


def _digests(pairs: Collection[tuple[Problem, Config]], target: Target) -> dict[Cell, bytes]:
    """The digests of cells with the present sources, from all of their pairs.

    A digest is empty if a pair has none; cells that cannot be launched or compiled are left out.
    """
    launches = {pair: operator(pair[0].operator).launch_of(pair[1], pair[0], target) for pair in pairs}
    codes = codes_of(((problem, launch) for (problem, _), launch in launches.items() if launch), target.name)
    code_of = {pair: codes.get((pair[0], launch)) if launch else None for pair, launch in launches.items()}
    return _cells((pair, code.code if code else None) for pair, code in code_of.items())


def _cells(digests: Iterable[tuple[tuple[Problem, Config], bytes | None]]) -> dict[Cell, bytes]:
    """The digest of each cell from those of its pairs by rows: empty if one is empty, left out if one is None."""
    cells: dict[Cell, list[bytes | None]] = {}
    for pair, digest in digests:
        cells.setdefault(cell_of(*pair), []).append(digest)
    return {
        cell: b"" if b"" in parts else hashlib.sha256(b"".join(filter(None, parts))).digest()[:_BYTES]
        for cell, parts in cells.items()
        if None not in parts
    }
