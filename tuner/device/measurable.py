"""The shapes that a device can measure: a replay only those that were recorded, a GPU any."""

from collections import defaultdict
from collections.abc import Collection, Mapping

from normtune.kernels.key import Key
from normtune.kernels.problem import AXES, Shape
from normtune.results.records import REPLAY_PREFIX, Device


def measurable(device: Device, regime: str) -> Mapping[Key, Collection[Shape]] | None:
    """Shapes by key; None for all."""
    if not device.uuid.startswith(REPLAY_PREFIX):
        return None
    # Here, because it loads pandas, which a sweep with nothing to measure does not need.
    from normtune.results.exchange.recording import load_recording

    frame = load_recording(device.uuid.removeprefix(REPLAY_PREFIX), regime).frame
    columns = ["operator", "variant", "dtype", *AXES]
    shapes: dict[Key, set[Shape]] = defaultdict(set)
    for name, variant, dtype, first, second in frame[columns].drop_duplicates().itertuples(index=False):
        shapes[Key.of(name, variant, dtype)].add((int(first), int(second)))
    return shapes
