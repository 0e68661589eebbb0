"""Clocks are reported if NVML answers, and nothing else depends on them."""

import sys
from types import SimpleNamespace

import pytest

from normtune.tuner.timing.clocks import ClockWatch


def test_without_nvml_there_is_a_reason_and_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    watch = ClockWatch("0")
    watch.start()
    assert "pynvml" in str(watch.stop()["nvml"])
    assert watch.latest is None


def test_the_latest_sample_and_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = iter((1200, 1980, 1500))
    asked: list[str] = []

    def clock(handle: object, kind: object) -> int:
        return next(clocks)  # the fourth call ends the thread

    fake = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=asked.append,
        nvmlDeviceGetClockInfo=clock,
        nvmlDeviceGetTemperature=lambda handle, kind: 40,
        NVML_CLOCK_SM=0,
        NVML_TEMPERATURE_GPU=0,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr("normtune.tuner.timing.clocks._PERIOD_SECONDS", 0.001)
    watch = ClockWatch("abc")
    watch.start()
    watch._thread.join(10)
    assert watch.latest == 1500 and asked == ["GPU-abc"]
    assert watch.stop() == {"sm_clock_mhz": [1200, 1500, 1980], "temperature_c": 40}
