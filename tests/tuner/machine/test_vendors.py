"""Each vendor's library tells the same things of a GPU; what it does not know is None, never an error or a guess."""

import sys
from types import SimpleNamespace

import pytest

from normtune.tests.tuner.made_up_smi import ADDRESS, UUID, AmdSmi, Nvml
from normtune.tuner.machine import vendor
from normtune.tuner.machine.vendor import HARDWARE, POWER, THERMAL, Clocks, State, open_library, smi_facts


@pytest.fixture
def nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", made := Nvml())
    return made


@pytest.fixture
def amdsmi(monkeypatch):
    monkeypatch.setitem(sys.modules, "amdsmi", made := AmdSmi())
    return made


def test_nvml_tells_all(nvml):
    library = open_library(is_hip=False)
    gpu = library.gpu(UUID)
    assert (library.driver, library.cuda, library.names(gpu)) == ("590.1", 13000, ("NVIDIA H200", f"GPU-{UUID}", UUID))
    assert [library.names(one) for one in library.gpus()] == [library.names(gpu)]
    assert library.clocks(gpu) == Clocks(1980, 40, ())  # an idle GPU is not slowed down
    assert library.state(gpu) == State(139 << 30, 140 << 30, 1980, 700, 700, (1,), False, 3, 0)
    assert library.cache_bytes(gpu) is None


@pytest.mark.parametrize(
    ("bits", "words"),
    [(0x4, (POWER,)), (0x20, (THERMAL,)), (0x48, (HARDWARE, THERMAL)), (0x88, (HARDWARE,)), (0x2 | 0x10 | 0x100, ())],
)
def test_the_reasons_of_nvml_are_words(nvml, bits, words):
    nvml.reasons = bits
    library = open_library(is_hip=False)
    assert library.clocks(library.gpu(UUID)).throttled == tuple(sorted(words))


def test_xid_errors_are_told_once(nvml):
    library = open_library(is_hip=False)
    nvml.xids = [79, 31]
    assert [library.faults("gpu") for _ in range(2)] == [[79, 31], []]


def test_amdsmi_tells_what_it_knows(amdsmi):
    library = open_library(is_hip=True)
    gpu = library.gpu(ADDRESS)
    assert (library.driver, library.cuda) == ("6.12.12", None)
    assert library.names(gpu) == ("AMD Instinct MI300X OAM", "abff74a1-0000-1000-80b2-000000000000", ADDRESS)
    assert library.clocks(gpu) == Clocks(2100, 51, ())
    total, used = 196_592 << 20, 592 << 20
    assert library.state(gpu) == State(total - used, total, 2100, 750, 750, (7, 8), False, 2, 0)
    assert library.cache_bytes(gpu) == 256 << 20  # the Infinity Cache, not the 4 MB of an L2
    assert library.faults(gpu) is None


def test_amdsmi_tells_heat_the_power_limit_and_partitions(amdsmi):
    amdsmi.active |= {"active_ppt_pwr": True, "active_hbm_thrm": True}
    amdsmi.partition = "CPX"
    library = open_library(is_hip=True)
    assert library.clocks("handle").throttled == tuple(sorted((POWER, THERMAL)))
    assert library.state("handle").is_divided is True


@pytest.mark.parametrize("is_hip", [False, True])
def test_what_a_library_does_not_tell_is_none(monkeypatch, is_hip):
    least = {
        "pynvml": SimpleNamespace(nvmlInit=lambda: None, nvmlSystemGetDriverVersion=lambda: "1"),
        "amdsmi": SimpleNamespace(
            amdsmi_init=lambda: None,
            amdsmi_get_processor_handles=list,
            amdsmi_get_clock_info=lambda gpu, kind: {"clk": "N/A", "max_clk": "N/A"},
            amdsmi_get_gpu_compute_partition=lambda gpu: "N/A",
            AmdSmiClkType=SimpleNamespace(GFX=0),
        ),
    }
    for name, module in least.items():
        monkeypatch.setitem(sys.modules, name, module)
    library = open_library(is_hip)
    assert library.clocks("gpu") == Clocks(None, None, None)
    assert library.state("gpu") == State(*[None] * len(State._fields))
    assert library.cache_bytes("gpu") is None


@pytest.mark.parametrize(
    ("files", "torch", "is_amd"),
    [
        ((), "2.11.0+rocm6.4", True),
        (("kfd",), "2.7.1a0+git1341794", True),  # as in ROCm's containers
        (("nvidiactl",), "2.11.0+cu130", False),
        (("nvidiactl", "kfd"), "2.11.0+cu130", False),  # the CPU's graphics beside a GPU of NVIDIA
        ((), "2.11.0+cu130", False),
    ],
)
def test_whose_gpus_are_here_is_seen_without_loading_anything(monkeypatch, tmp_path, files, torch, is_amd):
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(vendor, "NVIDIA_FILES", (str(tmp_path / "nvidiactl"),))
    monkeypatch.setattr(vendor, "AMD_FILE", str(tmp_path / "kfd"))
    monkeypatch.setattr(vendor, "version", lambda name: torch)
    assert vendor.is_amd_here() is is_amd


def test_the_facts_of_a_machine_name_the_library_and_what_it_says(monkeypatch, nvml, amdsmi):
    monkeypatch.setattr(vendor, "is_amd_here", lambda: True)
    facts = smi_facts()
    assert (facts["library"], facts["driver"], facts["cuda"]) == ("amdsmi", "6.12.12", None)
    (gpu,) = facts["gpus"]
    assert (gpu["id"], gpu["clock_mhz"], gpu["most_mhz"], gpu["processes"]) == (ADDRESS, 2100, 2100, (7, 8))
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert smi_facts()["missing"].startswith("ModuleNotFoundError")
    monkeypatch.setattr(vendor, "is_amd_here", lambda: False)
    nvml.nvmlDeviceGetCount = lambda: int("many")
    facts = smi_facts()
    assert facts == {"library": "NVML", "package": "nvidia-ml-py", "error": facts["error"]}
    assert facts["error"].startswith("ValueError: invalid literal")
