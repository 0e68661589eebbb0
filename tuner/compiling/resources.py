"""Shared memory, threads, registers and spills of a compiled kernel.

In: a kernel that Triton compiled, for a GPU that may be absent. Out: its `Resources`. Triton reports shared memory and
threads; registers and spills come from the cubin, by the `cuobjdump` that Triton ships, or from AMD's assembly.
"""

import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from normtune.errors import NormtuneError

_CUBIN = re.compile(r"\bREG:(?P<registers>\d+) STACK:(?P<stack>\d+) SHARED:\d+ LOCAL:(?P<local>\d+)")
_METADATA = re.compile(r"^ +\.(vgpr_count|private_segment_fixed_size): +(\d+)$", re.MULTILINE)


class Resources(NamedTuple):
    """Resources of one compiled kernel.

    Attributes:
        kernel: name of the kernel.
        binary: Triton's hash of it.
        shared_bytes: shared memory of a program.
        threads: threads of a program.
        registers: registers of 4 bytes per thread, AMD's accumulation registers included.
        spilled_bytes: local memory (AMD: scratch) of a thread. normtune's kernels declare none, so these are spilled
            registers.
    """

    kernel: str
    binary: str
    shared_bytes: int
    threads: int
    registers: int
    spilled_bytes: int


def resources_of(kernel: Any) -> Resources:
    """Resources of a kernel as `warmup` returns it.

    Raises:
        NormtuneError: `cuobjdump` is missing, or its output or the assembly has an unknown format.
    """
    item = kernel.metadata
    if item.target.backend == "cuda":
        counts = of_usage(_usage(kernel.asm["cubin"]))
    else:
        counts = of_assembly(kernel.asm["amdgcn"])
    return Resources(item.name, kernel.hash, item.shared, item.num_warps * item.target.warp_size, *counts)


def of_usage(text: str) -> tuple[int, int]:
    """Registers and spilled bytes of a thread, from the output of `cuobjdump -res-usage` for one kernel.

    Raises:
        NormtuneError: the text is not about exactly one kernel.
    """
    usages = [{name: int(value) for name, value in match.groupdict().items()} for match in _CUBIN.finditer(text)]
    if len(usages) != 1:
        raise NormtuneError(f"cuobjdump -res-usage prints {text[:200]!r}: expected REG, STACK and LOCAL of one kernel")
    return usages[0]["registers"], usages[0]["stack"] + usages[0]["local"]


def of_assembly(text: str) -> tuple[int, int]:
    """Registers and spilled bytes of a thread, from the metadata of AMD's assembly of one kernel.

    Raises:
        NormtuneError: the text does not have the metadata of exactly one kernel.
    """
    pairs = _METADATA.findall(text)
    counts = {name: int(value) for name, value in pairs}
    if len(pairs) != 2 or len(counts) != 2:
        raise NormtuneError(
            f"AMD's assembly has {sorted(pairs)}: expected .vgpr_count and .private_segment_fixed_size once"
        )
    return counts["vgpr_count"], counts["private_segment_fixed_size"]


def _usage(cubin: bytes) -> str:
    from triton import knobs

    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        try:
            return subprocess.check_output(
                [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)], text=True, stderr=subprocess.STDOUT
            )
        except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
            raise NormtuneError(f"cuobjdump of Triton cannot read a cubin ({error}): reinstall triton") from None
