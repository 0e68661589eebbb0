"""The file of an SQLite store: whether it can be one, a connection that only reads it, and who writes to it.

In: a `StoreUrl` or the path. Out: connections, locks, and errors of one line.
"""

import fcntl
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO
from urllib.parse import quote

from normtune.errors import NormtuneError, UsageError
from normtune.results.database.url import StoreUrl

# Beginnings of the names of SQLite's errors where it cannot make files beside a store.
_NO_FILES = ("SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_READONLY")


def check_file(path: Path, store: StoreUrl, create: bool) -> None:
    """Check what stands at the path of a store; with `create` it will be written to, and created if it is missing.

    Raises:
        UsageError: it is no regular file, or its folder or, without `create`, the file does not exist.
        NormtuneError: the system cannot examine it.
    """
    name = store.name
    if create and store.is_read_only:
        raise UsageError(
            f"the store {name} has to be written, but its URL says mode=ro: leave that out, or name another store"
        )
    try:
        if path.is_dir():
            raise UsageError(f"the store {name} is a folder: expected a file such as {path / 'normtune.db'}")
        if path.parent.exists() and not path.parent.is_dir():
            raise UsageError(f"the store {name} cannot exist: {path.parent} is no folder; name another with --store")
        if not path.parent.is_dir():
            raise UsageError(f"the folder of the store {name} does not exist: create {path.parent} or name another")
        if path.exists() and not path.is_file():  # SQLite would wait for the other end of a pipe
            raise UsageError(f"the store {name} is no regular file: name another with --store")
        if not create and not path.exists():
            raise UsageError(
                f"there is no store {name}: name one that exists, or run `normtune sweep{store.option}` first"
            )
        if create and path.suffix == ".parquet":
            raise UsageError(
                f"the store {name} has the name of a Parquet file, which is only read: name another, as normtune.db; "
                "`data export` writes one"
            )
    except OSError as error:
        raise NormtuneError(
            f"the store {name} cannot be examined ({error.strerror or error}): name another with --store"
        ) from None


def opened_to_read(path: Path, seconds: float) -> sqlite3.Connection:
    """A connection that only reads, and waits so many seconds for another process.

    SQLite makes files beside a store with a write-ahead log even to read it, unless it is opened as immutable. Where it
    cannot, as in a read-only folder or on a full disk, nobody can write to the store. A log that is not empty has
    measurements and must be read.
    """
    connect = partial(sqlite3.connect, timeout=seconds, check_same_thread=False)
    connection = connect(path)
    try:
        connection.execute("SELECT name FROM sqlite_master LIMIT 1")
    except sqlite3.DatabaseError as error:
        connection.close()
        log = Path(f"{path}-wal")
        if not error.sqlite_errorname.startswith(_NO_FILES) or (log.exists() and log.stat().st_size):
            raise
        connection = connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)
    return connection


class SqliteFile:
    """The file of an open store.

    Attributes:
        path: absolute.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._status = self.path.stat()

    def check(self) -> None:
        """Check that SQLite writes to the file: it reports success where that was removed or replaced.

        Raises:
            NormtuneError: the file was removed, replaced or truncated since it was opened.
        """
        try:
            status = self.path.stat()
            if not os.path.samestat(status, self._status):
                raise NormtuneError(f"the store {self.path} was replaced by another file while it was written")
            if status.st_size < self._status.st_size and status.st_size < _header_size(self.path):
                raise NormtuneError(f"the store {self.path} was truncated while it was written")
        except OSError as error:
            event = "was removed" if isinstance(error, FileNotFoundError) else f"cannot be reached ({error.strerror})"
            raise NormtuneError(f"the store {self.path} {event} while it was written") from None
        self._status = status

    @contextmanager
    def locked(self, request: Sequence[object]) -> Iterator[None]:
        """Hold the store for one sweep of a request, which JSON values describe, until the end or this process dies.

        Raises:
            NormtuneError: another sweep of the request writes to the store, or its lock cannot be made.
        """
        digest = hashlib.blake2b(json.dumps(request).encode(), digest_size=8).hexdigest()
        path = Path(f"{self.path}-sweep-{digest}")
        try:
            lock = _locked(path)
        except BlockingIOError:
            raise NormtuneError(
                f"another sweep of the same request writes to the store {self.path}: wait for its end, or name another "
                "store with --store"
            ) from None
        except OSError as error:
            raise NormtuneError(
                f"{path} cannot be locked ({error.strerror}): name another store with --store"
            ) from None
        with lock:
            try:
                yield
            finally:
                with suppress(OSError):
                    path.unlink()


def _header_size(path: Path) -> int:
    """Size of a file according to its header, which VACUUM lowers before it truncates the file."""
    with path.open("rb") as file:
        header = file.read(100)
    page = int.from_bytes(header[16:18], "big")
    return max(100, int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page))


def _locked(path: Path) -> IO[bytes]:
    """The file, created and locked by this process; `BlockingIOError` if another has locked it."""
    while True:
        file = path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The one before removes its file at the end, maybe after this one was opened.
            if os.path.exists(path) and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except OSError:
            file.close()
            raise
        file.close()
