"""Disturbed rounds are void and taken again, a bounded number of times; calm ones are not."""

import math

import pytest

from normtune.kernels.config import COPY
from normtune.tuner.timing.rounds import MAX_VOID_ROUNDS, RoundCounts, Rounds


class Batch:
    """A batch of launches that takes these times in turn, the last one for ever."""

    def __init__(self, *times):
        self.times = list(times)
        self.replays = 0

    def replay(self):
        self.last = self.times.pop(0) if len(self.times) > 1 else self.times[0]
        self.replays += 1

    def nanoseconds(self):
        return self.last


class Seen:
    """A watch that sees these rounds slowed down."""

    def __init__(self, *slowed):
        self.slowed, self.number = slowed, -1

    def begin_round(self):
        self.number += 1

    def end_round(self):
        return self.number in self.slowed


def taken(graphs, sentinel=(100,), slowed=(), repeatable=True, count=2, slept=None):
    rounds = Rounds(Batch(*sentinel), lambda: None, Seen(*slowed), 0, lambda: 0.0, (slept or []).append)
    return rounds.of(graphs, count, repeatable), rounds.counts


def test_calm_rounds_are_taken_once_in_their_order():
    graphs = {"a": Batch(10, 11), "b": Batch(30, 20), COPY: Batch(5, 9)}
    found, counts = taken(graphs)
    assert found == {"a": [10, 11], "b": [30, 20], COPY: [5, 9]}
    assert counts == RoundCounts(taken=2, void=0, slowed=0, kept=0)


@pytest.mark.parametrize(
    ("sentinel", "expected"),
    [
        ((100, 100, 103, 100), [1, 3]),  # after the second round
        ((100, 100, 97, 100), [1, 3]),  # faster is unusual, too
        ((100, 102, 99), [1, 2]),
    ],
)
def test_a_round_is_void_if_the_copy_is_unusual_and_none_begins_until_it_is_usual(sentinel, expected):
    slept = [0.0]
    found, counts = taken({"a": Batch(*(1000 + number for number in range(1, 9)))}, sentinel, slept=slept)
    assert found["a"] == [1000 + number for number in expected]
    assert counts == RoundCounts(taken=max(expected), void=max(expected) - 2, slowed=counts.void + len(slept) - 1)
    assert slept[1:] == [0.002 * 2**number for number in range(len(slept) - 1)]


def test_a_round_is_void_if_the_watch_saw_the_device_slowed_down():
    found, counts = taken({"a": Batch(1001, 1002, 1003, 1004)}, slowed=(0, 2))
    assert found["a"] == [1002, 1004] and counts == RoundCounts(4, 2, 2, 0)


def test_a_spike_of_a_fast_config_voids_the_round_for_all():
    found, counts = taken({"fast": Batch(1000, 1150, 1010), "slow": Batch(3000, 3001, 3002)})
    assert found == {"fast": [1000, 1010], "slow": [3000, 3002]} and counts == RoundCounts(3, 1, 0, 0)


@pytest.mark.parametrize("name", ["slow", COPY])
def test_a_spike_of_what_enters_no_table_voids_nothing(name):
    found, counts = taken({"fast": Batch(1000), name: Batch(1200, 3600)})
    assert found[name] == [1200, 3600] and counts.void == 0


def test_a_fast_copy_hides_no_config():
    found, counts = taken({COPY: Batch(10), "a": Batch(1000, 1500, 1000)})
    assert found["a"] == [1000, 1000] and counts.void == 1


def test_launches_that_do_not_repeat_their_times_are_judged_by_the_copy_alone():
    found, counts = taken({"a": Batch(1000, 1500, 1000)}, repeatable=False)
    assert found["a"] == [1000, 1500] and counts.void == 0


def test_the_least_disturbed_rounds_are_kept_in_the_end():
    times = [1000, *(round(1000 * math.exp(0.1 * number)) for number in (9, 4, 8, 2, 7, 6, 5))]
    found, counts = taken({"a": Batch(*times)})
    assert found["a"] == [1000, times[4]]
    assert counts == RoundCounts(taken=2 + MAX_VOID_ROUNDS, void=MAX_VOID_ROUNDS, slowed=0, kept=1)


def test_a_device_that_stays_slow_becomes_the_usual_one():
    sentinel = Batch(*[100] * 40, *[200] * 400)
    rounds = Rounds(sentinel, lambda: None, Seen(), 0, lambda: 0.0, lambda seconds: None)
    kept = []
    for _ in range(60):
        rounds.of({"a": Batch(1000)}, 2)
        kept.append(rounds.counts.kept)
    assert sum(kept) > 0 and kept[-1] == 0


def test_pauses_take_at_most_half_of_the_time_of_the_rounds():
    now, slept = [0.0], []

    class Lasting(Batch):
        def replay(self):
            super().replay()
            now[0] += 1e-4

    # Every third sentinel is slow, for ever.
    rounds = Rounds(Batch(*[100, 100, 150] * 5000), lambda: None, Seen(), 0, lambda: now[0], slept.append)
    for _ in range(300):
        rounds.of({"a": Lasting(1000)}, 2)
    longest = 0.002 * 2 ** (MAX_VOID_ROUNDS - 1)
    assert slept and sum(slept) <= now[0] / 2 + longest


def test_the_order_of_configs_differs_from_round_to_round():
    order = []

    class Noted(Batch):
        def replay(self):
            super().replay()
            order.append(self)

    graphs = {number: Noted(1000) for number in range(8)}
    taken(graphs, count=4)
    assert len({tuple(map(id, order[first : first + 8])) for first in range(0, 32, 8)}) == 4
