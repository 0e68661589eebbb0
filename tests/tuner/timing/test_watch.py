"""What disturbs a GPU is seen by its vendor's library, and told once, with the next step."""

import re
import sys
import time
from pathlib import Path

import pytest

from normtune.tests.tuner.made_up_smi import ADDRESS, UUID, AmdSmi, Nvml
from normtune.tuner.timing import watch as module
from normtune.tuner.timing.disturbance import WARNINGS, Disturbance, of_rounds, warned
from normtune.tuner.timing.rounds import RoundCounts
from normtune.tuner.timing.watch import Watch


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setattr(module, "PERIOD_SECONDS", 0.001)
    monkeypatch.setattr(module, "STATE_EVERY", 2)
    monkeypatch.setitem(sys.modules, "pynvml", made := Nvml())
    return made


def watched(before_the_end=lambda: None, name=UUID, is_hip=False):
    """The entries of a protocol after at least six samples of the watch."""
    watch = Watch(name, is_hip)
    watch.start()
    sampled(watch, 3)
    before_the_end()
    watch.begin_round()
    sampled(watch, 3)
    watch.end_round()
    return watch.stop()


def sampled(watch, count):
    wanted = len(watch._clocks) + count
    while len(watch._clocks) < wanted:
        assert watch._thread.is_alive(), watch._error
        time.sleep(0.001)


def test_a_quiet_gpu_is_not_told(nvml):
    assert watched() == {"sm_clock_mhz": [1980, 1980, 1980], "temperature_c": 40}


@pytest.mark.parametrize(
    ("change", "name", "found"),
    [
        ({"processes": [1, 2, 3]}, "other_processes", "2 other processes on the GPU"),
        ({"reasons": 0x48}, "throttled", "the GPU slowed itself down (hardware slowdown, heat)"),
        ({"reasons": 0x4}, "power_limited", re.compile(r"the power limit held clocks down in [1-9]\d+? % of the time")),
        ({"power": 500_000}, "power_lowered", "the power limit is 500 of 700 W"),
        ({"most": 2500}, "low_clocks", "the clock was 1980 of 2500 MHz"),
        ({"errors": [5, 1]}, "ecc_errors", "2 corrected and 1 uncorrected ECC errors"),
        ({"xids": [79, 31, 79]}, "faults", "the driver reported XID 31, 79"),
    ],
)
def test_a_disturbance_is_told_by_its_name(nvml, change, name, found):
    warnings = watched(lambda: vars(nvml).update(change))[WARNINGS]
    assert [*warnings] == [name]
    assert found.fullmatch(warnings[name]) if isinstance(found, re.Pattern) else warnings[name] == found


def test_old_errors_are_not_told(nvml):
    nvml.errors = [100, 7]
    assert WARNINGS not in watched()


def test_a_round_is_slow_if_the_clock_falls_or_the_gpu_is_hot(nvml):
    watch = Watch(UUID)
    watch.start()

    def is_slow(**change):
        watch.begin_round()
        vars(nvml).update(change)
        sampled(watch, 4)
        return watch.end_round()

    assert not is_slow()
    assert not is_slow(clocks=[1950])
    assert is_slow(clocks=[1800])
    is_slow(clocks=[1980], reasons=0x4)  # its first sample may be older than the change
    assert not is_slow()
    assert is_slow(reasons=0x40)
    watch._stop.set()
    watch._thread.join()
    watch.begin_round()
    assert watch.end_round()  # the reason of the last sample lasts, in a round without one
    watch.stop()


def test_without_a_library_the_reason_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    watch = Watch(UUID)
    watch.start()
    watch.begin_round()
    assert not watch.end_round()
    assert watch.latest is None
    (one,) = warned(watch.stop())
    assert one.disturbance is Disturbance.UNWATCHED
    assert one.line().startswith("nobody watched the GPU (ModuleNotFoundError: ") and "`normtune doctor`" in one.line()


def test_a_gpu_of_amd_is_watched_by_amdsmi_and_what_it_does_not_tell_is_named(nvml, monkeypatch):
    made = AmdSmi()
    made.amdsmi_get_violation_status = made.amdsmi_get_power_cap_info = lambda gpu: {}
    monkeypatch.setitem(sys.modules, "amdsmi", made)
    found = watched(name=ADDRESS, is_hip=True)
    assert (found["sm_clock_mhz"], found["temperature_c"]) == ([2100, 2100, 2100], 51)
    assert found["not_told"] == ["default_power_watts", "power_watts", "throttled"]
    assert found[WARNINGS] == {"other_processes": "1 other process on the GPU"}


@pytest.mark.parametrize(
    ("counts", "names"),
    [
        (RoundCounts(1000, 80, 5, 4), []),
        (RoundCounts(1000, 210, 0, 0), ["void_rounds"]),
        (RoundCounts(1000, 80, 60, 0), ["void_rounds"]),
        (RoundCounts(1000, 300, 200, 20), ["void_rounds", "disturbed_rounds"]),
        (RoundCounts(40, 40, 40, 40), []),
    ],
)
def test_rounds_are_told_where_more_are_disturbed_than_on_a_quiet_gpu(counts, names):
    assert [*of_rounds(counts)] == names


def test_warnings_come_in_the_order_of_the_list_and_unknown_names_are_left_out():
    entries = {"of_another_version": "x", "void_rounds": "9 of 9", "other_processes": "2 of them"}
    found = warned({WARNINGS: entries})
    assert [(one.disturbance, one.found) for one in found] == [
        (Disturbance.OTHER_PROCESSES, "2 of them"),
        (Disturbance.VOID_ROUNDS, "9 of 9"),
    ]
    assert warned({}) == warned({WARNINGS: 3}) == []


def test_the_docs_list_every_disturbance():
    text = (Path(__file__).parents[3] / "docs" / "measuring.md").read_text()
    assert {one.key for one in Disturbance} <= {*re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)}
