"""Numbers of the timing protocol, from which its duration and memory follow.

In: nothing. Out: the number of timed launches, and the size of the sentinel. Pure; `timing` measures.
"""

# A launch that takes longer is timed alone: what the launch before it left behind does not show.
SLOW_SECONDS = 2e-3
# The sentinel of a round: timed copies of so many bytes, after one that leads in.
SENTINEL_BYTES = 64 << 20
SENTINEL_COPIES = 4


def timed_launches(footprint: int) -> int:
    """Number of timed launches per replay, for a problem of `footprint` bytes."""
    return 10 if footprint <= 128 << 20 else 5 if footprint <= 512 << 20 else 3


# Blocks of a config that is timed to the end: 16 rounds, for whoever may be the best
ALL_BLOCKS = 8
