import os
import signal

import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.parallel import in_order


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    """As if there were two, so that children are made on any machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def test_results_come_in_order_and_from_two_other_processes() -> None:
    shared = list(range(1000))
    found = list(in_order(lambda item: (shared[item], os.getpid()), range(7)))
    assert [result for result, _ in found] == list(range(7))
    assert len({process for _, process in found}) == 2
    assert os.getpid() not in {process for _, process in found}


def test_one_item_or_one_process_stays_in_this_one() -> None:
    assert list(in_order(lambda _: os.getpid(), [1])) == [os.getpid()]
    assert list(in_order(lambda _: os.getpid(), [1, 2], 1)) == [os.getpid()] * 2
    assert list(in_order(lambda _: os.getpid(), [])) == []


def test_results_larger_than_a_pipe_are_waited_for() -> None:
    found = list(in_order(lambda item: bytes([item]) * 3_000_000, range(4)))
    assert [(result[0], len(result)) for result in found] == [(item, 3_000_000) for item in range(4)]


def test_the_first_failure_is_raised_as_it_was() -> None:
    def fails(item: int) -> int:
        if item >= 3:
            raise UsageError(f"item {item} cannot be")
        return item

    seen = []
    with pytest.raises(UsageError, match="item 3 cannot be"):
        for result in in_order(fails, range(6)):
            seen.append(result)
    assert seen == [0, 1, 2]


def test_what_a_killed_child_did_not_do_is_done_here() -> None:
    parent = os.getpid()

    def killed(item: int) -> tuple[int, bool]:
        if item == 3 and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return item, os.getpid() == parent

    found = list(in_order(killed, range(8)))
    assert [item for item, _ in found] == list(range(8))
    assert [item for item, here in found if here] == [3, 5, 7]


def test_children_end_when_nobody_wants_more() -> None:
    found = in_order(lambda item: (item, os.getpid()), range(1000))
    _, process = next(found)
    found.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_an_error_in_the_consumer_is_not_hidden() -> None:
    with pytest.raises(NormtuneError, match="stop"):
        for _ in in_order(lambda item: item, range(100)):
            raise NormtuneError("stop")
