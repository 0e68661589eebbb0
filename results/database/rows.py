"""A measurement as a row of a store, made from the columns of measurements, and converted to them again.

In: the columns of `Evidence.frame`. Out: `Row`s with their checksums, and columns. `reading` and `writing` take rows
from a database and put them there.
"""

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.results.columns import first_rounds, split
from normtune.results.records import TimedCode

# Those of `Problem.columns`.
PROBLEM_FIELDS = ("operator", "rows", "hidden", "dtype", "variant")
# Those of `records.TimedCode`.
CODE_FIELDS = ("launch", "code", "machine_code")


class Row(NamedTuple):
    """A measurement as `schema.measurement` has it, with the values of other tables in place of their numbers.

    Attributes:
        problem: its `PROBLEM_FIELDS`; empty if they are lost.
        config, fingerprint: as text; empty if they are lost.
        number: of the row, in the order stored.
        is_whole: False for a damaged row.
    """

    run: str
    problem: tuple[Any, ...]
    config: str
    first: int
    fingerprint: str
    revision: int
    status: str
    reason: str
    median: int | None
    samples: bytes
    rounds: bytes
    launch: bytes | None
    code: bytes | None
    machine_code: bytes | None
    number: int = 0
    is_whole: bool = True

    @property
    def key(self) -> tuple[Any, ...]:
        """What identifies it, in every store."""
        return self.run, self.problem, self.config, self.first

    @property
    def timed_code(self) -> TimedCode | None:
        """The launched code, if it is known."""
        return TimedCode(self.launch, self.code or b"", self.machine_code or b"") if self.launch else None


def rows_of(columns: Mapping[str, Sequence[Any]]) -> list[Row]:
    """The rows of measurements in the columns of `Evidence.frame`."""
    problems = zip(*(columns[name] for name in PROBLEM_FIELDS), strict=True)
    names = ("run", "config", "fingerprint", "status", "reason", "samples", "rounds", "code")
    firsts = first_rounds(columns["rounds"])
    rows = []
    for problem, first, run, config, fingerprint, status, reason, samples, rounds, code in zip(
        problems, firsts, *(columns[name] for name in names), strict=True
    ):
        times = sorted(samples.tolist())
        median = (times[(len(times) - 1) // 2] + times[len(times) // 2]) // 2 if times else None
        blobs = bytes_of(samples), implied(first, len(times), bytes_of(rounds))
        launch, digest, machine = code or (b"", b"", b"")
        digests = launch or None, digest or None, machine or None
        rows.append(Row(run, problem, config, first, fingerprint, 0, status, reason, median, *blobs, *digests))
    return rows


def columns_of_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """The columns of rows.

    Raises:
        ValueError: samples or rounds are no whole number of int32, or the fields of a problem are lost.
    """
    cells = dict(zip(Row._fields, zip(*rows, strict=True) if rows else repeat(()), strict=False))
    rounds = [row.rounds or consecutive(row.first, len(row.samples) // 4) for row in rows]
    problems = zip(*cells["problem"], strict=True) if rows else repeat(())
    return {
        **dict(zip(PROBLEM_FIELDS, problems, strict=False)),
        **{name: cells[name] for name in ("config", "run", "fingerprint", "status", "reason")},
        "rounds": arrays_of(rounds),
        "samples": arrays_of(cells["samples"]),
        "code": [row.timed_code for row in rows],
    }


def checksum(told: Sequence[Any], rounds: bytes, samples: bytes) -> int:
    """CRC-32 of a measurement with its run and problem.

    Args:
        told: id of the run, text of the problem, config, fingerprint, revision, status, reason, median, first round.
        rounds: as stored.
        samples: as stored.

    Raises:
        TypeError: damage changed the type of a value.
    """
    text = "\0".join(map(str, told))
    return zlib.crc32(samples, zlib.crc32(rounds, zlib.crc32(text.encode("utf-8", "surrogateescape"))))


def checksum_of(row: Row) -> int:
    """The checksum of a row."""
    told = row.fingerprint, row.revision, row.status, row.reason, row.median, row.first
    return checksum((row.run, problem_text(row.problem), row.config, *told), row.rounds, row.samples)


@lru_cache(maxsize=1 << 16)
def problem_text(values: tuple[Any, ...]) -> str:
    """The fields of a problem as one text."""
    return " ".join(map(str, values)) or "an unknown problem"


def implied(first: int, count: int, rounds: bytes) -> bytes:
    """Rounds as they are stored: none where they follow one another."""
    return b"" if rounds == consecutive(first, count) else rounds


@lru_cache(maxsize=4096)
def consecutive(first: int, count: int) -> bytes:
    """So many rounds that follow one another."""
    return bytes_of(np.arange(first, first + count))


def bytes_of(array: NDArray[Any]) -> bytes:
    """Numbers as little-endian int32."""
    return array.astype("<i4", copy=False).tobytes()


def arrays_of(blobs: Sequence[bytes]) -> list[NDArray[np.int32]]:
    """The inverse of `bytes_of`, as read-only views of one buffer.

    Raises:
        ValueError: a blob is not a whole number of int32.
    """
    lengths = np.fromiter(map(len, blobs), np.int64, len(blobs))
    if (lengths % 4).any():
        raise ValueError("samples are cut off")
    return split(lengths // 4, np.frombuffer(b"".join(blobs), "<i4").astype(np.int32, copy=False))
