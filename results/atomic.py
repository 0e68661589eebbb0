"""Atomic replacement of files.

In: the path to write. Out: a temporary path beside it, which replaces the path on success. The caller writes the
content.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from normtune.errors import NormtuneError, UsageError


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it replaces `path` at the end, or is removed if the block raises.

    Raises:
        UsageError: the folder of `path` does not exist, or `path` is a folder.
        NormtuneError: the file cannot be written.
    """
    check_place(path)
    temporary = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        why = error.strerror or " ".join(str(error).split())
        raise NormtuneError(
            f"cannot write {path}: {why}; what stood there stays: see to the disk, or name another place"
        ) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def check_place(path: Path) -> None:
    """Refuse a path that no file can be written to.

    Raises:
        UsageError: its folder does not exist or takes no files, or it is a folder.
    """
    folder = path.parent
    if not folder.is_dir():
        why = f"{folder} is no folder;" if folder.exists() else f"the folder {folder} does not exist; create it or"
        raise UsageError(f"cannot write {path}: {why} name another")
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder, expected a file name")
    if why := unwritable(folder):
        raise UsageError(f"cannot write {path}: {why}; name another place")


def unwritable(folder: Path) -> str:
    """Why nothing can be written to a folder, or to its nearest existing parent; empty if it can."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is no folder"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"normtune")
            file.flush()
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return ""
