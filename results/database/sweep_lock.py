"""A lock on a file beside an SQLite store, so that it takes one sweep of a request at a time.

The system frees it when the process dies. PostgreSQL has none: sweeps that run at once each measure and store all.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from normtune.errors import NormtuneError


@contextmanager
def locked(store: Path, request: Sequence[object]) -> Iterator[None]:
    """Hold the lock of a request, which JSON values describe.

    Raises:
        NormtuneError: another sweep has it, or the file cannot be locked.
    """
    digest = hashlib.blake2b(json.dumps(request).encode(), digest_size=8).hexdigest()
    file = _file_of(Path(f"{store}-sweep-{digest}"))
    if file is None:
        raise NormtuneError(
            f"another sweep of the same request writes to the store {store}: wait for its end, or name another store "
            "with --store"
        )
    with file:
        try:
            yield
        finally:
            with suppress(OSError):
                os.unlink(file.name)


def _file_of(path: Path) -> IO[bytes] | None:
    """The file, created and locked by this process; None if another has it."""
    while True:
        file = path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The one before removes its file at the end, maybe after this one was opened.
            if os.path.exists(path) and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:
            file.close()
            raise NormtuneError(
                f"{path} cannot be locked ({error.strerror}): name another store with --store"
            ) from None
        file.close()
