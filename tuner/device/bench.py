"""Measures tasks on a device, and continues even if a config kills the process that drives it.

In: tasks. Out: an `Outcome` per config. A worker process drives the device with an `engine.Engine`. When the worker is
lost, `session` finds the config that caused it, and the other configs continue with a new worker. The race of a search
decides how many rounds each config gets.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import Any

from normtune.errors import NormtuneError
from normtune.kernels.call import AnyLaunch, ImplementationLaunch
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.spec_faults import OperatorError
from normtune.kernels.target import Target
from normtune.results.records import ROUNDS_PER_BLOCK, Device, Outcome, TimedCode
from normtune.tuner.compiling.binary_cache import BinaryCache
from normtune.tuner.compiling.compiler import Compiled
from normtune.tuner.compiling.pool import (
    BESIDE_A_GPU,
    COMPILE_SECONDS,
    CompilePool,
    default_workers,
)
from normtune.tuner.device.engine import Block, Identity, NoMemoryError
from normtune.tuner.device.open import Phases, SkippedError
from normtune.tuner.device.session import Session
from normtune.tuner.device.worker import Opener, Worker, WorkerLostError
from normtune.tuner.plan.binaries import compile_class
from normtune.tuner.plan.estimate import Speed
from normtune.tuner.plan.plan import Plan, Task
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.search.protocol import Race
from normtune.tuner.search.rounds import close_to_best, timed
from normtune.tuner.timing.trial import gate_launch

# The outputs of configs within 3 % of the best are compared in many calls: any of them may enter a table.
LIKELY = 1.03
# Time limits of a step of one config, which takes milliseconds, and of a step of all configs, which takes seconds.
STEP_SECONDS = 20.0
STEPS_SECONDS = 60.0
# The most workers lost in a row without a finished step: while the device is opened, and in steps, where every config
# of an operator may be bad.
MAX_LOST = 3
MAX_LOST_BY_CONFIGS = 20
# Number of tasks whose binaries are compiled ahead. In an estimate of a default sweep with 2 to 16 cores, more than 16
# gain nothing: the wait for compilers is 0 to 73 s, as if all were compiled ahead.
LOOK_AHEAD = 32


class WorkerBench:
    """A device behind a worker, which is started at once; an `open.Bench`.

    Args:
        opener: module, function and arguments that create the engine.
        cache: binaries that were compiled elsewhere; None for Triton's cache.
    """

    def __init__(self, opener: Opener, cache: BinaryCache | None = None) -> None:
        self._opener = opener
        self._cache = cache
        self._folder = cache.folder if cache else None
        self._lost = 0
        self._restarts = 0
        self._generation = 0
        self._worker: Worker | None = None
        self._protocol: dict[str, object] = {}
        self._expected = self._undigested = ""
        self._pool: CompilePool | None = None
        self._on_progress: Callable[[int], None] | None = None
        self._meanwhile: Callable[[], None] | None = None
        self._failed: dict[object, Outcome] = {}
        self._gated: set[object] = set()
        self._wanted: set[Task] = set()
        self._blocks: dict[Problem, int] = {}
        self._rounds = self._void_rounds = 0
        self._seconds = {"compile": 0.0, "gate": 0.0, "timing": 0.0}
        self._starting: Worker | None = Worker(opener, self._folder)

    def open(self) -> None:
        """Wait until the engine is open.

        Raises:
            NormtuneError: it cannot be opened.
        """
        _ = self._identity

    def expect(self, target: str) -> None:
        """Announce the target before the engine is open, so that binaries can be compiled meanwhile."""
        self._expected = target

    @cached_property
    def _identity(self) -> Identity:
        identity = self.worker().identity
        if self._expected != identity.target.name:
            self._expected = ""
            if self._pool:
                self._pool.close()
                self._pool = None
                self._wanted.clear()
        return identity

    @property
    def device(self) -> Device:
        """The device."""
        return self._identity.device

    @property
    def target(self) -> Target:
        """Limits of the device."""
        return self._identity.target

    @property
    def software(self) -> dict[str, str]:
        """Versions of compiler and driver stack."""
        return self._identity.software

    @property
    def free_bytes(self) -> int | None:
        """Free device memory at the start; None for no limit."""
        return self._identity.free_bytes

    @property
    def regime(self) -> str:
        """Regime of the timing."""
        return self._identity.regime

    def speed(self) -> Speed:
        """Speed of this machine.

        Raises:
            NormtuneError: even a copy fails on the device.
        """
        try:
            speed: Speed = self.ask_twice("speed", seconds=STEPS_SECONDS)
        except (WorkerLostError, NoMemoryError) as error:
            raise NormtuneError(
                f"{self.device.label} cannot be measured, a plain copy failed ({error}): `normtune doctor` looks for "
                "the cause, such as other processes that hold its memory"
            ) from None
        return speed._replace(cores=default_workers())

    def prepare(self, tasks: Iterable[Task], on_progress: Callable[[int], None] | None = None) -> None:
        """Start compiling, in the order of the tasks; a failure becomes the outcome of the binary's configs."""
        if not self._expected and not self._identity.compiles:
            return
        if self._pool is None:
            self._pool = CompilePool(
                [],
                self._expected or self.target.name,
                seconds=COMPILE_SECONDS,
                on_progress=self._report_progress,
                nice=BESIDE_A_GPU,
                folder=self._folder,
            )
            self._pool.start()
        self._on_progress = on_progress or self._on_progress
        for task in islice(tasks, LOOK_AHEAD):
            self._request_binaries(task)

    def _report_progress(self, done: int) -> None:
        if self._on_progress:
            self._on_progress(done)

    def compiled(self, task: Task, seconds: float | None = None) -> bool:
        """Wait for the binaries of a task, at most `seconds`; whether they are compiled."""
        start = time.perf_counter()
        self._request_binaries(task)
        try:
            for candidate in task.candidates:
                left = None if seconds is None else max(0.0, seconds - (time.perf_counter() - start))
                if self._compile(task.problem, candidate, left) is None:
                    return False
            return True
        finally:
            self._seconds["compile"] += time.perf_counter() - start

    def examine(self, tasks: Iterable[Task]) -> None:
        """Run the functions of each operator at its smallest task, before anything is measured.

        Raises:
            OperatorError: a function raises, returns a wrong value, or kills the process.
        """
        smallest: dict[Key, Task] = {}
        for task in sorted(tasks, key=lambda task: math.prod(task.problem.shape)):
            if task.candidates:
                smallest.setdefault(task.problem.key, task)
        for problem, candidates in smallest.values():
            with suppress(NoMemoryError):  # the memory may be free when the problem is measured
                try:
                    self.ask_twice("prove", problem, candidates[0], seconds=STEPS_SECONDS)
                except WorkerLostError as error:
                    raise OperatorError(
                        f"operator {problem.operator!r}: its inputs or reference for {problem} killed the process "
                        f"that drives the device ({error})"
                    ) from None
                with suppress(WorkerLostError):  # the gate finds the config
                    self.ask("make_calls", problem, candidates, seconds=STEPS_SECONDS)

    def measure(self, task: Task, race: Race, meanwhile: Callable[[], None] | None = None) -> Mapping[Config, Outcome]:
        """Gate each binary once, time the candidates that pass, compare their outputs again."""
        self.compiled(task)
        start = time.perf_counter()
        outcomes: dict[Config, Outcome] = {}
        passed = []
        for candidate in task.candidates:
            failure = self._gate(task.problem, candidate)
            if failure:
                outcomes[candidate.config] = failure
            else:
                passed.append(candidate)
        session = Session(self, task.problem, passed)
        session.step("warm_up", session.alive())
        timing = time.perf_counter()
        first_block = self._blocks.get(task.problem, 0)
        self._meanwhile = meanwhile  # runs during the first block, the longest step
        samples = timed(session, session.alive(), race, first_block) if session.alive() else {}
        if samples:
            self._blocks[task.problem] = 1 + max(values.rounds[-1] for values in samples.values()) // ROUNDS_PER_BLOCK
        compare = time.perf_counter()
        session.step("compare", session.alive(), close_to_best(samples, LIKELY))
        outcomes.update(session.failed)
        for config, values_of_config in samples.items():
            outcomes.setdefault(config, Outcome("ok", "", values_of_config.rounds, values_of_config.nanoseconds))
        for candidate in task.candidates if self._pool else ():
            outcome = outcomes[candidate.config]
            outcomes[candidate.config] = outcome._replace(code=self._code(task.problem, candidate.launch))
        self._seconds["gate"] += timing - start + time.perf_counter() - compare
        self._seconds["timing"] += compare - timing
        return outcomes

    def phases(self) -> Phases:
        """Seconds spent waiting for the compiler, in the gate and in timing; rounds, void rounds and lost workers."""
        protocol = {
            "regime": self._identity.regime,
            "rounds": self._rounds,
            "void_rounds": self._void_rounds,
            "worker_restarts": self._restarts,
        }
        if self._undigested:
            protocol["undigested"] = self._undigested
        return Phases(**self._seconds, protocol={**protocol, **self._protocol})

    def close(self) -> dict[str, object]:
        """End the worker and the compilers; returns the summary of the clocks."""
        if self._pool:
            self._pool.close()
        if self._starting:
            self._starting.abandon()
            self._starting = None
        if self._worker:
            self._protocol.update(self._worker.close())
            self._worker = None
        return self._protocol

    def worker(self) -> Worker:
        """The worker, a new one if the last was lost.

        Raises:
            NormtuneError: no worker can start.
        """
        while self._worker is None:
            starting, self._starting = self._starting or Worker(self._opener, self._folder), None
            try:
                starting.open()
                self._worker = starting
            except WorkerLostError as error:
                self._count_lost(error, MAX_LOST)
            self._generation += 1
        return self._worker

    def ask(self, step: str, *arguments: Any, seconds: float) -> Any:
        """The engine's answer to a step.

        Raises:
            WorkerLostError: the worker is lost; the next call starts a new one.
            NoMemoryError, NormtuneError: as `Worker.call`.
        """
        worker = self.worker()
        meanwhile, self._meanwhile = self._meanwhile, None
        try:
            answer = worker.call(step, *arguments, seconds=seconds, meanwhile=meanwhile)
        except WorkerLostError as error:
            self._worker = None
            self._restarts += 1
            self._count_lost(error, MAX_LOST_BY_CONFIGS)
            raise
        self._lost = 0
        return answer

    def ask_twice(self, step: str, *arguments: Any, seconds: float | None = None) -> Any:
        """The same as `ask`, but repeated once if the worker dies, as another process may have killed it."""
        limit = seconds or STEP_SECONDS
        try:
            return self.ask(step, *arguments, seconds=limit)
        except WorkerLostError as error:
            if error.certain:
                raise
        return self.ask(step, *arguments, seconds=limit)

    def ask_all(self, step: str, configs: Sequence[Config], *more: Any) -> Any:
        """The same as `ask`, for a step of some configs of a problem."""
        return self.ask(step, configs, *more, seconds=STEP_SECONDS if len(configs) == 1 else STEPS_SECONDS)

    def count(self, block: Block) -> None:
        """Add the rounds of a block to those of the run."""
        self._rounds += block.rounds
        self._void_rounds += block.void_rounds

    @property
    def generation(self) -> int:
        """Number of the current worker: a new one has to begin the problem again."""
        return self._generation

    def _count_lost(self, error: WorkerLostError, most: int) -> None:
        self._lost += 1
        if self._lost > most:
            raise NormtuneError(
                f"the process that drives the device was lost {self._lost} times in a row, the last time because of: "
                f"{error}; everything measured is stored, `normtune doctor` looks for the cause"
            ) from None

    def _request_binaries(self, task: Task) -> None:
        if self._pool is not None and task not in self._wanted:
            self._wanted.add(task)
            self._pool.add(Plan((task,), {}).jobs())

    def _compile(self, problem: Problem, candidate: Candidate, seconds: float | None) -> Compiled | bool | None:
        """The compiled binary of a candidate; True if none is needed, None if the wait took over `seconds`."""
        key = compile_class(problem, candidate.launch)
        if self._pool is None or key in self._failed or key in self._gated:
            return True
        result = self._pool.result(problem, candidate.launch, seconds)
        if result is not None and result.status != "ok":
            self._failed[key] = Outcome(result.status, result.reason)
        elif result is not None and result.shared_bytes > self.target.shared_bytes:
            reason = f"{result.shared_bytes} bytes of shared memory exceed {self.target.shared_bytes}"
            self._failed[key] = Outcome("out_of_resources", reason)
        if result is not None:
            self._undigested = result.undigested or self._undigested
        if self._cache and result and result.toolchain:
            self._cache.note(problem, candidate.launch, result.made, result.toolchain, self.target.name)
        return result

    def _code(self, problem: Problem, launch: AnyLaunch) -> TimedCode | None:
        assert self._pool is not None
        if isinstance(launch, ImplementationLaunch):
            return None
        return self._pool.code(problem, launch)

    def _gate(self, problem: Problem, candidate: Candidate) -> Outcome | None:
        """The failure of a candidate in the gate, if any; outcomes of binaries and launches are kept."""
        key = compile_class(problem, candidate.launch)
        if key in self._failed or key in self._gated:
            return self._failed.get(key)
        # A failure is only of this config and this launch: another grid or other integers may work.
        keys = (key, candidate.config), (key, *gate_launch(operator(problem.operator), problem, candidate, self.target))
        if earlier := self._failed.get(keys[0]) or self._failed.get(keys[1]):
            return earlier
        try:
            failure = self.ask_twice("gate", problem, candidate)
        except WorkerLostError as error:
            failure = Outcome(error.status, f"in the gate: {error}")
        except NoMemoryError as error:
            raise SkippedError(str(error)) from None
        if failure:
            self._failed.update(dict.fromkeys(keys, failure))
        else:
            self._gated.add(key)
        return failure
