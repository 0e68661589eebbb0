"""Reasons why a sweep finds no GPU, with advice.

In: facts of `probe`. Out: a reason in one line. The caller decides whether it is a failure.
"""

import os
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from normtune.kernels.calling.probe import Facts, torch_facts
from normtune.tuner.machine import vendor
from normtune.tuner.machine.packages import triton_facts

_VISIBLE = "CUDA_VISIBLE_DEVICES"
# ROCm obeys these, too.
_VISIBLE_TO_ROCM = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", _VISIBLE)
_NO_DRIVER = "no NVIDIA driver is found: install it, or give the container the GPU (`docker run --gpus all`)"
_TORCH_BUILD = "install a build of torch with CUDA or ROCm, as pytorch.org/get-started shows"


def why_no_gpu() -> str:
    """Why this process cannot measure a GPU, with advice, in one line; empty if torch sees a GPU and Triton is there.

    It may load torch and start CUDA.
    """
    if reason := at_a_glance():
        return reason
    facts = torch_facts()
    return without_torch(facts) or without_gpu(facts) or without_triton(triton_facts())


def at_a_glance() -> str:
    """A reason that needs no import of torch, which takes seconds; empty without one."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        return ""
    if torch.endswith("+cpu"):
        return _without_cuda(torch)
    files = (vendor.AMD_FILE,) if "+rocm" in torch else (*vendor.NVIDIA_FILES, vendor.AMD_FILE)
    has_driver = any(Path(file).exists() for file in files)
    return "" if has_driver else _no_amd_driver() if "+rocm" in torch else _NO_DRIVER


def _without_cuda(torch: str) -> str:
    return f"torch {torch} is built without CUDA and ROCm: {_TORCH_BUILD}"


def without_torch(facts: Facts) -> str:
    """Reason why torch cannot be used; empty if it can."""
    return _unusable("torch", facts, _TORCH_BUILD)


def without_triton(facts: Facts) -> str:
    """Reason why Triton cannot be used; empty if it can."""
    return _unusable("triton", facts, "`pip install triton` (it runs on Linux)")


def _unusable(name: str, facts: Facts, install: str) -> str:
    reason = facts.get("missing")
    if not reason:
        return ""
    if reason.startswith("ModuleNotFoundError") and f"'{name}'" in reason:
        return f"{name} is not installed ({reason}): {install}"
    return f"{name} is broken ({reason}): install it again, `pip install --force-reinstall {name}`"


def without_gpu(facts: Facts) -> str:
    """Reason why an importable torch sees no GPU, from its facts without `missing`; empty if it sees one."""
    torch, error = facts["version"], facts["error"]
    if facts["gpus"]:
        return ""
    if facts["hip"]:
        return _without_amd(error)
    if not facts["cuda"]:
        return _without_cuda(torch)
    if "too old" in error:
        return _old_driver(torch, facts["cuda"], error)
    visible = os.environ.get(_VISIBLE)
    if visible is not None and (not error or "No CUDA GPUs" in error):
        return f"no GPU is visible ({_VISIBLE}={visible!r}): unset it, or name a GPU that `nvidia-smi -L` lists"
    if "no NVIDIA driver" in error:
        return _NO_DRIVER
    if not error or "No CUDA GPUs" in error:
        return "the NVIDIA driver lists no GPU: `nvidia-smi -L` should; give the container or machine one"
    return f"CUDA does not start ({error}): `nvidia-smi` shows whether the driver works; a restart often helps"


def _no_amd_driver() -> str:
    return (
        f"{vendor.AMD_FILE} of AMD's driver is not there: install the driver, or give the container the GPU (`docker "
        f"run --device {vendor.AMD_FILE} --device /dev/dri`)"
    )


def _without_amd(error: str) -> str:
    for name in _VISIBLE_TO_ROCM:
        if (visible := os.environ.get(name)) is not None:
            return f"no GPU is visible ({name}={visible!r}): unset it, or name a GPU that `amd-smi list` lists"
    if not Path(vendor.AMD_FILE).exists():
        return _no_amd_driver()
    return (
        f"ROCm finds no GPU ({error or 'it lists none'}): `rocminfo` should list it; a user needs the groups `render` "
        "and `video`"
    )


def _old_driver(torch: str, cuda: str, error: str) -> str:
    match = re.search(r"found version (\d+)", error)
    number = int(match[1]) if match else 0
    supported = f"{number // 1000}.{number % 1000 // 10}" if number else "of an older version"
    return (
        f"the NVIDIA driver is too old: it supports CUDA {supported}, torch {torch} is built for CUDA {cuda}; update "
        f"the driver, or install a torch that is built for CUDA {supported}"
    )
