"""What processes of this machine share: how many of them, and their end with their parent."""

import ctypes
import multiprocessing
import os
import signal
import sys

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
