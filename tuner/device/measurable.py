"""The shapes that a device can measure.

In: a device and a regime. Out: of a replay the shapes that were recorded, by function; None of a GPU, which can measure
any.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping

from normtune.kernels.key import Key
from normtune.results.records import REPLAY_PREFIX, Device


def measurable(device: Device, regime: str) -> Mapping[Key, Collection[tuple[int, int]]] | None:
    """(rows, hidden) by key; None for all."""
    if not device.uuid.startswith(REPLAY_PREFIX):
        return None
    from normtune.results.exchange.recording import (
        load_recording,
    )  # loads pandas, which a sweep with nothing to do has no use for

    frame = load_recording(device.uuid.removeprefix(REPLAY_PREFIX), regime).frame
    columns = ["operator", "variant", "dtype", "rows", "hidden"]
    shapes: dict[Key, set[tuple[int, int]]] = defaultdict(set)
    for *key, rows, hidden in frame[columns].drop_duplicates().itertuples(index=False):
        shapes[Key.of(*key)].add((int(rows), int(hidden)))
    return shapes
