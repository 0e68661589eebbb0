"""Signals that end a sweep: where they may, and where they wait.

In: work. Out: SIGTERM as an exception, and work that no signal tears apart. What is done about an end is left to the
sweep and to the command line.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from normtune.errors import Terminated


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends what is inside as an interrupt does: by an exception, so that all is stored and closed.

    Raises:
        Terminated: the signal came.
    """

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the second one finds everything ending already
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def shielded() -> Iterator[None]:
    """Signals that come while this goes on have their effect at its end.

    A database transaction that an exception leaves at any line may keep its lock, and the next one would wait for it.
    """
    if threading.current_thread() is not threading.main_thread():  # signals come to the main one only
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
