"""What processes of this machine share: how many of them, their end with their parent, and folders that they leave."""

import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time

_REMOVE_SECONDS = 2.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def cores() -> int:
    """The number of cores that this process may use; 1 on a system that cannot tell."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def belong_to_parent() -> None:
    """Leave interrupts to the parent, and end when it ends, even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent.pid:  # it died before the call of prctl
        os._exit(1)


class Scratch:
    """A folder for the temporary files of processes that may be killed before they remove them.

    Args:
        parent: the folder that it is made in; None for the system's.

    Attributes:
        path: of the folder.
    """

    def __init__(self, parent: str | None = None) -> None:
        self.path = tempfile.mkdtemp(prefix="normtune-", dir=parent)

    def remove(self) -> None:
        """Remove the folder; children of a killed process, such as an assembler, may still write there for a moment."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        while os.path.exists(self.path) and time.monotonic() < deadline:
            shutil.rmtree(self.path, ignore_errors=True)
