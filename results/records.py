"""The values that the tuner passes to the store, and the store to the fit: device, run, outcome, measurement."""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.kernels.call import AnyLaunch
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target, plain_name, target_for
from normtune.results.regimes import regime_of

# A block is this many consecutive rounds on the same offsets and the same captured graphs. Times of one graph are
# correlated, so blocks, not rounds, are the unit of statistics: block = round // ROUNDS_PER_BLOCK.
ROUNDS_PER_BLOCK = 2

STATUSES = (
    "ok",
    "illegal",
    "compile_error",
    "out_of_resources",
    "wrong_result",
    "timeout",
    "crashed",
    "not_recorded",
)

# A wrong result is final, because a config that is wrong even once must never win. Any other failure may have an
# outside cause, and a success with the same code outranks it.
WRONG = "wrong_result"
# Statuses that no other outcome outranks.
DECISIVE = ("ok", WRONG)

# Key of a run's protocol for the number of configs that a search chose among, by function, which tables quote.
SEARCHED = "searched"
# Key of a run's protocol for times of another program: not measured in paired rounds, and no gate checked the results.
UNPAIRED = "unpaired"
# Start of a run whose start is not known.
UNKNOWN_START = "1970-01-01T00:00:00"

# Prefix of the uuid of a device whose samples come from a recording.
REPLAY_PREFIX = "replay:"


class Device(NamedTuple):
    """One GPU as its driver describes it.

    Attributes:
        name: the driver's name, `NVIDIA H200`.
        target: the compiler's name, `sm_90`.
        sms: number of multiprocessors.
        l2_bytes: size of the L2 cache, bytes.
        memory_bytes: device memory, bytes.
        uuid: the driver's identifier; outside of its store a salted hash of it, `hash:...`; `replay:NAME` for replayed
            data.
        driver: version of the driver.
    """

    name: str
    target: str
    sms: int
    l2_bytes: int
    memory_bytes: int
    uuid: str
    driver: str

    @property
    def label(self) -> str:
        """Name for people and tables: the driver's on one line, followed by ` (replay)` for replayed data."""
        name = plain_name(self.name)
        return f"{name} (replay)" if self.uuid.startswith(REPLAY_PREFIX) else name

    def as_target(self) -> Target:
        """What launchers know of the device, its multiprocessors and L2 included.

        Raises:
            UsageError: the target is unknown.
        """
        return target_for(self.target, self.sms)._replace(l2_bytes=self.l2_bytes)

    @property
    def kind(self) -> tuple[str, int]:
        """Label and number of multiprocessors; devices of equal kind share their measurements."""
        return self.label, self.sms


class Run(NamedTuple):
    """One stretch of measuring on one GPU. Times are compared within a run's rounds, never across.

    Attributes:
        id: a uuid in hexadecimal.
        device: the GPU.
        software: versions by name: `triton`, `torch`, `cuda`, `python`.
        started: UTC, ISO 8601, seconds.
        protocol: of the timing: strategy, regime, seconds, clocks, void rounds; `unpaired` for another program's;
            and `dropped`, the day on which the run was set aside.
    """

    id: str
    device: Device
    software: dict[str, str]
    started: str
    protocol: dict[str, Any]

    @property
    def regime(self) -> str:
        """Regime of its times: one of `regimes.REGIMES`, or an unknown name."""
        return regime_of(self.protocol)

    @property
    def is_unpaired(self) -> bool:
        """Whether another program measured: its times say nothing of their noise, and no gate saw the results."""
        return bool(self.protocol.get(UNPAIRED))

    @property
    def is_dropped(self) -> bool:
        """Whether it was set aside: its measurements are kept, but not used."""
        return "dropped" in self.protocol


class TimedCode(NamedTuple):
    """Digests of the code that a config launched when it was timed.

    Attributes:
        launch: digest of the resolved launch, 8 bytes; see `launch_digest`.
        assembly: digest of the assembly of its kernels, with their grids and arguments; empty if not known. Equal
            digests are of equal code, whatever Triton compiled it.
    """

    launch: bytes
    assembly: bytes = b""

    def is_of(self, other: "TimedCode", same_triton: bool) -> bool:
        """Whether it is the code of another measurement of the same sources; if one has no digest, Triton decides."""
        if bool(self.assembly) == bool(other.assembly):
            return self.assembly == other.assembly
        return same_triton


def launch_digest(launch: AnyLaunch) -> bytes:
    """Digest of a launch, 8 bytes, which changes with any change of the launch rules' result."""
    return hashlib.sha256(repr(launch if not isinstance(launch, tuple) else tuple(launch)).encode()).digest()[:8]


class Outcome(NamedTuple):
    """Outcome of measuring one config on one problem.

    Attributes:
        status: one of `STATUSES`; samples exist only for `ok`.
        reason: reason of a failure, one line; empty for `ok`.
        rounds: the number of the round of each sample, ascending.
        nanoseconds: the samples, of the same length.
        code: the launched code, if it is known.
    """

    status: str
    reason: str = ""
    rounds: Sequence[int] = ()
    nanoseconds: Sequence[int] = ()
    code: TimedCode | None = None


class Measurement(NamedTuple):
    """The stored `Outcome` of one config on one problem in one run.

    Attributes:
        problem, config: of the measurement.
        run: id of the run.
        fingerprint: the operator's kernel fingerprint at that time.
        status, reason, code: as in `Outcome`.
        rounds: int32, the number of the round of each sample, within the problem and run, ascending.
        samples: int32, nanoseconds, same length.
    """

    problem: Problem
    config: Config
    run: str
    fingerprint: str
    status: str
    reason: str
    rounds: NDArray[np.int32]
    samples: NDArray[np.int32]
    code: TimedCode | None = None


class Counted(NamedTuple):
    """Number of measurements of one status, of one problem in one run.

    Attributes:
        run, problem, status: of the measurements.
        measurements: their number.
    """

    run: Run
    problem: Problem
    status: str
    measurements: int


class Tally(NamedTuple):
    """Number of measurements of one operator with one version of its kernels on devices of one kind.

    Attributes:
        device: one device of the kind.
        operator: without its variant.
        fingerprint: of the kernels.
        measurements: their number.
    """

    device: Device
    operator: str
    fingerprint: str
    measurements: int


class Coverage(NamedTuple):
    """State of one config on one problem, over all runs on devices of one kind, with the code of the newest of them.

    Attributes:
        status: of the newest measurement of this code; `ok` outranks any failure but `wrong_result`.
        fingerprint: of the kernels of the newest measurement.
        samples: number of samples of this code in all runs.
        median_ns: median of the newest `ok` measurement of this code, ns; None if there is none.
        code: code that this measurement launched; None if it is not known.
        triton: version of Triton that compiled it; empty if the code is not known.
        why_stale: why the measurement is to be repeated although the sources of the kernels are the same; empty if it
            is not. A store does not know: see `tuner.staleness`.
    """

    status: str
    fingerprint: str
    samples: int
    median_ns: int | None
    code: TimedCode | None = None
    triton: str = ""
    why_stale: str = ""
