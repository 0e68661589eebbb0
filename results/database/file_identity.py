"""Check that the file of an open SQLite store is still the one at its path.

SQLite itself keeps writing to a file that was removed or replaced, and reports success.
"""

import os
from pathlib import Path

from normtune.errors import NormtuneError

# Length of the header of a SQLite file: bytes 16 and 17 are the size of a page, 28 to 31 the number of pages.
_HEADER_BYTES = 100


class FileIdentity:
    """Identity of the file at a path.

    Args:
        path: of the file of an open store; None for a database without a file, which is not checked.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path.absolute() if path is not None else None
        if self._path is not None:
            status = self._path.stat()
            self._identity, self._size = (status.st_dev, status.st_ino), status.st_size

    @property
    def folder(self) -> Path | None:
        """Folder of the file."""
        return self._path.parent if self._path is not None else None

    def check(self) -> None:
        """Raise `NormtuneError` if the file was removed, replaced or truncated."""
        if self._path is None:
            return
        try:
            status = self._path.stat()
            if (status.st_dev, status.st_ino) != self._identity:
                raise NormtuneError(f"the store {self._path} was replaced by another file while it was written")
            if status.st_size < self._size and status.st_size < _header_size(self._path):
                raise NormtuneError(f"the store {self._path} was truncated while it was written")
        except OSError as error:
            event = "was removed" if isinstance(error, FileNotFoundError) else f"cannot be reached ({error.strerror})"
            raise NormtuneError(f"the store {self._path} {event} while it was written") from None
        self._size = status.st_size


def _header_size(path: Path) -> int:
    """Size of a file according to its header, which VACUUM lowers before it truncates the file."""
    with path.open("rb") as file:
        header = os.read(file.fileno(), _HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        return _HEADER_BYTES
    page = int.from_bytes(header[16:18], "big")
    return int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page)
