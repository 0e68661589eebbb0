"""A device is known by what CUDA's driver says, or a replay by the runs of a store, or not at all."""

import pytest

from normtune.errors import UsageError
from normtune.results.records import Device, Run
from normtune.tuner.device import unopened as module

H200 = Device("NVIDIA H200", "sm_90", 132, 50 << 20, 140 << 30, "aaaa-1", "580.1")


def unopened(name, regime, runs):
    (found,) = module.unopened(name, regime, runs)
    return found.identity


def run(device, started, **software):
    return Run("run", device, software, started, {"regime": "cold"})


def gpu(name, uuid, **limits):
    limits = {"target": "sm_90", "sms": 132, "l2_bytes": 50 << 20, "memory_bytes": 140 << 30} | limits
    return {"name": name, "uuid": uuid, "free_bytes": 7, "shared_bytes": 1000, "warp_size": 32, "max_threads": 1024} | (
        limits
    )


FACTS = {
    "driver": "590.2",
    "gpus": [gpu("NVIDIA H200", "aaaa-1"), gpu("NVIDIA Next", "bbbb-2", target="sm_130", sms=200)],
}


@pytest.mark.parametrize("facts", [{"missing": "no answer"}, {"error": "OSError: libcuda.so.1"}])
def test_without_a_driver_no_gpu_is_known(monkeypatch, facts):
    monkeypatch.setattr(module, "facts_in_child", lambda subject, seconds: facts)
    assert unopened("cuda:0", "cold", [run(H200, "2026")]) is None


def test_a_gpu_is_known_by_its_driver_and_its_software_by_its_newest_run(monkeypatch):
    monkeypatch.setattr(module, "facts_in_child", lambda subject, seconds: FACTS)
    runs = [run(H200, "2025", triton="2"), run(H200, "2026", triton="3"), run(H200._replace(uuid="c"), "2027")]
    for name in (None, "cuda:0", "cuda:00", "cuda"):
        known = unopened(name, "warm", runs)
        assert known.device == H200._replace(driver="590.2")
        assert known.target == ("sm_90", 132, 1000, 32, 1024, 50 << 20)
        assert (known.free_bytes, known.software, known.compiles, known.regime) == (7, {"triton": "3"}, True, "warm")
    other = unopened("cuda:1", "cold", runs)
    assert (other.device.label, other.target.name, other.target.sms, other.software) == (
        "NVIDIA Next",
        "sm_130",
        200,
        {},
    )
    assert unopened("cuda:2", "cold", runs) is None


def test_several_gpus_and_all_of_them_are_known_with_one_question(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "facts_in_child", lambda facts_of, seconds: asked.append(facts_of) or FACTS)
    for names, first in (("all", "cuda:0"), ("cuda:0,cuda:1", "cuda:0"), ("cuda, cuda:1", "cuda")):
        found = module.unopened(names, "cold", [])
        assert [one.identity.device.uuid for one in found] == ["aaaa-1", "bbbb-2"]
        assert [one.name for one in found] == [first, "cuda:1"]
    assert asked == [module.driver_facts] * 3
    monkeypatch.setattr(module, "facts_in_child", lambda subject, seconds: {"missing": "no answer"})
    assert module.unopened("all", "cold", []) == [(None, None)]


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ("tpu", "unknown device 'tpu': expected cuda:N or replay:NAME"),
        ("cuda:0,", "unknown device ''"),
        ("cuda:0,all", "unknown device 'all'"),
        ("cuda:0,cuda:00", "expected each GPU once"),
        ("cuda,cuda:0", "expected each GPU once"),
        ("cuda:0,replay:nvidia-h200", "expected GPUs or recordings, not both"),
    ],
)
def test_a_list_of_devices_is_checked(names, reason):
    with pytest.raises(UsageError, match=reason):
        module.names_of(names)


def test_a_replay_is_known_by_its_runs_and_no_driver_is_asked(monkeypatch):
    monkeypatch.setattr(module, "facts_in_child", None)
    replay = H200._replace(uuid="replay:nvidia-h200")
    assert unopened("replay:other", "cold", [run(replay, "2026")]) is None
    known = unopened("replay:nvidia-h200", "cold", [run(replay, "2026")])
    assert (known.device, known.target.sms, known.compiles) == (replay, 132, False)
    unknown_limits = run(replay._replace(target="sm_99"), "2026")
    assert unopened("replay:nvidia-h200", "cold", [unknown_limits]) is None
