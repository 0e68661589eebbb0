"""The shapes that a device can measure: a replay only those that were recorded, a GPU any."""

from collections import defaultdict
from collections.abc import Collection, Mapping

from normtune.results.records import REPLAY_PREFIX, Device


def measurable(device: Device, regime: str) -> Mapping[tuple[str, str, str], Collection[tuple[int, int]]] | None:
    """(rows, hidden) by operator, variant and dtype; None for all."""
    if not device.uuid.startswith(REPLAY_PREFIX):
        return None
    # Here, because it loads pandas, which a sweep with nothing to measure does not need.
    from normtune.results.exchange.recording import load_recording

    frame = load_recording(device.uuid.removeprefix(REPLAY_PREFIX), regime).frame
    columns = ["operator", "variant", "dtype", "rows", "hidden"]
    shapes: dict[tuple[str, str, str], set[tuple[int, int]]] = defaultdict(set)
    for name, variant, dtype, rows, hidden in frame[columns].drop_duplicates().itertuples(index=False):
        shapes[name, variant, dtype].add((int(rows), int(hidden)))
    return shapes
