"""Signals raise outside of shielded blocks and wait inside."""

import os
import signal
import threading

import pytest

from normtune.errors import Terminated
from normtune.results.parallel.interrupts import shielded, terminable

BOTH = pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])


def test_sigterm_is_an_exception_until_the_end_and_then_what_it_was():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated), terminable():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert signal.getsignal(signal.SIGTERM) == before


@BOTH
def test_a_signal_waits_for_the_end_of_what_is_shielded(number, error):
    done = []
    with pytest.raises(error), terminable():
        with shielded():
            os.kill(os.getpid(), number)
            done.append("inside")
        done.append("outside")
    assert done == ["inside"]


@BOTH
def test_a_failure_inside_is_told_beside_the_signal(number, error):
    with pytest.raises(error) as raised, terminable(), shielded():
        os.kill(os.getpid(), number)
        raise ZeroDivisionError
    assert isinstance(raised.value.__context__, ZeroDivisionError)


def test_without_a_signal_nothing_happens_and_handlers_are_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with shielded(), shielded():
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_is_shielded_as_it_is():
    seen = []

    def work():
        with shielded():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]
