"""The values that are stored: device, run, measurement.

In: nothing. Out: the plain values that the tuner hands to the store, and the store to the fit, with the meaning of
their fields. How they are stored is left to the store.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.kernels.config import Config
from normtune.kernels.operator import AnyLaunch
from normtune.kernels.problem import Problem
from normtune.kernels.target import plain_name
from normtune.results.regimes import regime_of

# A block is this many consecutive rounds on the same offsets and the same captured graphs. Replays of one graph share
# their luck, so blocks, not rounds, are the unit of statistics: block = round // ROUNDS_PER_BLOCK.
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

# A failure of this kind stands: a result that is wrong now and then must never win. Any other may be the fault of a
# machine or of a day, and a success under the same code outranks it.
WRONG = "wrong_result"
# What no other outcome takes back.
DECISIVE = ("ok", WRONG)

# What a run's protocol says of a search that left configs out: `tuner.search.audit` writes it, and tables tell it.
SEARCHED = "searched"

# What the uuid of a device begins with whose samples were drawn from a recording.
REPLAY_PREFIX = "replay:"


class Device(NamedTuple):
    """One GPU as its driver describes it.

    Attributes:
        name: the driver's name, `NVIDIA H200`.
        target: the compiler's name, `sm_90`.
        sms: number of multiprocessors.
        l2_bytes: size of the L2 cache, bytes.
        memory_bytes: device memory, bytes.
        uuid: the driver's identifier; in what left its store a salted hash of it, `hash:...`; `replay:NAME` for
            replayed data.
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
        """Name for people and tables: the driver's, on one line, followed by ` (replay)` for replayed data."""
        name = plain_name(self.name)
        return f"{name} (replay)" if self.uuid.startswith(REPLAY_PREFIX) else name

    @property
    def kind(self) -> tuple[str, int]:
        """Label and number of multiprocessors: devices of equal kind share their measurements."""
        return self.label, self.sms


class Run(NamedTuple):
    """One stretch of measuring on one GPU. Times are compared within a run's rounds, never across.

    Attributes:
        id: a uuid in hexadecimal.
        device: the GPU.
        software: versions by name: `triton`, `torch`, `cuda`, `python`.
        started: UTC, ISO 8601, seconds.
        protocol: of the timing: strategy, regime, seconds, clocks seen, void rounds; and `dropped`, the day on which
            the run was set aside.
    """

    id: str
    device: Device
    software: dict[str, str]
    started: str
    protocol: dict[str, Any]

    @property
    def regime(self) -> str:
        """Regime of its times: one of `regimes.REGIMES`, or a name that is not known here."""
        return regime_of(self.protocol)

    @property
    def is_dropped(self) -> bool:
        """Whether it was set aside: its measurements are kept, and nothing uses them."""
        return "dropped" in self.protocol


class TimedCode(NamedTuple):
    """What a config launched when it was timed.

    Attributes:
        launch: digest of what `resolve` gave, 8 bytes; see `launch_digest`.
        code: digest of the compiled code and its arguments, by the run's version of Triton; empty where not known.
        machine: digest of the instructions; empty where not known.
    """

    launch: bytes
    code: bytes = b""
    machine: bytes = b""


def launch_digest(launch: AnyLaunch) -> bytes:
    """8 bytes that name a launch: no arithmetic of `resolve` changes unnoticed, in whatever module it is."""
    return hashlib.sha256(repr(launch if not isinstance(launch, tuple) else tuple(launch)).encode()).digest()[:8]


class Outcome(NamedTuple):
    """Outcome of measuring one config on one problem.

    Attributes:
        status: one of `STATUSES`; samples exist only for `ok`.
        reason: why it is not `ok`, one line; empty otherwise.
        rounds: the number of the round of each sample, ascending.
        nanoseconds: the samples, of the same length.
        code: the launched code, where it is known.
    """

    status: str
    reason: str = ""
    rounds: Sequence[int] = ()
    nanoseconds: Sequence[int] = ()
    code: TimedCode | None = None


class Measurement(NamedTuple):
    """The stored `Outcome` of one config on one problem in one run.

    Attributes:
        problem, config: that were measured.
        run: id of the run.
        fingerprint: the kernel fingerprint of the operator at that time.
        status: one of `STATUSES`; samples exist only for `ok`.
        reason: why it is not `ok`, one line; empty otherwise.
        rounds: int32, the number of the round of each sample, within the problem and run, ascending.
        samples: int32, nanoseconds, same length.
        code: the launched code, where it is known.
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
