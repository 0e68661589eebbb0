"""A measurement as a row of a store, made from the columns of measurements, and converted to them again.

In: the columns of `Evidence.frame`. Out: `Row`s and columns. `reading` and `writing` take rows from a database and put
them there.
"""

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.results.columns import first_rounds, split
from normtune.results.database.schema import DIGESTS
from normtune.results.records import TimedCode

# Those of `Problem.columns`.
PROBLEM_FIELDS = ("operator", "rows", "hidden", "dtype", "variant")
# The columns of a measurement that may change, besides its fingerprint.
CONTENT = ("revision", "status", "reason", "median", "samples", "rounds", "checksum", *DIGESTS)
_NO_CODE = (None,) * len(DIGESTS)


class Row(NamedTuple):
    """A measurement as `schema.measurement` has it, with the values of other tables in place of their numbers.

    Attributes:
        problem: its `PROBLEM_FIELDS`. They are None if they are lost, as config and fingerprint are.
        number: of the row, in the order stored.
        checksum: as it is stored.
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
    code: TimedCode | None
    number: int = 0
    checksum: int | None = None

    @property
    def content(self) -> tuple[Any, ...]:
        """The values of `CONTENT`, with the right checksum."""
        times = self.median, self.samples, self.rounds
        digests = (digest or None for digest in self.code or _NO_CODE)
        return self.revision, self.status, self.reason, *times, self.crc, *digests

    @property
    def key(self) -> tuple[Any, ...]:
        """What identifies it, in every store."""
        return self.run, self.problem, self.config, self.first

    @property
    def rank(self) -> tuple[Any, ...]:
        """The order of two rows of one measurement: the greater, which was changed more often, is kept."""
        times = self.rounds, self.samples
        return self.revision, self.fingerprint, self.status, self.reason, *times, self.code or ()

    @property
    def place(self) -> str:
        """The fields of its problem as one text."""
        return _place(self.problem)

    @property
    def crc(self) -> int:
        """CRC-32 of all but the code; -1 where damage changed the type of a value."""
        text = (
            f"{self.run}\0{self.place}\0{self.config}\0{self.fingerprint}\0{self.revision}\0{self.status}\0"
            f"{self.reason}\0{self.median}\0{self.first}"
        )
        try:
            start = zlib.crc32(text.encode("utf-8", "surrogateescape"))
            return zlib.crc32(self.samples, zlib.crc32(self.rounds, start))
        except (TypeError, UnicodeError):
            return -1

    @property
    def is_damaged(self) -> bool:
        """Whether it is not what was stored."""
        return self.checksum != self.crc


@lru_cache(maxsize=1 << 16)
def _place(problem: tuple[Any, ...]) -> str:
    return "an unknown problem" if None in problem else " ".join(map(str, problem))


def rows_of(columns: Mapping[str, Sequence[Any]]) -> list[Row]:
    """The rows of measurements in the columns of `Evidence.frame`."""
    problems = zip(*(columns[name] for name in PROBLEM_FIELDS), strict=True)
    names = ("run", "config", "fingerprint", "status", "reason", "samples", "rounds", "code")
    rows = []
    for problem, first, run, config, fingerprint, status, reason, samples, rounds, code in zip(
        problems, first_rounds(columns["rounds"]), *(columns[name] for name in names), strict=True
    ):
        times = sorted(samples.tolist())
        median = (times[(len(times) - 1) // 2] + times[len(times) // 2]) // 2 if times else None
        numbers = _bytes_of(rounds)
        gaps = b"" if numbers == _consecutive(first, len(times)) else numbers
        content = 0, status, reason, median, _bytes_of(samples), gaps, code
        rows.append(Row(run, problem, config, first, fingerprint, *content))
    return rows


def columns_of_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """The columns of rows.

    Raises:
        ValueError: samples or rounds are no whole number of int32.
    """
    rounds = [row.rounds or _consecutive(row.first, len(row.samples) // 4) for row in rows]
    return {
        **{name: [row.problem[place] for row in rows] for place, name in enumerate(PROBLEM_FIELDS)},
        **{name: [getattr(row, name) for row in rows] for name in ("config", "run", "fingerprint", "status", "reason")},
        "rounds": _arrays_of(rounds),
        "samples": _arrays_of([row.samples for row in rows]),
        "code": [row.code for row in rows],
    }


@lru_cache(maxsize=4096)
def _consecutive(first: int, count: int) -> bytes:
    """So many rounds that follow one another, which a store does not have."""
    return _bytes_of(np.arange(first, first + count))


def _bytes_of(array: NDArray[Any]) -> bytes:
    """Numbers as little-endian int32."""
    return array.astype("<i4", copy=False).tobytes()


def _arrays_of(blobs: Sequence[bytes]) -> list[NDArray[np.int32]]:
    """The inverse of `_bytes_of`, as read-only views of one buffer."""
    lengths = np.fromiter(map(len, blobs), np.int64, len(blobs))
    if (lengths % 4).any():
        raise ValueError("samples are cut off")
    return split(lengths // 4, np.frombuffer(b"".join(blobs), "<i4").astype(np.int32, copy=False))
