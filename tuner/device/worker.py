"""The process that drives a device, and the object in the sweep that controls it.

In: the name of a function that opens an `engine.Engine`, and its arguments. Out: a `Worker`, whose `call` sends a step
and returns the answer, or raises `WorkerLostError`, which `bench` handles. Pebble, which runs the compilers, is not
used: its time limits include time in which the machine slept, it restarts lost processes by itself, and a step takes
half a millisecond longer.
"""

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from normtune.errors import NormtuneError
from normtune.kernels.load_file import load, loaded
from normtune.results.parallel.processes import belong_to_parent
from normtune.tuner.compiling.kernel_cache import Folder
from normtune.tuner.device.engine import DeviceLostError, Engine, Identity, NoMemoryError, Opener
from normtune.tuner.machine.processes import SPAWN, check_guarded, exit_text, start_tracker

# Importing torch from a slow disk and opening the first CUDA context may take this long.
START_SECONDS = 180.0
_END_SECONDS = 10.0
_POLL_SECONDS = 1.0


class WorkerLostError(RuntimeError):
    """The process that drives the device has ended, or was ended because it did not answer.

    Attributes:
        status: `timeout` or `crashed`.
        certain: whether the step is surely the cause: the device reported a fault, or the step hung.
    """

    def __init__(self, status: str, reason: str, certain: bool) -> None:
        super().__init__(status, reason, certain)  # all, so that it can be pickled
        self.status = status
        self.certain = certain

    def __str__(self) -> str:
        return str(self.args[1])


class Worker:
    """One process with one engine, an `engine.Driver`. It starts at once; `open` waits until it is ready.

    Args:
        opener: module, function and arguments that create the engine in that process.
        folder: of binaries to read; None for Triton's cache.

    Attributes:
        identity: of the engine, once it is open.
    """

    def __init__(self, opener: Opener, folder: Folder | None = None) -> None:
        # A file without a name: it vanishes even if this process is killed.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the worker lives)
        log = f"/proc/{os.getpid()}/fd/{self._log.fileno()}"
        start_tracker()
        self._connection, child_end = SPAWN.Pipe()
        self._process = SPAWN.Process(
            target=_serve, args=(child_end, opener, log, loaded(), folder), name="normtune-worker", daemon=True
        )
        self._process.start()
        child_end.close()
        self.identity: Identity

    def open(self) -> None:
        """Wait until the engine is open, as `Driver.open`."""
        self.identity = self._exchange(START_SECONDS)

    def abandon(self) -> None:
        """End the process without waiting for its answer."""
        self._end(0.0)

    def supply(self, kernels: Collection[str]) -> None:
        """Do nothing: the kernels were compiled on this machine."""

    def call(self, step: str, *arguments: Any, seconds: float) -> Any:
        """The engine's answer to a step, as `Driver.call`."""
        return self._exchange(seconds, step, arguments)

    def close(self) -> dict[str, object]:
        """Let the process end; returns the summary of the clocks."""
        try:
            summary: dict[str, object] = self.call("close", seconds=_END_SECONDS)
        except (WorkerLostError, NormtuneError, NoMemoryError):
            summary = {}
        self._end(_END_SECONDS)
        return summary

    def kill(self) -> None:
        """End the process while another thread waits for its answer, which then finds that it is lost."""
        with suppress(ValueError):  # it has ended already
            self._process.kill()

    def _exchange(self, seconds: float, *message: Any) -> Any:
        """The answer to a message; without a message, the first answer after the start."""
        try:
            if message:
                with suppress(OSError):  # the process is dead: `_answer` raises an error for that
                    self._connection.send(message)
            return self._answer(seconds)
        except (WorkerLostError, NoMemoryError, NormtuneError):
            raise
        except BaseException:  # such as an interrupt: nobody would read the answer
            self._end(0.0)
            raise

    def _answer(self, seconds: float) -> Any:
        try:
            if not answers(self._connection, seconds):
                self._end(0.0)
                raise WorkerLostError("timeout", f"no answer for {seconds:g} s", certain=True)
            kind, value = self._connection.recv()
        except (EOFError, OSError):
            ending = self._end(1.0)
            check_guarded(self._process.exitcode)
            raise WorkerLostError("crashed", f"the process died ({ending})", certain=False) from None
        if kind == "lost":
            self._end(1.0)
            raise WorkerLostError("crashed", value, certain=True)
        if kind == "memory":
            raise NoMemoryError(value)
        if kind == "failed":
            self._end(1.0)
            raise value
        if kind == "bug":
            self._end(1.0)
            raise RuntimeError(f"the process that drives the device failed:\n{value}")
        return value

    def _end(self, seconds: float) -> str:
        """End the process, killing it after `seconds`; returns its exit and the last line of its output."""
        self._connection.close()
        self._process.join(seconds)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_END_SECONDS)
        ending = exit_text(self._process.exitcode)
        if self._log.closed:
            return ending
        with self._log:
            self._log.seek(0)
            return ": ".join([ending, *self._log.read().decode("utf-8", "replace").strip().splitlines()[-1:]])


def answers(connection: Connection, seconds: float) -> bool:
    """Wait at most `seconds` for a message, without time in which the machine slept; whether there is one."""
    while seconds > 0:
        start = time.monotonic()
        if connection.poll(min(seconds, _POLL_SECONDS)):
            return True
        elapsed = time.monotonic() - start
        seconds -= elapsed if elapsed < 3 * _POLL_SECONDS else 0.0  # longer: this process did not run
    return False


def _serve(
    connection: Connection, opener: Opener, log: str, files: Sequence[str], folder: Folder | None = None
) -> None:
    """Main function of the process: open the engine, answer steps, end when the parent closes the connection."""
    belong_to_parent()
    # Output of a driver or of a kernel's assertion goes to the log, not to the terminal with the parent's display.
    handle = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if folder:
        folder.enter()
    module, name, arguments = opener
    create_engine: Callable[..., Engine] = getattr(import_module(module), name)
    engine: Engine | None = None

    def open_engine() -> Identity:
        nonlocal engine
        for file in files:
            load(file)
        engine = create_engine(*arguments)
        return engine.identify()

    if not _reply(connection, open_engine, ()):
        return
    assert engine is not None
    # Done while the parent plans: kernels are compiled and clocks are high then. Asked again it raises any error.
    with suppress(Exception):
        engine.try_copy()
    while True:
        try:
            step, arguments = connection.recv()
        except (EOFError, OSError):
            return
        if not _reply(connection, getattr(engine, step), arguments) or step == "close":
            return


def _reply(connection: Connection, step: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    """Do a step and send its result; whether further steps are possible."""
    try:
        answer: tuple[str, Any] = ("done", step(*arguments))
    except NoMemoryError as error:
        answer = ("memory", str(error))
    except DeviceLostError as error:
        answer = ("lost", str(error))
    except NormtuneError as error:
        answer = ("failed", error)
    except Exception:
        answer = ("bug", traceback.format_exc())
    connection.send(answer)
    return answer[0] in ("done", "memory")
