"""Functions that open a device, which measures tasks or replays them, by its name.

In: the name of a device. Out: a `Bench`, and the shapes and configs that a replay can measure.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.config import COPY, Config
from normtune.kernels.key import Key
from normtune.kernels.operator import read_config
from normtune.kernels.problem import AXES, Problem, Shape
from normtune.results.records import REPLAY_PREFIX, Device
from normtune.results.regimes import COLD
from normtune.tuner.device.bench import Bench
from normtune.tuner.device.engine import Engine, Opener

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence

# In place of the name of a device: every GPU that CUDA's driver lists.
ALL = "all"


class NoDeviceError(NormtuneError):
    """The GPU does not exist, or cannot be used."""


def open_device(name: str | None, regime: str = COLD) -> Bench:
    """Open a device by name, and wait for it. Arguments as in `opener_of`.

    Raises:
        UsageError: the name has an unknown form, or the recording does not exist or lacks times of the regime.
        NoDeviceError: the GPU does not exist, or cannot be used.
    """
    bench = Bench(opener_of(name, regime), name=name or "cuda:0")
    bench.open()
    return bench


def split(name: str | None) -> tuple[str, str]:
    """A device's name split into `cuda` and a number, or `replay` and the name of a recording.

    Raises:
        UsageError: the name has another form.
    """
    kind, _, rest = ("cuda:0" if name is None else name).partition(":")
    if kind != "replay" and (kind != "cuda" or (rest and not (rest.isascii() and rest.isdecimal()))):
        raise UsageError(f"unknown device {name!r}: expected cuda:N or replay:NAME, as in cuda:0 or replay:nvidia-h200")
    return kind, rest


def names_of(names: str | None) -> list[str | None]:
    """The names in a list of devices, `cuda:0,cuda:1`; `all` stands alone, for all GPUs.

    Raises:
        UsageError: a name has an unknown form or is given twice, or GPUs and recordings are mixed.
    """
    if names is None or names == ALL:
        return [names]
    listed = [name.strip() for name in names.split(",")]
    kinds = {split(name)[0] for name in listed}
    if len(kinds) > 1:
        raise UsageError(f"devices {names!r}: expected GPUs or recordings, not both")
    if kinds == {"cuda"} and len({int(split(name)[1] or 0) for name in listed}) < len(listed):
        raise UsageError(f"devices {names!r}: expected each GPU once")
    return [*listed]


def opener_of(name: str | None, regime: str = COLD) -> Opener:
    """What opens the engine of a device.

    Args:
        name: `cuda:N` or `replay:RECORDING`; None for cuda:0.
        regime: of the timing, a name of `regimes.REGIMES`.

    Raises:
        UsageError: the name has an unknown form.
    """
    kind, rest = split(name)
    if kind == "replay":
        return "normtune.tuner.device.replay", "ReplayEngine", (rest, regime)
    return "normtune.tuner.device.open", "open_cuda", (int(rest or 0), name, regime)


def open_cuda(index: int, name: str | None, regime: str = COLD) -> Engine:
    """Open the engine of a GPU, in the process that will drive it.

    Args:
        index: CUDA's number of the GPU.
        name: as the user wrote it, for messages.
        regime: of the timing.

    Raises:
        NoDeviceError: the GPU does not exist, or cannot be used.
    """
    from normtune.tuner.machine.no_gpu import why_no_gpu

    reason = why_no_gpu()
    if reason:
        state = "there is no GPU to measure" if name is None else f"device {name!r} cannot be measured"
        raise NoDeviceError(f"{state}: {reason}; --device replay:nvidia-h200 runs the tool on the recorded H200 sweep")
    import torch

    count = torch.cuda.device_count()
    if index >= count:
        names = ", ".join(f"cuda:{number}" for number in range(count))
        raise NoDeviceError(f"there is no device {name!r}: torch finds {names}")
    from normtune.tuner.device.cuda import CudaEngine

    return CudaEngine(index, regime)


def measurable(device: Device, regime: str) -> Mapping[Key, Collection[Shape]] | None:
    """The shapes that a device can measure, by key: a replay only those that were recorded; None for a GPU, any."""
    if not device.uuid.startswith(REPLAY_PREFIX):
        return None
    places = _recording(device, regime).frame[["operator", "variant", "dtype", *AXES]].drop_duplicates()
    shapes: dict[Key, set[Shape]] = defaultdict(set)
    for name, variant, dtype, first, second in places.itertuples(index=False):
        shapes[Key.of(name, variant, dtype)].add((int(first), int(second)))
    return shapes


def recorded(problems: Sequence[Problem], device: Device, regime: str) -> dict[Problem, list[Config]]:
    """The configs that a replay can measure at each problem: those that were recorded; without problems of none."""
    recording = _recording(device, regime)
    column, places, configs = recording.frame["config"], recording.places(), {}
    for problem in problems:
        texts = column.iloc[places.get(problem.columns, [])]
        of_problem = [read_config(problem.operator, text) for text in dict.fromkeys(texts)]
        if without_copy := [config for config in of_problem if config != COPY]:
            configs[problem] = without_copy
    return configs


def _recording(device: Device, regime: str) -> "Evidence":
    # Here, because it loads pandas, which a sweep with nothing to measure does not need.
    from normtune.results.exchange.recording import load_recording

    return load_recording(device.uuid.removeprefix(REPLAY_PREFIX), regime)
