"""Processes of our own: how they begin, and that they end with whoever began them.

In: nothing. Out: the context that compilers and the worker are started from, and what each of them does first.
"""

import ctypes
import multiprocessing
import os
import signal
import sys

# Spawned, because a forked child of a process with a CUDA context or threads may hang.
SPAWN = multiprocessing.get_context("spawn")

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def belong_to_parent() -> None:
    """Leave interrupts to the parent, and end with it.

    A parent that is killed cannot end its children: the kernel does. What its parent is, a process learns from
    multiprocessing; one that died before this call is noticed here.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent.pid:
        os._exit(1)


def told_exit(code: int | None) -> str:
    """An exit code of `multiprocessing` in words: `exit code 3`, `signal SIGSEGV`."""
    if code is not None and code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
