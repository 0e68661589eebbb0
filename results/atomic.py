"""Atomic replacement of a file: the caller writes a new file beside it, which takes its place on success."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from normtune.errors import NormtuneError
from normtune.results.paths import check_place, temporary_of


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A new, empty file to write to; it replaces `path` at the end, or is removed if the block raises.

    Raises:
        UsageError: the folder of `path` does not exist, or `path` is a folder.
        NormtuneError: the file cannot be written.
    """
    check_place(path)
    temporary = temporary_of(path)
    try:
        temporary.touch(exist_ok=False)  # fails if somebody put a link there, which writing would follow
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise NormtuneError(
            f"cannot write {path}: {reason}; an existing file is not changed: check the disk, or name another place"
        ) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
