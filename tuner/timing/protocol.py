"""Numbers of the timing protocol that its estimate and its memory follow from.

In: nothing. Out: how many launches are timed, and what stands beside them. Pure: `timing` does it, on a device.
"""

# A launch that takes longer is timed alone: what the launch before it left behind does not show.
SLOW_SECONDS = 2e-3
# The sentinel of a round: timed copies of so many bytes, after one that leads in.
SENTINEL_BYTES = 64 << 20
SENTINEL_COPIES = 4


def timed_launches(footprint: int) -> int:
    """Timed launches a replay, for a problem of `footprint` bytes."""
    return 10 if footprint <= 128 << 20 else 5 if footprint <= 512 << 20 else 3
