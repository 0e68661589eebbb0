"""What the process that drives a device does, step by step, and how it says that it cannot.

In: steps of one problem after the other: gate, begin, warm up, blocks, compare. Out: what came of each. Which steps are
asked for, and what follows from a step that never answers, is the business of `bench`; how a step crosses from process
to process that of `worker`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.records import Device, TimedCode
from normtune.tuner.plan.plan import Candidate


class Outcome(NamedTuple):
    """What came of one config on one problem: see `results.records.Measurement`; `code` is what was launched."""

    status: str
    reason: str = ""
    rounds: Sequence[int] = ()
    nanoseconds: Sequence[int] = ()
    code: TimedCode | None = None


class Identity(NamedTuple):
    """Who answers.

    Attributes:
        device, target: the device and its limits.
        software: versions of what compiles and drives the kernels.
        free_bytes: device memory that is free; None where none is used.
        compiles: whether binaries are needed before a step is asked for.
        regime: how times are taken, a name of `regimes.REGIMES`; it stands in the run's protocol.
    """

    device: Device
    target: Target
    software: dict[str, str]
    free_bytes: int | None
    compiles: bool
    regime: str


class Speed(NamedTuple):
    """How fast this machine is, for the estimate of a sweep; measured before anything is compiled.

    Attributes:
        bytes_per_second: of a copy of 64 MB, bytes read and bytes written; 0 for a replay.
        block_seconds: wall time of capturing a graph of eleven small copies and replaying it twice: what a config costs
            a block where the GPU is not the limit.
        cores: processes of the compile pool.
    """

    bytes_per_second: float
    block_seconds: float
    cores: int


class Block(NamedTuple):
    """One block of rounds: nanoseconds by config, rounds taken in all and how many of them were void."""

    times: dict[Config, list[int]]
    rounds: int
    void_rounds: int


class DeviceLostError(RuntimeError):
    """The device answers no more in this process: every further call would fail, whatever is asked."""


class NoMemoryError(RuntimeError):
    """There is not enough device memory for the problem, whatever the config."""


class Engine(Protocol):
    """One device in the process that drives it. Every step may raise `DeviceLostError` or `NoMemoryError`."""

    def identify(self) -> Identity:
        """Who answers."""
        ...

    def speed(self) -> Speed:
        """How fast it is."""
        ...

    def gate(self, problem: Problem, candidate: Candidate) -> Outcome | None:
        """Try the binary of a candidate; its failure, or None."""
        ...

    def begin(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        """Turn to a problem: the steps that follow are about these candidates."""
        ...

    def warm_up(self, configs: Sequence[Config]) -> Mapping[Config, Outcome]:
        """Launch each once at the problem's own size; the failures."""
        ...

    def block(self, configs: Sequence[Config]) -> Block:
        """Time `ROUNDS_PER_BLOCK` rounds of these configs, `COPY` among them, on fresh offsets."""
        ...

    def compare(self, configs: Sequence[Config], often: Sequence[Config]) -> Mapping[Config, Outcome]:
        """Compare outputs at the problem's own size with the reference, those of `often` many times; the failures."""
        ...

    def close(self) -> dict[str, object]:
        """Release what is held; what the clocks did, for the run's protocol."""
        ...
