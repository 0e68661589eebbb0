"""Measurements as rows of a store: their values, and what is read of them again.

In: the columns of measurements, or a connection. Out: values to insert, or `Row`s whose checksums were compared.
`older` reads the rows of versions before 4.
"""

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, repeat
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from normtune.results.columns import first_rounds, split
from normtune.results.database import schema
from normtune.results.records import Run, TimedCode

# Those of `Problem.columns`.
PROBLEM_FIELDS = ("operator", "rows", "hidden", "dtype", "variant")

# The numbers of rows of a table, by their values.
Numbers = dict[tuple[Any, ...], int]


class Row(NamedTuple):
    """A stored measurement: run and problem by number, texts as they are; `number` is its own, in the order stored.

    `rounds` has an int32 for each sample. `is_whole` is False for a damaged row, and None for one without a checksum.
    """

    run: int
    problem: int
    config: str
    fingerprint: str
    revision: int
    status: str
    reason: str
    median: int | None
    rounds: bytes
    samples: bytes
    launch: bytes | None
    code: bytes | None
    machine_code: bytes | None
    number: int
    is_whole: bool | None

    @property
    def timed_code(self) -> TimedCode | None:
        """The launched code, if it is known."""
        return TimedCode(self.launch, self.code or b"", self.machine_code or b"") if self.launch else None

    @property
    def first(self) -> int:
        """First round; -1 for a failure, which has none."""
        return int.from_bytes(self.rounds[:4], "little", signed=True) if self.rounds else -1


class Known(NamedTuple):
    """Numbers of the rows of other tables, by their values; a text is a tuple of one."""

    runs: Numbers = {}  # noqa: RUF012 - never changed
    problems: Numbers = {}  # noqa: RUF012 - never changed
    configs: Numbers = {}  # noqa: RUF012 - never changed
    fingerprints: Numbers = {}  # noqa: RUF012 - never changed


def values_of(columns: Mapping[str, Sequence[Any]], known: Known) -> Iterator[dict[str, Any]]:
    """The values of rows of `schema.measurement`; `columns` are those of `Evidence.frame`, possibly with `revision`."""
    shapes = zip(*(columns[name] for name in PROBLEM_FIELDS), strict=True)
    names = ("config", "run", "fingerprint", "status", "reason", "rounds", "samples", "code")
    parts = (columns[name] for name in names)
    revisions = columns.get("revision", repeat(0))
    firsts = first_rounds(columns["rounds"])
    for problem, config, run, fingerprint, status, reason, rounds, samples, code, first, revision in zip(
        shapes, *parts, firsts, revisions, strict=False
    ):
        ordered = sorted(samples.tolist())
        median = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) // 2 if ordered else None
        numbers = rounds.astype("<i4", copy=False).tobytes()
        blobs = {
            "samples": samples.astype("<i4", copy=False).tobytes(),
            "rounds": b"" if numbers == consecutive(first, len(ordered)) else numbers,
        }
        texts = (run, problem_text(problem), config, fingerprint, revision, status, reason, median, first)
        yield {
            "run_id": known.runs[(run,)],
            "problem_id": known.problems[problem],
            "config_id": known.configs[(config,)],
            "first_round": first,
            "fingerprint_id": known.fingerprints[(fingerprint,)],
            "revision": revision,
            "status": status,
            "reason": reason,
            "median": median,
            **blobs,
            "checksum": checksum(texts, **blobs),
            **code_columns(code),
        }


def checksum(texts: Sequence[Any], rounds: bytes, samples: bytes) -> int:
    """CRC-32 of a measurement with its run and problem.

    Args:
        texts: id of the run, problem (from `problem_text`), config, fingerprint, revision, status, reason, median and
            first round.
        rounds: as stored.
        samples: as stored.

    Raises:
        TypeError: damage changed the type of a value.
    """
    text = "\0".join(map(str, texts))
    return zlib.crc32(samples, zlib.crc32(rounds, zlib.crc32(text.encode("utf-8", "surrogateescape"))))


def problem_text(values: Sequence[Any]) -> str:
    """The fields of a problem as one text."""
    return " ".join(map(str, values))


@lru_cache(maxsize=4096)
def consecutive(first: int, count: int) -> bytes:
    """So many rounds that follow one another, as they would be stored."""
    return np.arange(first, first + count, dtype="<i4").tobytes()


class Rows:
    """Reads the measurements of a store of this version, run by run.

    Attributes:
        problems: the fields of each problem, by number.
        texts: the same as one text.
        newest: the greatest number of a measurement of each problem, of those read by `undamaged`.
    """

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self.problems = stored_numbers(connection, schema.problem, PROBLEM_FIELDS)
        self.texts = {number: problem_text(values) for number, values in self.problems.items()}
        self.newest: dict[int, int] = {}
        self._configs = stored_numbers(connection, schema.config, ("config",))
        self._fingerprints = self._read_fingerprints()

    def of(self, runs: Mapping[int, Run]) -> Iterator[Row]:
        """All measurements of runs, by start of the run, and in the order in which they were stored."""
        for _, group in groupby(
            sorted(runs, key=lambda number: runs[number].started), lambda number: runs[number].started
        ):
            for values in self._connection.execute(self._statement(list(group))):
                yield self._row(runs, *values)

    def undamaged(self, runs: Mapping[int, Run], damaged: Counter[str]) -> Iterator[Row]:
        """The rows of `of` that are not damaged; those that are, are counted by the text of their problem."""
        for row in self.of(runs):
            self.newest[row.problem] = max(row.number, self.newest.get(row.problem, 0))
            if row.is_whole is False:
                damaged[self.texts.get(row.problem, "an unknown problem")] += 1
            else:
                yield row

    def _read_fingerprints(self) -> Mapping[int, tuple[Any, ...]]:
        return stored_numbers(self._connection, schema.fingerprint, ("fingerprint",))

    def _statement(self, runs: Sequence[int]) -> sa.Select[Any]:
        table = schema.measurement
        return (
            sa.select(
                *(table.c.run_id, table.c.problem_id, table.c.config_id, table.c.first_round, table.c.fingerprint_id),
                *(table.c.revision, table.c.status, table.c.reason, table.c.median, table.c.rounds, table.c.samples),
                *(table.c.checksum, table.c.launch, table.c.code, table.c.machine_code, table.c.id),
            )
            .where(table.c.run_id.in_(runs))
            .order_by(table.c.id)
        )

    def _row(self, runs: Mapping[int, Run], run: int, problem: int, config: int, *values: Any) -> Row:
        first, fingerprint, revision, status, reason, median, rounds, samples, stored, *rest = values
        is_whole = None
        if stored is None:  # a wrong reference is an error here, and `validate` checks the values
            texts = self._configs[config][0], self._fingerprints[fingerprint][0]
        else:
            texts = self._configs.get(config, ("",))[0], self._fingerprints.get(fingerprint, ("",))[0]
            try:
                told = runs[run].id, self.texts[problem], *texts, revision, status, reason, median, first
                is_whole = checksum(told, rounds, samples) == stored
            except (LookupError, TypeError, UnicodeError):
                is_whole = False
        if is_whole is not False:
            rounds = rounds or consecutive(first, len(samples) // 4)
        content = revision, status, reason, median, rounds, samples
        return Row._make((run, problem, *texts, *content, *rest, is_whole))


def columns_of(rows: Sequence[Row], problems: Mapping[int, tuple[Any, ...]], runs: Mapping[int, Run]) -> dict[str, Any]:
    """The columns of `values_of` of rows.

    Raises:
        ValueError: a blob is not a whole number of int32.
    """
    of_rows = list(zip(*rows, strict=True)) if rows else [()] * len(Row._fields)
    run, problem, config, fingerprint, revision, status, reason, _, rounds, samples, *_ = of_rows
    shapes = zip(*(problems[number] for number in problem), strict=True) if rows else [()] * len(PROBLEM_FIELDS)
    return {
        **dict(zip(PROBLEM_FIELDS, shapes, strict=True)),
        "config": config,
        "run": [runs[number].id for number in run],
        "fingerprint": fingerprint,
        "status": status,
        "reason": reason,
        "rounds": arrays_of(rounds),
        "samples": arrays_of(samples),
        "code": [row.timed_code for row in rows],
        "revision": revision,
    }


def stored_numbers(connection: sa.Connection, table: sa.Table, fields: Sequence[str]) -> dict[int, tuple[Any, ...]]:
    """Values of these fields, by the number of their row."""
    statement = sa.select(table.c.id, *(table.c[name] for name in fields))
    return {number: tuple(values) for number, *values in connection.execute(statement)}


def arrays_of(blobs: Sequence[bytes]) -> list[NDArray[np.int32]]:
    """The int32 arrays of blobs, as read-only views of one buffer.

    Raises:
        ValueError: a blob is not a whole number of int32.
    """
    lengths = np.fromiter((len(blob) for blob in blobs), np.int64, len(blobs))
    if (lengths % 4).any():
        raise ValueError("samples are cut off")
    flat = np.frombuffer(b"".join(blobs), "<i4").astype(np.int32, copy=False)
    return split(lengths // 4, flat)


def code_columns(code: TimedCode | None) -> dict[str, bytes | None]:
    """The digests of code by the names of their columns."""
    launch, digest, machine = code or (None, None, None)
    return {"launch": launch or None, "code": digest or None, "machine_code": machine or None}
