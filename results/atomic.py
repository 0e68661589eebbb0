"""Atomic replacement of files.

In: the path to write. Out: a new file beside it, which replaces the path on success. The caller writes the content.
"""

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
        temporary.touch(exist_ok=False)  # a link that somebody put there would be followed
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
