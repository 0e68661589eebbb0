"""A device is known by the runs of a store and the driver's list of GPUs, or not at all."""

import pytest

from normtune.results.records import Device, Run
from normtune.tuner.device import unopened as module
from normtune.tuner.device.unopened import gpu_of, unopened

H200 = Device("NVIDIA H200", "sm_90", 132, 50 << 20, 140 << 30, "aaaa-1", "580.1")


def run(device, started, **software):
    return Run("run", device, software, started, {"regime": "cold"})


def gpu(name, uuid, mig=False):
    return {"name": name, "uuid": f"GPU-{uuid}", "free_bytes": 7, "mig": mig}


TWO = [gpu("NVIDIA H200", "aaaa-1"), gpu("NVIDIA H200", "bbbb-2")]
MIXED = [gpu("NVIDIA H200", "aaaa-1"), gpu("NVIDIA L4", "bbbb-2")]


@pytest.mark.parametrize(
    ("index", "gpus", "environment", "uuid"),
    [
        (0, TWO, {}, "aaaa-1"),
        (1, TWO, {}, "bbbb-2"),
        (2, TWO, {}, None),
        (0, [], {}, None),
        (0, TWO, {"CUDA_VISIBLE_DEVICES": "1"}, "bbbb-2"),
        (1, TWO, {"CUDA_VISIBLE_DEVICES": "1, 0"}, "aaaa-1"),
        (1, TWO, {"CUDA_VISIBLE_DEVICES": "1"}, None),
        *((0, TWO, {"CUDA_VISIBLE_DEVICES": visible}, None) for visible in ("", "2", "-1", "GPU-aaaa", "0,7")),
        (0, MIXED, {}, None),
        (1, MIXED, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, "bbbb-2"),
        (0, [gpu("NVIDIA H200", "aaaa-1", mig=True)], {}, None),
    ],
)
def test_the_gpu_that_cuda_numbers_so_is_named_only_where_that_is_certain(index, gpus, environment, uuid):
    found = gpu_of(index, {"gpus": gpus}, environment)
    assert (found and found["uuid"]) == (uuid and f"GPU-{uuid}")


@pytest.mark.parametrize("facts", [{"missing": "no NVML"}, {"error": "NVML_ERROR"}])
def test_without_nvml_no_gpu_is_known(monkeypatch, facts):
    monkeypatch.setattr(module, "ask", lambda subject, seconds: facts)
    assert unopened("cuda:0", "cold", [run(H200, "2026")]) is None


def test_a_gpu_is_known_by_its_newest_run_and_has_the_present_driver(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(module, "ask", lambda subject, seconds: {"driver": "590.2", "gpus": TWO})
    runs = [run(H200._replace(sms=1), "2025"), run(H200, "2026", triton="3"), run(H200._replace(uuid="c"), "2027")]
    for name in (None, "cuda:0", "cuda:00", "cuda"):
        known = unopened(name, "warm", runs)
        assert known.device == H200._replace(driver="590.2")
        assert (known.target.name, known.target.sms, known.target.l2_bytes) == ("sm_90", 132, 50 << 20)
        assert (known.free_bytes, known.software, known.regime) == (7, {"triton": "3"}, "warm")
    assert unopened("cuda:1", "cold", runs) is None  # no run of it
    assert unopened(None, "cold", [run(H200._replace(target="sm_99"), "2026")]) is None  # limits not known


def test_who_has_only_replays_is_not_asked_for_a_gpu(monkeypatch):
    monkeypatch.setattr(module, "ask", None)
    replay = H200._replace(uuid="replay:nvidia-h200")
    assert unopened(None, "cold", [run(replay, "2026")]) is None
    assert unopened("cuda:x", "cold", [run(H200, "2026")]) is None
    assert unopened("tpu", "cold", [run(H200, "2026")]) is None
    assert unopened("replay:other", "cold", [run(replay, "2026")]) is None
    assert unopened("replay:nvidia-h200", "cold", [run(replay, "2026")]).device == replay
