"""What a compiled kernel occupies of a GPU, in the compiler's own figures.

In: a kernel that Triton compiled, for a GPU that may be absent. Out: its `Resources`. Triton knows shared memory and
threads; registers and spills are read from the cubin by the `cuobjdump` that Triton ships, or from AMD's assembly.
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
        kernel: its name.
        binary: Triton's hash of it.
        shared_bytes: shared memory of a program.
        threads: threads of a program.
        registers: of 4 bytes, a thread; AMD's accumulation registers are among them.
        spilled_bytes: local memory (AMD: scratch) of a thread. The project's kernels declare none of their own, so
            these are spilled registers.
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
        NormtuneError: `cuobjdump` is missing or answers in another format, or the assembly has another one.
    """
    item = kernel.metadata
    if item.target.backend == "cuda":
        counts = of_usage(_usage(kernel.asm["cubin"]))
    else:
        counts = of_assembly(kernel.asm["amdgcn"])
    return Resources(item.name, kernel.hash, item.shared, item.num_warps * item.target.warp_size, *counts)


def of_usage(text: str) -> tuple[int, int]:
    """Registers and spilled bytes of a thread, from what `cuobjdump -res-usage` prints about one kernel.

    Raises:
        NormtuneError: the text is not about exactly one kernel.
    """
    found = [{name: int(value) for name, value in match.groupdict().items()} for match in _CUBIN.finditer(text)]
    if len(found) != 1:
        raise NormtuneError(f"cuobjdump -res-usage answers {text[:200]!r}: expected REG, STACK and LOCAL of one kernel")
    return found[0]["registers"], found[0]["stack"] + found[0]["local"]


def of_assembly(text: str) -> tuple[int, int]:
    """Registers and spilled bytes of a thread, from the metadata of AMD's assembly of one kernel.

    Raises:
        NormtuneError: the text does not have the metadata of exactly one kernel.
    """
    found = _METADATA.findall(text)
    counts = {name: int(value) for name, value in found}
    if len(found) != 2 or len(counts) != 2:
        raise NormtuneError(
            f"AMD's assembly has {sorted(found)}: expected .vgpr_count and .private_segment_fixed_size once"
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
