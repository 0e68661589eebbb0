"""Parts of the plane of shapes by a kernel's bound: the launch, the memory, or neither alone.

In: the bytes that a problem moves and the size of the last-level cache. Out: the part, and its name.
"""

from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem

# Below this no config gets near a copy of as many bytes: the time is mostly the launch.
LAUNCH_BYTES = 1 << 20
PARTS = (0, 1, 2)


def part(spec: OperatorSpec, problem: Problem, l2_bytes: int) -> int:
    """0 if launch bound, up to 1 MB moved; 2 if memory bound, beyond the last-level cache; 1 between."""
    moved = spec.bytes_moved(problem)
    if moved <= LAUNCH_BYTES:
        return 0
    return 2 if moved > l2_bytes else 1


def name(which: int, l2_bytes: int) -> str:
    """Name of a part in tables."""
    cache = f"{l2_bytes / (1 << 20):g} MB"
    return ("launch bound, to 1 MB moved", f"1 to {cache}", f"memory bound, over {cache} (the L2)")[which]
