"""Reasons of a missing GPU, from fakes of torch and Triton that fail as the real ones do."""

import os
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from normtune.kernels.calling.probe import facts_in_child, torch_facts
from normtune.tests.commands import python
from normtune.tuner.machine import no_gpu, vendor
from normtune.tuner.machine.no_gpu import without_gpu, without_torch, without_triton
from normtune.tuner.machine.packages import triton_facts

BUILT = {"version": "2.11.0+cu130", "cuda": "13.0", "hip": None, "error": "", "gpus": []}
OLD = "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"
FAKE_TORCH = """
__version__ = "2.11.0+cu130"
class version: cuda, hip = "13.0", None
class Tensor: ...
class cuda:
    @staticmethod
    def init(): raise RuntimeError({error!r})
"""


@pytest.mark.parametrize(
    ("torch", "has_driver", "says"),
    [
        ("2.11.0+cpu", True, "torch 2.11.0+cpu is built without CUDA and ROCm: install a build of torch with CUDA"),
        ("2.11.0", False, "no NVIDIA driver is found: install it"),
        ("2.11.0+cu130", True, ""),
        ("2.11.0+rocm6.4", False, "/dev/none of AMD's driver is not there"),
        ("2.11.0+rocm6.4", True, ""),
        (None, False, ""),
    ],
)
def test_what_is_seen_without_torch(torch, has_driver, says, tmp_path, monkeypatch):
    def version(name):
        assert name == "torch"
        if torch is None:
            raise PackageNotFoundError(name)
        return torch

    monkeypatch.setattr(no_gpu, "version", version)
    monkeypatch.setattr(vendor, "NVIDIA_FILES", (tmp_path / "none", tmp_path) if has_driver else (tmp_path / "none",))
    monkeypatch.setattr(vendor, "AMD_FILE", str(tmp_path) if has_driver else "/dev/none")
    found = no_gpu.at_a_glance()
    assert found.startswith(says) and bool(found) == bool(says)


@pytest.mark.parametrize(
    ("facts", "environment", "says"),
    [
        (
            {"cuda": None},
            {},
            ("torch 2.11.0+cu130 is built without CUDA", "install a build of torch with CUDA or ROCm"),
        ),
        ({"cuda": None, "hip": "6.4"}, {}, ("ROCm finds no GPU (it lists none)", "`rocminfo`", "`render`")),
        ({"cuda": None, "hip": "6.4", "error": "no such device"}, {}, ("ROCm finds no GPU (no such device)",)),
        ({"cuda": None, "hip": "6.4"}, {"HIP_VISIBLE_DEVICES": "9"}, ("(HIP_VISIBLE_DEVICES='9')", "`amd-smi list`")),
        ({"cuda": None, "hip": "6.4", "gpus": [{}]}, {}, ()),
        ({"error": OLD}, {}, ("the NVIDIA driver is too old: it supports CUDA 11.4", "built for CUDA 13.0", "update")),
        ({"error": "RuntimeError: driver too old"}, {}, ("supports CUDA of an older version", "update the driver")),
        ({"error": "RuntimeError: No CUDA GPUs are available"}, {}, ("lists no GPU", "`nvidia-smi -L`")),
        (
            {"error": "RuntimeError: No CUDA GPUs are available"},
            {"CUDA_VISIBLE_DEVICES": ""},
            ("no GPU is visible (CUDA_VISIBLE_DEVICES='')", "unset it"),
        ),
        ({}, {"CUDA_VISIBLE_DEVICES": "7"}, ("no GPU is visible (CUDA_VISIBLE_DEVICES='7')", "unset it")),
        ({"error": "RuntimeError: Found no NVIDIA driver on your system."}, {}, ("no NVIDIA driver", "install it")),
        ({"error": "RuntimeError: Error 802: system not yet initialized"}, {}, ("Error 802", "`nvidia-smi`")),
        ({"gpus": [{}]}, {"CUDA_VISIBLE_DEVICES": "0"}, ()),
    ],
)
def test_what_torch_says_becomes_a_reason_with_advice(facts, environment, says, monkeypatch):
    monkeypatch.setattr(vendor, "AMD_FILE", "/dev/null")
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    reason = without_gpu(BUILT | facts)
    assert [part for part in says if part not in reason] == []
    assert bool(reason) == bool(says)
    assert "\n" not in reason


@pytest.mark.parametrize("name", ["torch", "triton"])
def test_what_is_missing_is_told_from_what_is_broken(name):
    explain = {"torch": without_torch, "triton": without_triton}[name]
    assert f"{name} is not installed" in explain({"missing": f"ModuleNotFoundError: No module named '{name}'"})
    assert "broken (ModuleNotFoundError" in explain({"missing": "ModuleNotFoundError: No module named 'sympy'"})
    assert f"--force-reinstall {name}" in explain({"missing": "OSError: libcudart.so.13: cannot open"})
    assert explain({"version": "1"}) == ""


@pytest.fixture
def fake(root, tmp_path, monkeypatch):
    """Puts a module of that name and code first on the path of this process and its children."""
    (tmp_path / "normtune").symlink_to(root)
    monkeypatch.syspath_prepend(tmp_path)

    def put(name: str, code: str) -> Path:
        (tmp_path / f"{name}.py").write_text(code)
        return tmp_path

    return put


@pytest.fixture
def root():
    return Path(__file__).parents[3]


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("raise ImportError('no torch here')", "ImportError: no torch here"),
        ("raise OSError('libcudart.so.13: cannot open\\nshared object file')", "OSError: libcudart.so.13: cannot open"),
        ("raise RuntimeError", "RuntimeError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import os; os._exit(3)", "exit code 3"),
        ("import os, sys; print('bang', file=sys.stderr, flush=True); os.abort()", "with signal 6: bang"),
    ],
)
def test_a_library_that_breaks_on_import_is_a_fact(fake, code, says):
    fake("torch", code)
    assert says in facts_in_child(torch_facts)["missing"]


@pytest.mark.long
def test_a_library_that_never_returns_is_a_fact(fake):
    fake("triton", "import time; time.sleep(600)")
    assert facts_in_child(triton_facts, timeout=0.5) == {"missing": "loading it takes over 0.5 s"}


def test_what_a_library_prints_is_no_fact(fake):
    fake("torch", "print('loading'); print('{}')" + FAKE_TORCH.format(error="No CUDA GPUs are available"))
    assert facts_in_child(torch_facts) == BUILT | {"error": "RuntimeError: No CUDA GPUs are available"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("torch", "triton", "says"),
    [
        ("raise OSError('libcudart.so.13: cannot open')", "", "torch is broken (OSError: libcudart.so.13"),
        (FAKE_TORCH.format(error="Found no NVIDIA driver on your system."), "", "no NVIDIA driver is found"),
        (FAKE_TORCH.format(error=OLD), "", "the NVIDIA driver is too old: it supports CUDA 11.4"),
        (
            FAKE_TORCH.format(error="") + "    init = device_count = staticmethod(lambda: 0)",
            "",
            "the NVIDIA driver lists no GPU",
        ),
    ],
)
def test_the_reason_is_one_line_in_the_process_that_asks(fake, torch, triton, says):
    fake("triton", triton)
    folder = fake("torch", torch)
    code = "from normtune.tuner.machine import no_gpu; no_gpu.at_a_glance = str; print(no_gpu.why_no_gpu())"
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    done = python("-c", code, env=env)
    assert done.stdout.startswith(says) and done.stdout.count("\n") == 1, done.stdout + done.stderr
