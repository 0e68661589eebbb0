"""A CUDA GPU as a bench: compile, gate, time, compare once more.

In: tasks. Out: an `Outcome` a config. Which problems there are and where outcomes go is the sweep's business; how
times are taken is in `timing`, what is right in `gate`, how many rounds in `racing`.
"""

import platform
import time
from collections.abc import Iterator, Mapping, Sequence

import torch
import triton
from triton.runtime.errors import OutOfResources

from normtune.kernels.config import Config
from normtune.kernels.device import describe
from normtune.kernels.operator import operator
from normtune.kernels.target import Target
from normtune.results.records import Device
from normtune.tuner.clocks import ClockWatch
from normtune.tuner.compiling import compile_all, compile_class, jobs_of
from normtune.tuner.device import Outcome, Phases
from normtune.tuner.gate import EPS, OFFSET, WrongResultError, compare, gate, poison
from normtune.tuner.planning import Candidate, Task
from normtune.tuner.racing import race
from normtune.tuner.timing import CudaSession, Timer


class CudaBench:
    """One CUDA GPU; a `device.Bench`.

    Args:
        index: CUDA's number of the GPU.

    Attributes:
        device: what the driver says it is.
        target: its limits.
        software: versions of what compiles and drives the kernels.
    """

    def __init__(self, index: int) -> None:
        self._torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self._torch_device)
        self.device, self.target = _identify(index)
        self.software = {
            "triton": triton.__version__,
            "torch": torch.__version__,
            "cuda": str(torch.version.cuda),
            "python": platform.python_version(),
        }
        self._failed: dict[object, Outcome] = {}
        self._gated: set[object] = set()
        self._timer: Timer | None = None
        self._clocks = ClockWatch(self.device.uuid)
        self._clocks.start()
        self._seconds = {"compile": 0.0, "gate": 0.0, "timing": 0.0}

    def prepare(self, tasks: Sequence[Task]) -> Iterator[tuple[int, int]]:
        """Compile all binaries in a pool of processes; a failure becomes the outcome of its configs."""
        start = time.perf_counter()
        jobs = jobs_of((task.problem, candidate.launch) for task in tasks for candidate in task.candidates)
        try:
            for done, compiled in enumerate(compile_all(jobs, self.target.name), 1):
                key = compile_class(compiled.job.problem, compiled.job.launch)
                if compiled.status != "ok":
                    self._failed[key] = Outcome(compiled.status, compiled.reason)
                elif compiled.shared_bytes > self.target.shared_bytes:
                    reason = f"{compiled.shared_bytes} bytes of shared memory exceed {self.target.shared_bytes}"
                    self._failed[key] = Outcome("out_of_resources", reason)
                yield done, len(jobs)
        finally:  # a sweep whose budget is spent stops listening
            self._seconds["compile"] += time.perf_counter() - start

    def measure(self, task: Task, strategy: str) -> Mapping[Config, Outcome]:
        """Gate each candidate's binary once, time those that pass, compare their last outputs."""
        timer = self.ready()
        spec = operator(task.problem.operator)
        start = time.perf_counter()
        outcomes: dict[Config, Outcome] = {}
        for candidate in task.candidates:
            failure = self.check(task, candidate)
            if failure:
                outcomes[candidate.config] = failure
        launches = {c.config: c.launch for c in task.candidates if c.config not in outcomes}
        session = CudaSession(timer, spec, task.problem, launches)
        for config, reason in session.warm_up(list(launches)).items():
            outcomes[config] = Outcome("out_of_resources", reason)
            del launches[config]
        gated = time.perf_counter()
        self._seconds["gate"] += gated - start
        samples = race(session, list(launches), strategy) if launches else {}
        timed = time.perf_counter()
        self._seconds["timing"] += timed - gated
        wrong = self._compare_again(session, task, list(launches))
        for config, found in samples.items():
            outcomes[config] = wrong.get(config) or Outcome("ok", "", found.rounds, found.nanoseconds)
        session.graphs.clear()
        self._seconds["gate"] += time.perf_counter() - timed
        return outcomes

    def phases(self) -> Phases:
        """Seconds in compile, gate and timing; rounds and void rounds."""
        rounds = {"rounds": self._timer.rounds, "void_rounds": self._timer.void_rounds} if self._timer else {}
        return Phases(**self._seconds, protocol={"regime": "cold graph", **rounds})

    def close(self) -> dict[str, object]:
        """Stop watching the clocks; returns what they did."""
        return self._clocks.stop()

    def ready(self) -> Timer:
        """What times kernels, with the clocks warm."""
        if self._timer is None:
            self._timer = Timer(self._torch_device, self.target.sms, self.device.l2_bytes)
            self._timer.warm_clocks()
        return self._timer

    def check(self, task: Task, candidate: Candidate) -> Outcome | None:
        """The failure of a candidate's binary, if any; it is tried once."""
        key = compile_class(task.problem, candidate.launch)
        if key in self._failed or key in self._gated:
            return self._failed.get(key)
        try:
            gate(operator(task.problem.operator), task.problem, candidate, self.target, self._torch_device)
        except WrongResultError as error:
            self._failed[key] = Outcome("wrong_result", str(error))
        except OutOfResources as error:
            self._failed[key] = Outcome("out_of_resources", str(error).splitlines()[0])
        else:
            self._gated.add(key)
        return self._failed.get(key)

    def _compare_again(
        self, session: CudaSession[Config], task: Task, configs: Sequence[Config]
    ) -> dict[Config, Outcome]:
        """Compare each config's outputs on timed data with the reference; those that are off, with the reason."""
        if not session.slices:
            return {}
        spec = operator(task.problem.operator)
        tensors = session.slices[0]
        expected = spec.references().reference(task.problem, tensors, EPS, OFFSET)
        wrong = {}
        for config in configs:
            for name in expected:
                poison(tensors[name])
            session.launcher(config)(tensors)
            try:
                compare({name: tensors[name] for name in expected}, expected)
            except WrongResultError as error:
                wrong[config] = Outcome("wrong_result", f"after timing: {error}")
        return wrong


def _identify(index: int) -> tuple[Device, Target]:
    properties = torch.cuda.get_device_properties(index)
    target = describe(index)
    device = Device(
        name=properties.name,
        target=target.name,
        sms=target.sms,
        l2_bytes=target.l2_bytes,
        memory_bytes=properties.total_memory,
        uuid=str(properties.uuid),
        driver=_driver_version(),
    )
    return device, target


def _driver_version() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    # The driver's version is for the reader; times do not depend on it.
    except Exception as error:
        return f"unknown ({type(error).__name__})"
