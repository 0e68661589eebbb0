"""What a sweep asks of a device, whether it measures or replays.

In: tasks. Out: an `Outcome` a config. `open_device` is the one place that knows which kinds of device there are.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.config import Config
from normtune.kernels.target import TARGETS, Target
from normtune.results.records import Device
from normtune.tuner.planning import Task


class Outcome(NamedTuple):
    """What came of one config on one problem: see `results.records.Measurement`."""

    status: str
    reason: str = ""
    rounds: Sequence[int] = ()
    nanoseconds: Sequence[int] = ()


class Phases(NamedTuple):
    """Seconds on the wall spent in each phase, and what the clocks did."""

    compile: float
    gate: float
    timing: float
    protocol: dict[str, object]


class Bench(Protocol):
    """A device that answers what a config costs."""

    device: Device
    target: Target
    software: dict[str, str]

    def prepare(self, tasks: Sequence[Task]) -> Iterator[tuple[int, int]]:
        """Compile what the tasks need; yields (binaries done, binaries in all)."""
        ...

    def measure(self, task: Task, strategy: str) -> Mapping[Config, Outcome]:
        """Gate and time one task; the answer holds every candidate, and the copy if anything was timed."""
        ...

    def phases(self) -> Phases:
        """Where the time went so far."""
        ...

    def close(self) -> dict[str, object]:
        """Release what is held; says what the clocks did, for the run's protocol."""
        ...


def open_device(name: str | None) -> Bench:
    """The device of that name: `cuda:N` or `replay:RECORDING`; None takes cuda:0 if there is one.

    Raises:
        UsageError: the name is of no known form, or no such recording is shipped.
        NormtuneError: there is no such GPU.
    """
    kind, _, rest = (name or "cuda:0").partition(":")
    if kind == "replay":
        from normtune.tuner.replay import ReplayBench

        return ReplayBench(rest)
    if kind != "cuda" or (rest and not rest.isdigit()):
        raise UsageError(f"unknown device {name!r}: expected cuda:N or replay:NAME, as in cuda:0 or replay:nvidia-h200")
    index = int(rest or 0)
    found = _cuda_devices()
    if index >= found:
        instead = "--device replay:nvidia-h200 runs the whole tool on the recorded H200 sweep"
        if name is None:
            raise NormtuneError(f"no CUDA GPU found by torch: sweep needs one to measure; {instead}")
        raise NormtuneError(f"no device {name!r}: torch finds {found} CUDA GPU{'' if found == 1 else 's'}; {instead}")
    from normtune.tuner.cuda import CudaBench

    return CudaBench(index)


def _cuda_devices() -> int:
    try:
        import torch
    except ImportError as error:
        raise NormtuneError(f"torch cannot be imported ({error}): install torch to measure or launch kernels") from None
    return torch.cuda.device_count() if torch.version.hip is None else 0


def planning_target(name: str | None) -> tuple[Target, str]:
    """The target that a plan for that device is made for, and where it was taken from.

    Without a GPU and without a name the plan is for an H200, so that a sweep can be planned anywhere.

    Raises:
        UsageError, NormtuneError: as `open_device`, for a device that was named.
    """
    if name is None and not _cuda_devices():
        return TARGETS["sm_90"], "no GPU here: as on an H200"
    bench = open_device(name)
    try:
        return bench.target, bench.device.name
    finally:
        bench.close()
