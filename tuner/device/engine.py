"""Interfaces of a device, in the process that drives it and of that process: steps, errors, times.

The steps of a problem are gate, begin, warm up, blocks, compare. `bench` chooses them and handles a step without an
answer; `worker` carries them between processes.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from normtune.errors import NormtuneError
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.records import Device, Outcome
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.timing.rounds import RoundCounts

# Module, function and arguments that create an engine, in the process that will drive the device.
Opener: TypeAlias = tuple[str, str, tuple[Any, ...]]


class Identity(NamedTuple):
    """Identity of an engine.

    Attributes:
        device, target: the device and its limits.
        software: versions of compiler and driver stack.
        free_bytes: free device memory; None if the engine uses none.
        compiles: whether binaries must be compiled before the steps.
        regime: of the timing, a name of `regimes.REGIMES`; stored in the run's protocol.
    """

    device: Device
    target: Target
    software: dict[str, str]
    free_bytes: int | None
    compiles: bool
    regime: str


class Block(NamedTuple):
    """One block of rounds: nanoseconds by config, and how many rounds were taken for it."""

    times: dict[Config, list[int]]
    rounds: RoundCounts


class DeviceLostError(RuntimeError):
    """This process can no longer use the device: every further call would fail."""


class NoMemoryError(RuntimeError):
    """The device has too little memory for the problem, with any config."""


class SkippedError(NormtuneError):
    """This problem cannot be measured now, for a reason other than its configs: nothing of it is stored."""


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


class Engine(Protocol):
    """One device in the process that drives it. Every step may raise `DeviceLostError` or `NoMemoryError`.

    Steps that launch something have defaults for engines that do not.
    """

    def identify(self) -> Identity:
        """Identity of the engine."""

    def try_copy(self) -> None:
        """Copy memory, to find out whether the device works; called once the engine is open, and by the parent."""

    def prove(self, problem: Problem, candidate: Candidate) -> None:
        """Compute the inputs and the reference of a candidate's gate, to find faults of the operator.

        Raises:
            OperatorError: a function of the operator raises or returns a wrong value.
        """
        return None

    def make_calls(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        """Build the kernel calls of candidates without launching them, to find faults of the operator.

        Raises:
            OperatorError: the calls cannot be built.
        """
        return None

    def gate(self, problem: Problem, candidate: Candidate) -> Outcome | None:
        """Check the binary of a candidate; returns its failure, or None."""
        return None

    def begin(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        """Begin a problem: later steps concern these candidates."""

    def warm_up(self, configs: Sequence[Config]) -> Mapping[Config, Outcome]:
        """Launch each config at the problem's own size; returns the failures."""

    def block(self, configs: Sequence[Config]) -> Block:
        """Time `ROUNDS_PER_BLOCK` rounds of these configs, which may include `COPY`, at new offsets."""

    def compare(self, configs: Sequence[Config], often: Sequence[Config]) -> Mapping[Config, Outcome]:
        """Compare outputs at the problem's own size with the reference, of `often` in many calls; returns failures."""
        return {}

    def close(self) -> dict[str, object]:
        """Release resources, and return what was seen of the device beside the timing, for the run's protocol."""
        return {}


class Driver(Protocol):
    """An engine in a process of its own, here or on another machine; its start does not wait."""

    @property
    def identity(self) -> Identity:
        """Identity of the engine, once it is open."""

    def open(self) -> None:
        """Wait until the engine is open.

        Raises:
            NormtuneError: it cannot be opened.
            WorkerLostError: the process died or did not answer.
        """

    def supply(self, kernels: Collection[str]) -> None:
        """Bring the compiled kernels of these names in Triton's cache to where the engine runs."""

    def call(self, step: str, *arguments: Any, seconds: float) -> Any:
        """The engine's answer to a step.

        Args:
            step: name of a method of `Engine`.
            arguments: of that method.
            seconds: limit of the wait, not counting time in which the machine slept.

        Raises:
            WorkerLostError: the process is lost; this driver must not be used again.
            NoMemoryError: the problem does not fit.
            NormtuneError: the step failed for a reason that the user can remove.
        """

    def kill(self) -> None:
        """End the process while another thread waits for its answer, which then finds that it is lost."""

    def abandon(self) -> None:
        """End the process without waiting for its answer."""

    def close(self) -> dict[str, object]:
        """Let the process end; returns the summary of the clocks."""
