"""Registers and spills of compiled kernels: what the tools print, and what they say of a kernel that spills."""

import re
import subprocess

import pytest

from normtune.errors import NormtuneError
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.tuner.compiling.pool import compile_all
from normtune.tuner.compiling.resources import of_assembly, of_usage
from normtune.tuner.plan.binaries import jobs_of

USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function a_kernel:
  REG:128 STACK:168 SHARED:1024 LOCAL:8 CONSTANT[0]:616 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
METADATA = """
    .private_segment_fixed_size: 92
    .sgpr_spill_count: 0
    .vgpr_count:     256
    .vgpr_spill_count: 22
"""


def test_texts_of_one_kernel_are_read():
    assert of_usage(USAGE) == (128, 176)
    assert of_assembly(METADATA) == (256, 92)


@pytest.mark.parametrize(
    ("read", "text"), [(of_usage, ""), (of_usage, 2 * USAGE), (of_assembly, ""), (of_assembly, 2 * METADATA)]
)
def test_texts_of_none_or_several_are_refused(read, text):
    with pytest.raises(NormtuneError, match="expected"):
        read(text)


def compiled(target, config, keep_assembly=True):
    spec = operator("rms_norm_backward")
    problem = spec.problem(4096, 16384, "bfloat16")
    jobs = jobs_of([(problem, spec.launch(config, problem, TARGETS[target]))])
    (found,) = compile_all(jobs, target, workers=1, keep_assembly=keep_assembly)
    assert found.status == "ok", found
    return found


@pytest.mark.slow
def test_figures_of_an_nvidia_kernel_are_those_of_its_assembler(tmp_path):
    found = compiled("sm_90", RMSNormConfig("persistent", 1, 16, 1, 1, "reduce"))
    assert [one.kernel for one in found.resources] == [name for name, _ in found.binaries]
    assert len({one.binary for one in found.resources}) == 2
    assert max(one.shared_bytes for one in found.resources) == found.shared_bytes
    assert max(one.threads for one in found.resources) == found.threads == 512
    assert found.resources[0].spilled_bytes > 0 == found.resources[1].spilled_bytes
    from triton import knobs

    for one, (_, text) in zip(found.resources, found.binaries, strict=True):
        assert not re.search(r"^\s*\.local\b", text, re.MULTILINE)  # so its local memory holds spilled registers alone
        path = tmp_path / "kernel.ptx"
        path.write_text(text)
        command = [knobs.nvidia.ptxas.path, "-v", "-arch=sm_90a", str(path), "-o", str(tmp_path / "cubin")]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        assert f"Used {one.registers} registers" in printed and f"{one.spilled_bytes} bytes stack frame" in printed


@pytest.mark.slow
def test_figures_of_an_amd_kernel_count_its_accumulation_registers():
    found = compiled("gfx942", RMSNormConfig("persistent", 1, 4, 1, 1, "reduce"))
    assert [one.kernel for one in found.resources] == [name for name, _ in found.binaries]
    assert 256 < found.resources[0].registers <= 512 and found.resources[0].threads == 256


@pytest.mark.slow
def test_resources_cost_nothing_unless_requested():
    assert compiled("sm_90", RMSNormConfig("persistent", 1, 16, 1, 1, "reduce"), keep_assembly=False).resources == ()
