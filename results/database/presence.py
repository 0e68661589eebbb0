"""Whether the file that a SQLite store was opened from is still the one at its path.

In: the path, once the store is open. Out: nothing, or one line on what became of the file. SQLite itself goes on
writing to a file that was removed or replaced, and reports success.
"""

import os
from pathlib import Path

from normtune.errors import NormtuneError

# Of the header of a SQLite file: bytes 16 and 17 give the size of a page, 28 to 31 the number of pages.
_HEADER_BYTES = 100


class Presence:
    """The file at a path, as it is now.

    Args:
        path: of the file of an open store; None for a database that is no file, of which nothing is checked.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path.absolute() if path is not None else None
        if self._path is not None:
            found = self._path.stat()
            self._identity, self._size = (found.st_dev, found.st_ino), found.st_size

    @property
    def folder(self) -> Path | None:
        """Where the file lies."""
        return self._path.parent if self._path is not None else None

    def check(self) -> None:
        """Refuse to go on with a file that is no longer there.

        Raises:
            NormtuneError: it was removed, replaced or truncated since.
        """
        if self._path is None:
            return
        try:
            found = self._path.stat()
            if (found.st_dev, found.st_ino) != self._identity:
                raise NormtuneError(f"the store {self._path} was replaced by another file while it was written")
            if found.st_size < self._size and found.st_size < _promised_bytes(self._path):
                raise NormtuneError(f"the store {self._path} was truncated while it was written")
        except OSError as error:
            why = "was removed" if isinstance(error, FileNotFoundError) else f"cannot be reached ({error.strerror})"
            raise NormtuneError(f"the store {self._path} {why} while it was written") from None
        self._size = found.st_size


def _promised_bytes(path: Path) -> int:
    """The size that a file has by its header, which VACUUM lowers before the file."""
    with path.open("rb") as file:
        header = os.read(file.fileno(), _HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        return _HEADER_BYTES
    page = int.from_bytes(header[16:18], "big")
    return int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page)
