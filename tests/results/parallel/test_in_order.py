import os
import signal
import subprocess
import sys
import time

import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.results.parallel.maps import in_order
from normtune.results.parallel.processes import cores
from normtune.tests.commands import wait_until

LONG = 1.0


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    """As if there were two, so that children are made on any machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def test_results_come_in_order_and_from_two_other_processes() -> None:
    shared = list(range(1000))
    found = list(in_order(lambda item: (shared[item], os.getpid()), range(7), LONG))
    assert [result for result, _ in found] == list(range(7))
    assert len({process for _, process in found} - {os.getpid()}) == 2


def test_one_item_brief_ones_and_one_core_stay_in_this_process(monkeypatch) -> None:
    assert list(in_order(lambda _: os.getpid(), [1], LONG)) == [os.getpid()]
    assert list(in_order(lambda _: os.getpid(), [1, 2], 0.001)) == [os.getpid()] * 2
    assert list(in_order(lambda _: os.getpid(), [], LONG)) == []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert list(in_order(lambda _: os.getpid(), [1, 2], LONG)) == [os.getpid()] * 2


@pytest.mark.one_in(3)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_nested_maps_never_take_more_cores_than_there_are(count: int, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(count)})
    working_now, full = tmp_path / "working", tmp_path / "full"
    working_now.mkdir()

    def working(item: int) -> int:
        here = working_now / f"{os.getpid()}"
        here.touch()
        wait_until(lambda: full.exists() or len([*working_now.iterdir()]) >= count)
        full.touch()
        many = len([*working_now.iterdir()])
        time.sleep(0.02)
        here.unlink()
        return many

    found = in_order(lambda item: [item, *in_order(working, range(6), LONG)], range(2), LONG)
    nested = [*found]
    assert [first for first, *_ in nested] == [0, 1]
    assert max(most for _, *many in nested for most in many) == count


@pytest.mark.parametrize("brief", [0, 1])
def test_a_nested_map_takes_the_core_of_a_process_that_has_ended(brief: int) -> None:
    def nested(item: int) -> set[int]:
        if item == brief:
            return set()
        time.sleep(1.0)
        return {*in_order(lambda _: os.getpid(), range(4), LONG)}

    found = [*in_order(nested, range(2), LONG)]
    assert len(found[1 - brief]) == 2 and not found[brief]


def test_a_process_does_not_keep_its_core_until_its_large_result_is_taken() -> None:
    def nested(item: int) -> bytes | set[int]:
        if item == 1:
            return bytes(3_000_000)
        time.sleep(1.0)
        return {*in_order(lambda _: os.getpid(), range(4), LONG)}

    processes, large = in_order(nested, range(2), LONG)
    assert len(processes) == 2 and len(large) == 3_000_000


def test_a_killed_process_gives_its_core_back() -> None:
    def nested(item: int) -> set[int]:
        if item == 1:
            return set()
        time.sleep(1.0)
        here = os.getpid()

        def killed(inner: int) -> int:
            if inner == 1 and os.getpid() != here:
                os.kill(os.getpid(), signal.SIGKILL)
            return os.getpid()

        assert here in {*in_order(killed, range(2), LONG)}
        return {*in_order(lambda _: os.getpid(), range(4), LONG)}

    assert len(next(in_order(nested, range(2), LONG))) == 2


def test_results_larger_than_a_pipe_are_waited_for() -> None:
    found = list(in_order(lambda item: bytes([item]) * 3_000_000, range(4), LONG))
    assert [(result[0], len(result)) for result in found] == [(item, 3_000_000) for item in range(4)]


def test_the_first_failure_in_order_is_raised_as_it_was() -> None:
    def fails(item: int) -> int:
        if item >= 3:
            time.sleep(0.3 * (item == 3))  # item 4 fails before
            raise UsageError(f"item {item} cannot be")
        return item

    seen = []
    with pytest.raises(UsageError, match="item 3 cannot be"):
        for result in in_order(fails, range(6), LONG):
            seen.append(result)
    assert seen == [0, 1, 2]


def test_what_a_killed_child_did_not_do_is_done_here() -> None:
    parent = os.getpid()

    def killed(item: int) -> tuple[int, bool]:
        if item == 3 and os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return item, os.getpid() == parent

    found = list(in_order(killed, range(8), LONG))
    assert [item for item, _ in found] == list(range(8))
    assert [item for item, here in found if here] == [3, 5, 7]


def test_children_end_when_nobody_wants_more() -> None:
    others = {*_children(os.getpid())}  # of other tests in this process
    found = in_order(lambda item: (item, os.getpid(), item and time.sleep(60)), range(1000), LONG)
    next(found)
    children = {*_children(os.getpid())} - others
    assert children
    found.close()
    assert children.isdisjoint(_children(os.getpid()))


def test_an_error_in_the_consumer_is_not_hidden() -> None:
    with pytest.raises(NormtuneError, match="stop"):
        for _ in in_order(lambda item: item, range(100), LONG):
            raise NormtuneError("stop")


DRIVER = """
import os, sys, time
from normtune.results.parallel.maps import in_order
os.sched_getaffinity = lambda _: {*range(4)}
def begun():
    os.write(1, f"{os.getpid()}\\n".encode())
def nested(item):
    begun()
    return list(in_order(lambda inner: begun() or time.sleep(60), range(2), 1.0))
list(in_order(nested, range(2), 1.0))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_their_parent(number: int) -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout
        processes = [int(driver.stdout.readline()) for _ in range(4)]
        driver.send_signal(number)
        driver.wait(10)
    deadline = time.monotonic() + 10
    while running := [process for process in processes if _is_running(process)]:
        assert time.monotonic() < deadline, running
        time.sleep(0.05)


def test_cores_are_those_that_the_process_may_use() -> None:
    assert cores() == 2


def _children(process: int) -> list[str]:
    with open(f"/proc/{process}/task/{process}/children") as file:
        return file.read().split()


def _is_running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
