"""A GPU of torch, CUDA's or ROCm's, as an `engine.Engine`, in the only process of a sweep that has a context on it.

`timing` measures times, `gate` compares outputs. Errors that leave the context unusable are distinguished from failures
of one config.
"""

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import triton

from normtune.kernels.calling.device import describe, hardware_id
from normtune.kernels.config import Config
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.results.records import Device, Outcome
from normtune.results.regimes import COLD
from normtune.tuner.device.engine import Block, DeviceLostError, Identity, NoMemoryError
from normtune.tuner.machine.nvidia import unknown_driver
from normtune.tuner.machine.vendor import open_library
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.timing.gate import LaunchFailedError, gate, make_calls, one_line, prove
from normtune.tuner.timing.timing import CudaSession, Timer
from normtune.tuner.timing.watch import Watch

# Of MI300X and MI355X (AMD CDNA 3 and 4 white papers): in front of the memory and behind the L2 that torch names.
_INFINITY_CACHE_BYTES = 256 << 20


class CudaEngine:
    """One GPU; an `engine.Engine`.

    Args:
        index: CUDA's number of the GPU.
        regime: of the timing, a name of `regimes.REGIMES`.
    """

    def __init__(self, index: int, regime: str = COLD) -> None:
        self._regime = regime
        self._torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self._torch_device)
        properties = torch.cuda.get_device_properties(index)
        is_hip, hardware = torch.version.hip is not None, hardware_id(properties)
        self.target = describe(index)
        driver, self._cache_bytes = _driver_and_cache(hardware, is_hip)
        self.device = Device(
            name=properties.name,
            target=self.target.name,
            sms=self.target.sms,
            l2_bytes=self.target.l2_bytes,
            memory_bytes=properties.total_memory,
            uuid=str(getattr(properties, "uuid", hardware)),
            driver=driver,
        )
        self.software = {
            "triton": triton.__version__,
            "torch": torch.__version__,
            "rocm" if is_hip else "cuda": str(torch.version.hip or torch.version.cuda),
            "python": platform.python_version(),
        }
        self._timer: Timer | None = None
        self._session: CudaSession[Config] | None = None
        self._watch = Watch(hardware, is_hip)
        self._watch.start()

    def identify(self) -> Identity:
        """The GPU, with its free memory."""
        with self._translated():
            free, _ = torch.cuda.mem_get_info(self._torch_device)
        return Identity(self.device, self.target, self.software, free, True, self._regime)

    def try_copy(self) -> None:
        """Create the timer, which copies memory until the clocks are warm."""
        with self._translated():
            self.ready()

    def prove(self, problem: Problem, candidate: Candidate) -> None:
        """Compute the inputs and the reference of a candidate's gate."""
        with self._translated():
            prove(operator(problem.operator), problem, candidate, self.target, self._torch_device)

    def make_calls(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        """Build the kernel calls of candidates without launching them."""
        with self._translated():
            launches = [candidate.launch for candidate in candidates]
            make_calls(operator(problem.operator), problem, launches, self._torch_device)

    def gate(self, problem: Problem, candidate: Candidate) -> Outcome | None:
        """Check the binary of a candidate at the gate's trial problem."""
        with self._translated():
            try:
                gate(operator(problem.operator), problem, candidate, self.target, self._torch_device)
            except LaunchFailedError as error:
                return self._outcome(error)
        return None

    def begin(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        """Begin a problem."""
        launches = {candidate.config: candidate.launch for candidate in candidates}
        with self._translated():
            self._session = CudaSession(self.ready(), operator(problem.operator), problem, launches, self._regime)

    def warm_up(self, configs: Sequence[Config]) -> Mapping[Config, Outcome]:
        """Launch each config; returns the failures."""
        with self._translated():
            failed = self.session().warm_up(configs)
            return {config: self._outcome(error) for config, error in failed.items()}

    def block(self, configs: Sequence[Config]) -> Block:
        """Time a block of rounds."""
        with self._translated():
            times = self.session().block(configs)
        return Block(times, self.ready().rounds.counts)

    def compare(self, configs: Sequence[Config], often: Sequence[Config]) -> Mapping[Config, Outcome]:
        """Compare outputs at the problem's own size."""
        with self._translated():
            failed = self.session().compare(configs, often)
            return {config: self._outcome(error, "after timing: ") for config, error in failed.items()}

    @property
    def sm_clock_mhz(self) -> int | None:
        """The last sample of the SM clock; None if no library tells it."""
        return self._watch.latest

    def close(self) -> dict[str, object]:
        """Stop watching the GPU, and return what was seen."""
        return self._watch.stop()

    def ready(self) -> Timer:
        """The timer, with warm clocks."""
        if self._timer is None:
            cache_bytes = max(self._cache_bytes, self.device.l2_bytes)
            self._timer = Timer(self._torch_device, self.target.sms, cache_bytes, self._watch)
            self._timer.warm_clocks()
        return self._timer

    def session(self) -> CudaSession[Config]:
        """The session of the last `begin`."""
        if self._session is None:
            raise RuntimeError("no problem was begun")
        return self._session

    def _outcome(self, error: LaunchFailedError, where: str = "") -> Outcome:
        self._check_alive(error)
        return Outcome(error.status, f"{where}{error}")

    def _check_alive(self, cause: BaseException) -> None:
        """Raise `DeviceLostError` if the context is unusable, for example after an access out of bounds."""
        try:
            torch.cuda.synchronize(self._torch_device)
        except RuntimeError:
            raise DeviceLostError(one_line(cause)) from None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate CUDA errors to those of an engine."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            self._release()
            raise NoMemoryError(one_line(error)) from None
        except RuntimeError as error:
            self._check_alive(error)
            raise

    def _release(self) -> None:
        """Free the memory of the current problem for the next one."""
        self._session = None
        if self._timer:
            self._timer.arena.clear()
        torch.cuda.empty_cache()


def _driver_and_cache(hardware: str, is_hip: bool) -> tuple[str, int]:
    """Version of the driver, and size of the cache in front of the memory, bytes; 0 if it is the L2."""
    usual = _INFINITY_CACHE_BYTES if is_hip else 0
    try:
        library = open_library(is_hip)
        return library.driver, library.cache_bytes(library.gpu(hardware)) or usual
    # The version is only information.
    except Exception as error:
        return unknown_driver(error), usual
