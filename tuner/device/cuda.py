"""A CUDA GPU as an `engine.Engine`, in the only process of a sweep that has a CUDA context.

`timing` measures times, `gate` compares outputs. Errors that leave the context unusable are distinguished from failures
of one config.
"""

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import triton

from normtune.kernels.calling.device import describe
from normtune.kernels.config import Config
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.results.records import Device, Outcome
from normtune.results.regimes import COLD
from normtune.tuner.device.engine import Block, DeviceLostError, Identity, NoMemoryError
from normtune.tuner.plan.estimate import Speed
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.timing.clocks import ClockWatch
from normtune.tuner.timing.gate import LaunchFailedError, gate, make_calls, one_line, prove
from normtune.tuner.timing.timing import CudaSession, Timer


class CudaEngine:
    """One CUDA GPU; an `engine.Engine`.

    Args:
        index: CUDA's number of the GPU.
        regime: of the timing, a name of `regimes.REGIMES`.
    """

    def __init__(self, index: int, regime: str = COLD) -> None:
        self._regime = regime
        self._torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self._torch_device)
        properties = torch.cuda.get_device_properties(index)
        self.target = describe(index)
        self.device = Device(
            name=properties.name,
            target=self.target.name,
            sms=self.target.sms,
            l2_bytes=self.target.l2_bytes,
            memory_bytes=properties.total_memory,
            uuid=str(properties.uuid),
            driver=_driver_version(),
        )
        self.software = {
            "triton": triton.__version__,
            "torch": torch.__version__,
            "cuda": str(torch.version.cuda),
            "python": platform.python_version(),
        }
        self._timer: Timer | None = None
        self._speed: Speed | None = None
        self._session: CudaSession[Config] | None = None
        self._clocks = ClockWatch(self.device.uuid)
        self._clocks.start()

    def identify(self) -> Identity:
        """The GPU, with its free memory."""
        with self._translated():
            free, _ = torch.cuda.mem_get_info(self._torch_device)
        return Identity(self.device, self.target, self.software, free, True, self._regime)

    def speed(self) -> Speed:
        """Speed, measured with warm clocks; the number of cores is the caller's."""
        if self._speed is None:
            with self._translated():
                self._speed = Speed(*self.ready().speed(), 1)
        return self._speed

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
        timer = self.ready()
        before = timer.rounds, timer.void_rounds
        with self._translated():
            times = self.session().block(configs)
        return Block(times, timer.rounds - before[0], timer.void_rounds - before[1])

    def compare(self, configs: Sequence[Config], often: Sequence[Config]) -> Mapping[Config, Outcome]:
        """Compare outputs at the problem's own size."""
        with self._translated():
            failed = self.session().compare(configs, often)
            return {config: self._outcome(error, "after timing: ") for config, error in failed.items()}

    @property
    def sm_clock_mhz(self) -> int | None:
        """The last sample of the SM clock; None without NVML."""
        return self._clocks.latest

    def close(self) -> dict[str, object]:
        """Stop watching the clocks, and return their summary."""
        return self._clocks.stop()

    def ready(self) -> Timer:
        """The timer, with warm clocks."""
        if self._timer is None:
            self._timer = Timer(self._torch_device, self.target.sms, self.device.l2_bytes)
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


def _driver_version() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    # The version is only information.
    except Exception as error:
        return f"unknown ({type(error).__name__})"
