"""What a search says besides its tasks passes through the searches around it."""

from normtune.kernels.target import TARGETS
from normtune.tests.tuner.search.test_plane import SPACES
from normtune.tuner.search.control import ControlSample, with_control
from normtune.tuner.search.exhaustive import Exhaustive
from normtune.tuner.search.plane.plane import Plane

TASKS = [one.task for one in SPACES[:4]]


def wrapped(strategy):
    return with_control(TASKS, {}, strategy, ControlSample({}, TARGETS["sm_90"]))


def test_what_only_some_searches_say_passes_through():
    search = wrapped(Plane)
    assert next(search.ask()) == next(search.ask())


def test_a_search_that_says_nothing_has_defaults():
    search = wrapped(Exhaustive)
    assert search.report() == {}
