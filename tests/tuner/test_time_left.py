"""What a sweep says of its time, for a search that decides itself when it ends."""

import math

import pytest

from normtune.benchmarks.lib.simulation import simulate
from normtune.tests.tuner.search.test_plane import SPACES
from normtune.tuner.search.plane.plane import Plane
from normtune.tuner.sweep.pace import Pace

# Of times on an H200 (mean over the default grid): seconds of a task, and of each of its configs.
TASK, CONFIG = 0.12, 0.045


def told(spaces, **options):
    """For each task its end, seconds, and the seconds said to be left."""
    events = []

    def strategy(tasks, known):
        search = Plane(tasks, known, **options)
        pace = Pace()
        tell = search.tell

        def hear(task, outcomes):
            taken = TASK + CONFIG * len(task.candidates)
            pace.measured(task, taken)
            tell(task, outcomes)
            end = events[-1][0] if events else 0.0
            events.append((end + taken, pace.left_seconds(search.pending())))

        search.tell = hear
        return search

    assert simulate(strategy, spaces, 0, math.inf).is_done
    return events


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spaces", "options", "within"), [(SPACES[::2], {"most": 9}, 0.25), (SPACES, {}, 0.8), (SPACES[::2], {}, 0.7)]
)
def test_the_time_left_is_about_right_in_the_second_half(spaces, options, within):
    """Without a bound, how long timings will gain enough is not known before."""
    events = told(spaces, **options)
    end = events[-1][0]
    for now, left in events:
        assert left is None or left < 1.5 * end
        if now >= 0.5 * end:
            assert left == pytest.approx(end - now, rel=within, abs=0.02 * end)
    assert events[-1][1] == 0.0
