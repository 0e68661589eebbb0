"""The process that drives a device, and the sweep's end of it.

In: the name of a function that opens an `engine.Engine`, and its arguments. Out: `Worker`. Its `call` sends a step
and returns the answer, or raises the way in which the process was lost: no answer in time, its death, or that of its
device. `bench` decides what follows. No pool of Pebble's, as the compilers are in: its limits count time in which the
machine slept, it starts a lost process again by itself, and a step takes half a millisecond longer.
"""

import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from normtune.errors import NormtuneError
from normtune.kernels.load_file import load, loaded
from normtune.tuner.compiling.binary_cache import Folder
from normtune.tuner.device.engine import DeviceLostError, Engine, Identity, NoMemoryError
from normtune.tuner.machine.processes import SPAWN, belong_to_parent, start_tracker, told_exit

# Importing torch from a slow disk and opening the first CUDA context may take this long.
START_SECONDS = 180.0
_END_SECONDS = 10.0
_POLL_SECONDS = 1.0

Opener = tuple[str, str, tuple[Any, ...]]


class WorkerLostError(RuntimeError):
    """The process that drives the device is gone.

    Attributes:
        status: `timeout` or `crashed`.
        certain: whether the step is to blame: the device reported the fault, or it hung.
    """

    def __init__(self, status: str, reason: str, certain: bool) -> None:
        super().__init__(reason)
        self.status = status
        self.certain = certain


class Worker:
    """One process with one engine; it starts at once, `open` waits for it.

    Args:
        opener: module, function and arguments that make the engine, in that process.
        folder: of binaries to read; None for Triton's own cache.

    Attributes:
        identity: of the engine, once it is open.
    """

    def __init__(self, opener: Opener, folder: Folder | None = None) -> None:
        # Nameless: a kill of this process leaves no file behind.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (open as long as the worker lives)
        log = f"/proc/{os.getpid()}/fd/{self._log.fileno()}"
        start_tracker()
        self._connection, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(
            target=_serve, args=(theirs, opener, log, loaded(), folder), name="normtune-worker", daemon=True
        )
        self._process.start()
        theirs.close()
        self.identity: Identity

    def open(self) -> None:
        """Wait until the engine is open.

        Raises:
            NormtuneError: it cannot be opened.
            WorkerLostError: the process died or did not answer during the opening.
        """
        self.identity = self._ask(START_SECONDS)

    def abandon(self) -> None:
        """End the process without waiting for its answer."""
        self._end(0.0)

    def call(self, step: str, *arguments: Any, seconds: float, meanwhile: Callable[[], None] | None = None) -> Any:
        """The engine's answer to a step.

        Args:
            step: name of a method of `Engine`.
            arguments: of that method.
            seconds: limit of the wait, without time in which the machine slept.
            meanwhile: called while the engine is at work; if it raises, this worker is ended.

        Raises:
            WorkerLostError: the process is lost; this worker must not be called again.
            NoMemoryError: the problem does not fit.
            NormtuneError: the step failed in a way that the user can remedy.
        """
        return self._ask(seconds, step, arguments, meanwhile=meanwhile)

    def close(self) -> dict[str, object]:
        """End the process in good order; returns the summary of the clocks."""
        try:
            summary: dict[str, object] = self.call("close", seconds=_END_SECONDS)
        except (WorkerLostError, NormtuneError, NoMemoryError):
            summary = {}
        self._end(_END_SECONDS)
        return summary

    def _ask(self, seconds: float, *question: Any, meanwhile: Callable[[], None] | None = None) -> Any:
        """The answer to a question, or to the start without one."""
        try:
            if question:
                with suppress(OSError):  # it is already dead: `_answer` raises that
                    self._connection.send(question)
            if meanwhile:
                try:
                    meanwhile()
                except BaseException:
                    self._end(0.0)
                    raise
            return self._answer(seconds)
        except (WorkerLostError, NoMemoryError, NormtuneError):
            raise
        except BaseException:  # an interrupt, say: nobody would read the process's answer
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

    def _end(self, patience: float) -> str:
        """Make sure that the process is gone; returns how it ended."""
        self._connection.close()
        self._process.join(patience)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(_END_SECONDS)
        ending = told_exit(self._process.exitcode)
        if self._log.closed:
            return ending
        with self._log:
            self._log.seek(0)
            return ": ".join([ending, *self._log.read().decode("utf-8", "replace").strip().splitlines()[-1:]])


def answers(connection: Connection, seconds: float) -> bool:
    """Wait for a message, for `seconds` in which this process ran; whether there is one.

    A wait that took far longer than its limit is not counted against the other process: the machine slept, or both were
    stopped.
    """
    while seconds > 0:
        start = time.monotonic()
        if connection.poll(min(seconds, _POLL_SECONDS)):
            return True
        taken = time.monotonic() - start
        seconds -= taken if taken < 3 * _POLL_SECONDS else 0.0
    return False


def _serve(
    connection: Connection, opener: Opener, log: str, files: Sequence[str], folder: Folder | None = None
) -> None:
    """Main function of the process: open the engine, answer steps, end when the parent hangs up."""
    belong_to_parent()
    # Output of a driver or a kernel's assertion would garble the parent's display; its last line goes into the reason.
    handle = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    if folder:
        folder.enter()
    module, name, arguments = opener
    make: Callable[..., Engine] = getattr(import_module(module), name)
    engine: Engine | None = None

    def opened() -> Identity:
        nonlocal engine
        for file in files:
            load(file)
        engine = make(*arguments)
        return engine.identify()

    if not _reply(connection, opened, ()):
        return
    assert engine is not None
    # While the parent plans: kernels are compiled for it and clocks rise. What it raises is raised again when asked.
    with suppress(Exception):
        engine.speed()
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
