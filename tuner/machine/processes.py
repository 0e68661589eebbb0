"""Child processes: a clean start, an end with their parent, and no files left behind.

In: nothing. Out: the multiprocessing context of compilers and worker, their first call, and a folder for the temporary
files of killed ones.
"""

import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from multiprocessing import resource_tracker

# Spawned: a forked child of a process with a CUDA context or threads may hang.
SPAWN = multiprocessing.get_context("spawn")

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_QUIET = "ignore:resource_tracker"
_REMOVE_SECONDS = 2.0


def belong_to_parent() -> None:
    """Leave interrupts to the parent, and end with it.

    A killed parent cannot end its children, so the operating system does. multiprocessing names the parent; a parent
    that died before this call is detected here.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent.pid:
        os._exit(1)


def start_tracker() -> None:
    """Start multiprocessing's resource tracker, before other code does.

    If this process is killed, the tracker removes its semaphores. Unsilenced, it would warn about that on a terminal
    that is back at its prompt.
    """
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = f"{before},{_QUIET}" if before else _QUIET
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before


class Scratch:
    """A folder for the temporary files of processes that may be killed before they remove them.

    Attributes:
        path: of the folder.
    """

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="normtune-")

    def remove(self) -> None:
        """Remove it; a killed process's children, as an assembler, may write there for a moment."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        while os.path.exists(self.path) and time.monotonic() < deadline:
            shutil.rmtree(self.path, ignore_errors=True)


def use_scratch(path: str) -> None:
    """Move the temporary files of this process and its children to a folder."""
    os.environ["TMPDIR"] = tempfile.tempdir = path


def told_exit(code: int | None) -> str:
    """Text of an exit code of `multiprocessing`: `exit code 3`, `signal SIGSEGV`."""
    if code is not None and code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
