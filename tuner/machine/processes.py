"""Child processes that start safely and leave no files behind.

Out: the multiprocessing context of compilers and worker, and the functions that each calls first.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess

from normtune.errors import NormtuneError

# Spawned processes start Python with `-c`, which would import modules from the current folder first.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}

_QUIET = "ignore:resource_tracker"
# Exit code of a process whose script starts processes while it is imported.
_UNGUARDED = 79
# Guards the environment variables of this process, which its threads share.
_ENVIRONMENT_LOCK = threading.Lock()


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set variables for a process that is started in this block."""
    with _ENVIRONMENT_LOCK:
        before = {name: os.environ.get(name) for name in variables}
        try:
            os.environ |= variables
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


class _Process(SpawnProcess):
    def start(self) -> None:
        # Interrupts are for the parent: one that arrives before the child ignores them would end it with a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with _environment(**SAFE_PATH):
                super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Context(SpawnContext):
    Process = _Process  # also for processes that a pool starts later, from its own thread


# Spawned: a forked child of a process with a CUDA context or threads may hang.
SPAWN = _Context()


def check_guarded(code: int | None) -> None:
    """Report a child process that ended because the script has no guard.

    Raises:
        NormtuneError: `code` is the exit code of such a process.
    """
    if code == _UNGUARDED:
        raise NormtuneError(
            "child processes run the script from its beginning: put its statements under `if __name__ == '__main__':`"
        ) from None


def start_tracker() -> None:
    """Start multiprocessing's resource tracker, without its warnings, before other code does.

    If this process is killed, the tracker removes its semaphores, and would print warnings after the prompt. A child
    process that calls this while it imports its parent's script is ended: see `check_guarded`.

    Raises:
        NormtuneError: Python was started with -E but without -P, so that children would import from the current folder.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(_UNGUARDED)
    if sys.flags.ignore_environment and not sys.flags.safe_path:
        raise NormtuneError(
            "python -E lets child processes import modules of the current folder: start Python with -P as well, or -I"
        )
    filters = ",".join(filter(None, (os.environ.get("PYTHONWARNINGS"), _QUIET)))
    with _environment(PYTHONWARNINGS=filters, **SAFE_PATH):
        resource_tracker.ensure_running()


def use_scratch(path: str) -> None:
    """Put the temporary files of this process and its children into a folder."""
    os.environ["TMPDIR"] = tempfile.tempdir = path


def exit_text(code: int | None) -> str:
    """Text of an exit code of `multiprocessing`: `exit code 3`, `signal SIGSEGV`."""
    if code is not None and code < 0:
        try:
            return f"signal {signal.Signals(-code).name}"
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"
