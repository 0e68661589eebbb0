"""The compiled code behind measurements: digests that came with them, or those in a small file beside a recording.

In: measurements, with the digest of the code of each, or a recording and its file. Out: `RecordedCode`. Digests of all
measurements would take as much room as a recording, so its file has one for each cell: a config at a hidden size, with
all numbers of rows. Making digests and comparing them is left to the tuner.
"""

import base64
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from normtune.errors import NormtuneError
from normtune.kernels.config import COPY, Config
from normtune.kernels.operator import AnyLaunch, read_config
from normtune.kernels.problem import Problem
from normtune.results.atomic import replaced
from normtune.results.evidence import Evidence
from normtune.results.exchange import recording
from normtune.results.paths import unreadable
from normtune.results.records import TimedCode, launch_digest

_FORMAT = 1
# Two different codes have equal digests once in 3e14.
_BYTES = 6


class Cell(NamedTuple):
    """A config on all recorded problems that differ in their rows alone."""

    operator: str
    variant: str
    dtype: str
    hidden: int
    config: Config


class RecordedCode(NamedTuple):
    """What was launched when measurements were taken.

    Attributes:
        triton: the version whose frontend made the digests.
        fingerprints: of the kernels of each operator, as in the measurements.
        launches: digest of all launches of each operator, where they are known: the quick look at what no fingerprint
            covers.
        cells: digest of the code of each cell of which it is known.
    """

    triton: str
    fingerprints: dict[str, str]
    launches: dict[str, str]
    cells: dict[Cell, bytes]


class CodeChange(NamedTuple):
    """What became of the code of measurements.

    Attributes:
        suspects: operators whose sources or launches changed.
        changed: of the cells that were asked for, those whose code did.
        undecided: why code could not be compared; empty where it was, or where nothing is suspect.
    """

    suspects: tuple[str, ...]
    changed: tuple[Cell, ...] = ()
    undecided: str = ""


def cell_of(problem: Problem, config: Config) -> Cell:
    """The cell of a config on a problem."""
    return Cell(problem.operator, problem.variant, problem.dtype, problem.hidden, config)


def pairs_of(evidence: Evidence) -> list[tuple[Problem, Config]]:
    """The measured problems and configs, ordered; the copy is none."""
    columns = ["operator", "rows", "hidden", "dtype", "variant", "config"]
    found = evidence.frame[columns].drop_duplicates().itertuples(index=False, name=None)
    known = cache(read_config)
    pairs = [(Problem(*values), known(values[0], text)) for *values, text in found]
    return sorted(pair for pair in pairs if pair[1] != COPY)


def launches_digest(launches: Iterable[AnyLaunch | None]) -> str:
    """The digest of the launches of an operator, in the order of `pairs_of`; None stands for an illegal one."""
    return _joined(launch_digest(one) if one else b"-" for one in launches)


def _joined(launches: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(launches)).hexdigest()


def cell_digest(codes: Iterable[bytes]) -> bytes:
    """The digest of a cell, of those of its launches by rows."""
    return hashlib.sha256(b"".join(codes)).digest()[:_BYTES]


def path_of(name: str) -> Path:
    """The file of the digests of a recording."""
    return recording.FOLDER / f"{name}.code.json"


def write(code: RecordedCode, path: Path) -> None:
    """Write digests; `read` needs the recording besides.

    Raises:
        NormtuneError: the file cannot be written.
    """
    lines: dict[str, bytes] = {}
    for cell in sorted(code.cells):
        lines[_line(cell)] = lines.get(_line(cell), b"") + code.cells[cell]
    cells = {line: base64.b64encode(digests).decode() for line, digests in lines.items()}
    with replaced(path) as temporary:
        temporary.write_text(json.dumps({"format": _FORMAT, **code._asdict(), "cells": cells}, indent=0) + "\n")


def of(evidence: Evidence) -> RecordedCode | None:
    """The digests that came with measurements; None where there are none. Those of the newest Triton count."""
    codes = evidence.codes()
    if not codes:
        return None
    triton = next(reversed(codes.values()))[0]
    launches: dict[str, list[bytes]] = {}
    cells: dict[Cell, list[bytes]] = {}
    for pair in pairs_of(evidence):
        version, code = codes.get(pair, ("", TimedCode(b"")))
        launches.setdefault(pair[0].operator, []).append(code.launch)
        cells.setdefault(cell_of(*pair), []).append(code.code if version == triton else b"")
    return RecordedCode(
        triton,
        evidence.fingerprints(),
        {name: _joined(digests) for name, digests in launches.items() if all(digests)},
        {cell: cell_digest(digests) for cell, digests in cells.items() if all(digests)},
    )


def read(name: str, evidence: Evidence) -> RecordedCode | None:
    """The digests of a recording; None where it has none that are of these measurements.

    Args:
        name: of the recording.
        evidence: the recording.

    Raises:
        NormtuneError: the file is damaged.
    """
    path = path_of(name)
    if unreadable(path):
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
        texts = {line: base64.b64decode(text, validate=True) for line, text in found["cells"].items()}
        if found["format"] != _FORMAT or found["fingerprints"] != evidence.fingerprints():
            return None
        cells: dict[Cell, bytes] = {}
        for cell in sorted({cell_of(*pair) for pair in pairs_of(evidence)}):
            line = _line(cell)
            digests = texts.get(line, b"")
            cells[cell], texts[line] = digests[:_BYTES], digests[_BYTES:]
        if any(texts.values()) or not all(len(digest) == _BYTES for digest in cells.values()):
            return None
        return RecordedCode(str(found["triton"]), found["fingerprints"], dict(found["launches"]), cells)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NormtuneError(f"{path} is damaged ({error}): restore it from the distribution of normtune") from None


def _line(cell: Cell) -> str:
    return " ".join(map(str, filter(None, cell[:4])))
