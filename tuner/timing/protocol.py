"""Constants of the timing protocol that determine its duration and memory; `timing` measures."""

# A slower launch is timed once per replay, without a lead-in: the state of the cache before it does not matter.
SLOW_SECONDS = 2e-3
# The sentinel of a round: timed copies of this many bytes, after one untimed copy.
SENTINEL_BYTES = 64 << 20
SENTINEL_COPIES = 4


def timed_launches(footprint: int) -> int:
    """Number of timed launches per replay, for a problem of `footprint` bytes."""
    return 10 if footprint <= 128 << 20 else 5 if footprint <= 512 << 20 else 3


# Blocks of a config that is timed in full, as every candidate for the best is: 16 rounds.
ALL_BLOCKS = 8
