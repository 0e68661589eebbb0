"""What a sweep says of its time, for a search that decides itself when it ends."""

import math

import pytest

from normtune.benchmarks.lib.simulation import simulate
from normtune.tests.tuner.search.test_plane import SPACES
from normtune.tuner.plan.estimate import Estimate
from normtune.tuner.plan.plan import Plan
from normtune.tuner.search.plane.plane import Plane
from normtune.tuner.sweep.outlook import Outlook
from normtune.tuner.sweep.report import expected_line
from normtune.tuner.sweep.schedule import Schedule

# Of the times expected on an H200 (mean over the default grid): seconds of a task, and of each of its configs.
TASK, CONFIG = 0.12, 0.045


class Pace:
    """Expected times; a task takes `factor` times as long."""

    factor = 1.3

    def measuring(self, task, binaries):
        return TASK + CONFIG * len(task.candidates)


def told(spaces, **options):
    """The expected time, at least and at most, and for each task (seconds until its end, seconds said to be left)."""
    events, expected = [], []

    def strategy(tasks, known):
        search, pace = Plane(tasks, known, **options), Pace()
        left = tuple(search.left())
        seconds = sum(pace.measuring(task, 0) for task in left)
        expected.extend([seconds, seconds * search.longest])
        going = Schedule(None, search, pace, left)
        tell = search.tell

        def hear(task, outcomes):
            taken = pace.factor * pace.measuring(task, 0)
            going.measured(task, taken)
            tell(task, outcomes)
            end = events[-1][0] if events else 0.0
            events.append((end + taken, going.left_seconds([*search.left(), *search.coming()])))

        search.tell = hear
        return search

    assert simulate(strategy, spaces, 0, math.inf).is_done
    return expected, events


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spaces", "options", "within"), [(SPACES[::2], {"most": 9}, 0.25), (SPACES, {}, 0.7), (SPACES[::2], {}, 0.7)]
)
def test_the_time_left_is_about_right_in_the_second_half(spaces, options, within):
    """Without a bound, how long timings will gain enough is not known before."""
    _, events = told(spaces, **options)
    end = events[-1][0]
    for now, left in events:
        assert left < 1.5 * end
        if now >= 0.5 * end:
            assert left == pytest.approx(end - now, rel=within, abs=0.02 * end)
    assert events[-1][1] == 0.0


@pytest.mark.slow
def test_a_bound_says_how_long_a_sweep_takes_and_without_one_it_is_a_range():
    (least, most), events = told(SPACES[::2], most=9)
    assert least == most == pytest.approx(events[-1][0] / Pace.factor, rel=0.35)
    for options in ({}, {"until": 0.01}):
        (least, most), events = told(SPACES[::2], **options)
        assert least < events[-1][0] / Pace.factor < most


def test_a_range_is_told_as_one():
    outlook = Outlook(Plan((), {}), (), 0, 0, Estimate(3.0, 2.0, 5.0, 45.0, 5.0), None, 5.0)
    assert expected_line(outlook) == "expected: about 60 s to 4.7 minutes, until no config is worth its time"
    assert expected_line(outlook._replace(longest=1.1)) == (
        "expected: about 60 s (5.0 s to start, 5.0 s gate, 50 s timing)"
    )
