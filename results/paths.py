"""Checks whether a path can be read or written.

In: a path that a user or a file named. Out: the fault as text, for every error of the operating system: a name that is
too long, a folder that may not be searched, a NUL.
"""

import os
import secrets
import stat
import tempfile
from pathlib import Path

from normtune.errors import NormtuneError, UsageError


def unreadable(path: Path) -> str:
    """Why a path is no regular file, as in `x.csv does not exist`; empty if it is one."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return "does not exist"
    except OSError as error:
        return f"cannot be opened ({error.strerror or error})"
    except ValueError:
        return "cannot be opened (a NUL in its name)"
    return "" if stat.S_ISREG(mode) else "is no regular file"


def unwritable(folder: Path) -> str:
    """Why nothing can be written to a folder, or to its nearest existing parent; empty if it can."""
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    if not os.path.isdir(folder):
        return f"{folder} is no folder"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"normtune")
            file.flush()
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return ""


def temporary_of(path: Path) -> Path:
    """An unpredictable path beside a file, for its replacement; short, as the file's own name may be the longest."""
    return path.parent / f".normtune.{secrets.token_hex(8)}.tmp"


def check_place(path: Path) -> None:
    """Raise `UsageError` if a path cannot be that of a file, and `NormtuneError` if its folder takes no file."""
    folder = path.parent
    if not os.path.isdir(folder):
        reason = (
            f"{folder} is no folder;" if os.path.exists(folder) else f"the folder {folder} does not exist; create it or"
        )
        raise UsageError(f"cannot write {path}: {reason} name another")
    if os.path.isdir(path):
        raise UsageError(f"cannot write {path}: it is a folder, expected a file name")
    if reason := _unnameable(path):
        raise UsageError(f"cannot write {path}: {reason}; name another place")
    if reason := unwritable(folder):
        raise NormtuneError(f"cannot write {path}: {reason}; name another place")


def _unnameable(path: Path) -> str:
    """Why no file can have this name; empty if a file can."""
    try:
        path.lstat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    except ValueError:
        return "a NUL in its name"
    return ""
