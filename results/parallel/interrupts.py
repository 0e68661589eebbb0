"""SIGTERM as an exception, and blocks that defer signals; the sweep and the command line handle the exception."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from normtune.errors import Terminated


@contextmanager
def terminable() -> Iterator[None]:
    """In the block, turn SIGTERM and SIGINT into exceptions, so that everything is stored and closed.

    Raises:
        Terminated: SIGTERM arrived.
        KeyboardInterrupt: SIGINT arrived, and the process does not ignore it.
    """

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would interrupt the cleanup
        raise Terminated

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, end)}
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def shielded() -> Iterator[None]:
    """Defer signals to the end of the block.

    An exception inside a database transaction may leave its lock behind, and the next transaction would wait for it.
    """
    if threading.current_thread() is not threading.main_thread():  # signals reach only the main thread
        yield
        return
    noted: list[int] = []

    def note(number: int, _: object) -> None:
        noted.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if noted:
            signal.raise_signal(noted[0])
