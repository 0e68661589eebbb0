"""Limits of a GPU, which decide whether a launch is legal, and its name for a line of text.

In: nothing; the driver's name. Out: `Target` and the known targets by name; one line of printable ASCII, by which a
table finds its GPU. Knows no kernel and queries no device.
"""

import re
from functools import cache
from typing import NamedTuple

from normtune.errors import UsageError

# Sanity limit: the largest GPU has 304 multiprocessors.
MOST_SMS = 4096
# Some names by which drivers report GPUs, for the hint beside a name that is none of them; not complete.
DRIVER_NAMES = (
    "NVIDIA A10",
    "NVIDIA A100-PCIE-40GB",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA A100 80GB PCIe",
    "NVIDIA A10G",
    "NVIDIA B200",
    "NVIDIA GB200",
    "NVIDIA GH200 480GB",
    "NVIDIA GeForce RTX 3090",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA GeForce RTX 5060 Ti",
    "NVIDIA GeForce RTX 5090",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H100 NVL",
    "NVIDIA H100 PCIe",
    "NVIDIA H20",
    "NVIDIA H200",
    "NVIDIA H200 NVL",
    "NVIDIA L4",
    "NVIDIA L40S",
    "AMD Instinct MI250X",
    "AMD Instinct MI300X",
    "AMD Instinct MI325X",
    "AMD Instinct MI355X",
)
# Longest name of a GPU, characters.
MAX_LETTERS = 80
UNNAMED = "unnamed GPU"


class Target(NamedTuple):
    """Limits of one GPU.

    Attributes:
        name: the compiler's name, `sm_90` or `gfx942`.
        sms: number of multiprocessors (compute units).
        shared_bytes: shared memory that one program may use, bytes.
        warp_size: threads a warp.
        max_threads: threads a program.
        l2_bytes: size of the last-level cache, bytes.
    """

    name: str
    sms: int
    shared_bytes: int
    warp_size: int
    max_threads: int
    l2_bytes: int

    @property
    def resident_threads(self) -> int:
        """Most threads that a multiprocessor holds at a time (the table of `TARGETS`; CDNA ISA: 32 waves of 64)."""
        return 1536 if self.name in ("sm_86", "sm_87", "sm_89", "sm_120", "sm_121") else 2048

    @property
    def has_dependent_launch(self) -> bool:
        """Whether a kernel may come to the GPU before the previous one has ended (CUDA, from sm_90 on)."""
        return _since_hopper(self.name)

    @property
    def has_clusters(self) -> bool:
        """Whether programs of a cluster read each other's shared memory (CUDA, from sm_90 on)."""
        return _since_hopper(self.name)

    @property
    def has_row_fetch(self) -> bool:
        """Whether one instruction brings a row into the last-level cache (PTX, from sm_90 on)."""
        return _since_hopper(self.name)


@cache
def _since_hopper(name: str) -> bool:
    # Cached: a fit resolves tens of thousands of launches, each of which calls this more than once.
    number = name.removeprefix("sm_")
    return number != name and int(number) >= 90


# CUDA C++ Programming Guide, table "Technical specifications per compute capability" (shared memory
# a block may opt in to), and the vendors' data sheets of the named part for units and cache.
TARGETS = {
    "sm_80": Target("sm_80", 108, 166912, 32, 1024, 40 << 20),  # A100
    "sm_86": Target("sm_86", 84, 101376, 32, 1024, 6 << 20),  # RTX 3090 class
    "sm_89": Target("sm_89", 128, 101376, 32, 1024, 72 << 20),  # RTX 4090, L40S
    "sm_90": Target("sm_90", 132, 232448, 32, 1024, 60 << 20),  # H200
    "sm_100": Target("sm_100", 148, 232448, 32, 1024, 126 << 20),  # B200
    "sm_120": Target("sm_120", 36, 101376, 32, 1024, 32 << 20),  # RTX 5060 Ti
    "gfx942": Target("gfx942", 304, 65536, 64, 1024, 4 << 20),  # MI300X
    "gfx950": Target("gfx950", 256, 163840, 64, 1024, 4 << 20),  # MI355X
}


def target_for(name: str, sms: int) -> Target:
    """The target of an architecture, with the given number of multiprocessors.

    An unlisted architecture of NVIDIA has the limits of the nearest older one that is listed.

    Raises:
        UsageError: no listed architecture fits; a ValueError.
    """
    if name in TARGETS:
        return TARGETS[name]._replace(sms=sms)
    number = name.removeprefix("sm_")
    by_number = {int(other[3:]): target for other, target in TARGETS.items() if other.startswith("sm_")}
    is_number = re.fullmatch(r"[0-9]{2,4}", number) is not None
    older = [other for other in by_number if is_number and other < int(number)]
    if number == name or not older:
        raise UsageError(f"unknown target {name!r}: expected one of {', '.join(TARGETS)}, or a newer sm_NN")
    return by_number[max(older)]._replace(name=name, sms=sms)


def relatives(target: Target) -> tuple[Target, ...]:
    """The known targets of the same vendor."""
    is_nvidia = target.name.startswith("sm_")
    return tuple(other for other in TARGETS.values() if other.name.startswith("sm_") == is_nvidia)


def plain_name(name: str) -> str:
    """The name in one line of at most `MAX_LETTERS` that begins with a letter or digit; `UNNAMED` if nothing is left.

    A line that begins with `##[` or `::` is a command to a CI log.
    """
    return re.sub("^[^A-Za-z0-9]+", "", " ".join(plain_letters(name).split()))[:MAX_LETTERS].strip() or UNNAMED


def plain_letters(text: str) -> str:
    """A text in one line of printable ASCII: `?` for other letters, a space for unprintable ones."""
    letters = (letter if letter.isprintable() else " " for letter in text)
    return "".join(letter if letter.isascii() else "?" for letter in letters)
