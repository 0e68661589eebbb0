"""Interface of a device that measures tasks or replays them, and functions that open a device by its name.

In: the name of a device. Out: a `Bench`. Only this module distinguishes GPUs and replays.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.config import Config
from normtune.kernels.target import Target
from normtune.results.records import Device, Outcome
from normtune.results.regimes import COLD
from normtune.tuner.compiling.binaries import Compilers
from normtune.tuner.device.engine import Engine, Opener
from normtune.tuner.plan.estimate import Speed
from normtune.tuner.plan.plan import Task
from normtune.tuner.search.protocol import Race

# In place of the name of a device: every GPU that CUDA's driver lists.
ALL = "all"

__all__ = ["Bench", "Outcome", "Phases", "SkippedError", "Speed", "begin_device", "open_device"]


class SkippedError(NormtuneError):
    """This problem cannot be measured now, for a reason other than its configs: nothing of it is stored."""


class NoDeviceError(NormtuneError):
    """The GPU does not exist, or cannot be used."""


class DeviceGoneError(NormtuneError):
    """The device cannot measure any more; another one may."""


class Phases(NamedTuple):
    """Wall time of each phase, seconds, and the protocol of the timing.

    Attributes:
        compile: seconds spent waiting for the compiler, which works in parallel with gate and timing.
        gate, timing: seconds spent in these phases.
        protocol: regime, rounds, void rounds, lost workers.
    """

    compile: float
    gate: float
    timing: float
    protocol: dict[str, object]

    def plus(self, other: "Phases") -> "Phases":
        """The sums of two devices; of texts in the protocol the first one's, and the warnings of both."""
        protocol = other.protocol | self.protocol
        for name, value in self.protocol.items():
            more = other.protocol.get(name)
            if isinstance(value, int) and isinstance(more, int):
                protocol[name] = value + more
            elif isinstance(value, dict) and isinstance(more, dict):
                protocol[name] = more | value
        return Phases(self.compile + other.compile, self.gate + other.gate, self.timing + other.timing, protocol)


class Planned(Protocol):
    """A device, or what stands in place of it in a plan."""

    @property
    def device(self) -> Device:
        """The device."""
        ...

    @property
    def target(self) -> Target:
        """Limits of the device."""
        ...

    @property
    def free_bytes(self) -> int | None:
        """Free device memory at the start; None for no limit."""
        ...

    @property
    def regime(self) -> str:
        """Regime of the timing, a name of `regimes.REGIMES`."""
        ...

    def speed(self) -> Speed:
        """Speed of the machine."""
        ...


class Bench(Planned, Protocol):
    """A device that measures configs. It is opened in the background; its methods and attributes wait until it is open.

    `expect` and `close` do not wait, nor does `prepare` after `expect`.
    """

    @property
    def name(self) -> str:
        """Name of the device, as the user wrote it: `cuda:0`."""
        ...

    @property
    def software(self) -> dict[str, str]:
        """Versions of compiler and driver stack."""
        ...

    def open(self) -> None:
        """Wait until the device is open.

        Raises:
            NormtuneError: it cannot be opened.
        """
        ...

    def expect(self, target: str) -> None:
        """Announce the target before the device is open, so that binaries can be compiled meanwhile."""
        ...

    def prepare(self, tasks: Iterable[Task], on_progress: Callable[[int], None] | None = None) -> None:
        """Start compiling the binaries of the next tasks, in their order, as far ahead as is useful.

        Without tasks only the compilers start, which takes seconds.

        Args:
            tasks: the next tasks; to be called again as they change.
            on_progress: called from another thread with the number of compiled binaries.
        """
        ...

    def compiled(self, task: Task, seconds: float | None = None) -> bool:
        """Wait for the binaries of a task, at most `seconds`; whether they are compiled."""
        ...

    def examine(self, tasks: Iterable[Task]) -> None:
        """Run the functions of each operator at one of its tasks, before anything is measured.

        Raises:
            OperatorError: a function raises or returns a wrong value.
        """
        ...

    def measure(self, task: Task, race: Race) -> Mapping[Config, Outcome]:
        """Gate one task and time it in the batches of a race.

        Args:
            task: problem and candidates.
            race: chooses the configs of each batch.

        Returns:
            Outcomes of the candidates that failed or were timed, and of the copy if anything was timed.

        Raises:
            SkippedError: the task cannot be measured now.
            DeviceGoneError: nothing can be measured on this device any more.
        """
        ...

    def stop(self) -> None:
        """End a measurement that another thread waits for; afterwards only `close` may follow."""
        ...

    def phases(self) -> Phases:
        """Time per phase so far."""
        ...

    def close(self) -> dict[str, object]:
        """Release resources, and return a summary of the clocks for the run's protocol."""
        ...


def open_device(name: str | None, regime: str = COLD) -> Bench:
    """Open a device by name, and wait for it. Arguments as in `begin_device`.

    Raises:
        UsageError: the name has an unknown form, or the recording does not exist or lacks times of the regime.
        NoDeviceError: the GPU does not exist, or cannot be used.
    """
    bench = begin_device(name, regime)
    bench.open()
    return bench


def split(name: str | None) -> tuple[str, str]:
    """A device's name split into `cuda` and a number, or `replay` and the name of a recording.

    Raises:
        UsageError: the name has another form.
    """
    kind, _, rest = ("cuda:0" if name is None else name).partition(":")
    if kind != "replay" and (kind != "cuda" or (rest and not rest.isdecimal())):
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


def begin_device(
    name: str | None,
    regime: str = COLD,
    compilers: Compilers | None = None,
    title: str | None = None,
) -> Bench:
    """Start opening a device in the background.

    Args:
        name: `cuda:N` or `replay:RECORDING`; None for cuda:0.
        regime: of the timing, a name of `regimes.REGIMES`.
        compilers: shared with other devices; None for its own.
        title: in place of the name in messages.

    Raises:
        UsageError: the name has an unknown form.
    """
    from normtune.tuner.device.bench import WorkerBench

    return WorkerBench(opener_of(name, regime), compilers, title or name or "cuda:0")


def opener_of(name: str | None, regime: str = COLD) -> Opener:
    """What opens the engine of a device; arguments and errors as in `begin_device`."""
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
