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
from normtune.kernels.call import ImplementationLaunch
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.spec_faults import OperatorError
from normtune.kernels.target import Target
from normtune.results.records import ROUNDS_PER_BLOCK, Device, Outcome
from normtune.tuner.compiling.binaries import Binaries, Compilers
from normtune.tuner.compiling.compiler import Compiled
from normtune.tuner.compiling.kernel_cache import Folder
from normtune.tuner.device.engine import (
    Block,
    DeviceGoneError,
    Driver,
    Identity,
    NoMemoryError,
    Opener,
    Phases,
    SkippedError,
)
from normtune.tuner.device.session import Session
from normtune.tuner.device.worker import Worker, WorkerLostError
from normtune.tuner.plan.binaries import compile_class
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.search.protocol import Race
from normtune.tuner.search.rounds import close_to_best, timed
from normtune.tuner.timing.disturbance import WARNINGS, of_rounds
from normtune.tuner.timing.rounds import RoundCounts
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


class Bench:
    """A device behind a worker, which is started at once; methods and attributes wait until its engine is open.

    `expect` and `close` do not wait, nor does `prepare` after `expect`.

    Args:
        opener: module, function and arguments that create the engine.
        compilers: shared with the benches of other devices; None for its own.
        name: of the device, as the user wrote it.
        start: starts the process that drives it.

    Attributes:
        generation: number of the current worker: a new one has to begin the problem again.
    """

    def __init__(
        self,
        opener: Opener,
        compilers: Compilers | None = None,
        name: str = "",
        start: Callable[[Opener, Folder | None], Driver] = Worker,
    ) -> None:
        self.name = name
        self._start = start
        self._opener = opener
        self._compilers = compilers or Compilers()
        self._compilers.enter()
        self._lost = 0
        self._restarts = 0
        self.generation = 0
        self._worker: Driver | None = None
        self._protocol: dict[str, object] = {}
        self._expected = ""
        self._is_open = True
        self._is_stopped = False
        self._blocks: dict[Problem, int] = {}
        self._counts = RoundCounts()
        self._seconds = {"compile": 0.0, "gate": 0.0, "timing": 0.0}
        self._starting: Driver | None = start(opener, self._compilers.folder)

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
        if self._expected not in ("", identity.target.name):
            self._compilers.drop(self._expected)
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

    @cached_property
    def _gated(self) -> dict[object, Outcome | None]:
        """Failures in the gate by binary and launch; None for a binary that passed on this or a like device."""
        return self._compilers.gated(self.device.kind)

    @property
    def _binaries(self) -> Binaries | None:
        """The binaries for the device; None if it needs none, or the bench is closed."""
        if not self._is_open:
            return None
        opened = self.__dict__.get("_identity")
        if opened is None and self._expected:
            return self._compilers.of(self._expected)
        return self._compilers.of(self.target.name) if self._identity.compiles else None

    def prepare(self, tasks: Iterable[Task], on_progress: Callable[[int], None] | None = None) -> None:
        """Start compiling the binaries of the next tasks, in their order, as far ahead as is useful.

        Without tasks only the compilers start, which takes seconds. A failure becomes the outcome of its configs.

        Args:
            tasks: the next tasks; to be called again as they change.
            on_progress: called from another thread with the number of compiled binaries.
        """
        if binaries := self._binaries:
            binaries.request([*islice(tasks, LOOK_AHEAD)], on_progress)

    def compiled(self, task: Task, seconds: float | None = None) -> bool:
        """Wait for the binaries of a task, at most `seconds`; whether they are compiled."""
        start = time.perf_counter()
        self.prepare([task])
        try:
            for candidate in task.candidates:
                remaining = None if seconds is None else max(0.0, seconds - (time.perf_counter() - start))
                if self._compile(task.problem, candidate, remaining) is None:
                    return False
            return True
        finally:
            self._seconds["compile"] += time.perf_counter() - start

    def examine(self, tasks: Iterable[Task]) -> None:
        """Copy memory, and run the functions of each operator at its smallest task, before anything is measured.

        Raises:
            OperatorError: a function raises, returns a wrong value, or kills the process.
            NormtuneError: even a copy fails on the device.
        """
        self._try_copy()
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

    def _try_copy(self) -> None:
        try:
            self.ask_twice("try_copy", seconds=STEPS_SECONDS)
        except (WorkerLostError, NoMemoryError) as error:
            raise NormtuneError(
                f"{self.device.label} cannot be measured, a plain copy failed ({error}): `normtune doctor` looks for "
                "the cause, such as other processes that hold its memory"
            ) from None

    def measure(self, task: Task, race: Race) -> Mapping[Config, Outcome]:
        """Gate each binary once, time the candidates that pass, compare their outputs again.

        Args:
            task: problem and candidates.
            race: chooses the configs of each batch.

        Returns:
            Outcomes of the candidates, and of the copy if anything was timed.

        Raises:
            SkippedError: the task cannot be measured now.
            DeviceGoneError: nothing can be measured on this device any more.
        """
        self.compiled(task)
        start = time.perf_counter()
        if binaries := self._binaries:
            self.worker().supply(binaries.kernels(task))
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
        samples = timed(session, session.alive(), race, first_block) if session.alive() else {}
        if samples:
            self._blocks[task.problem] = 1 + max(values.rounds[-1] for values in samples.values()) // ROUNDS_PER_BLOCK
        compare = time.perf_counter()
        session.step("compare", session.alive(), close_to_best(samples, LIKELY))
        outcomes.update(session.failed)
        for config, values_of_config in samples.items():
            outcomes.setdefault(config, Outcome("ok", "", values_of_config.rounds, values_of_config.nanoseconds))
        for candidate in task.candidates:
            if binaries and not isinstance(candidate.launch, ImplementationLaunch):
                code = binaries.code(task.problem, candidate.launch)
                outcomes[candidate.config] = outcomes[candidate.config]._replace(code=code)
        self._seconds["gate"] += timing - start + time.perf_counter() - compare
        self._seconds["timing"] += compare - timing
        return outcomes

    def phases(self) -> Phases:
        """Seconds spent waiting for the compiler, in the gate and in timing; rounds, void rounds and lost workers."""
        protocol: dict[str, Any] = {
            "regime": self._identity.regime,
            "rounds": self._counts.taken,
            "void_rounds": self._counts.void,
            "worker_restarts": self._restarts,
        }
        protocol |= self._protocol
        if warnings := {**protocol.get(WARNINGS, {}), **of_rounds(self._counts)}:
            protocol[WARNINGS] = warnings
        return Phases(**self._seconds, protocol=protocol)

    def close(self) -> dict[str, object]:
        """End the worker, and the compilers unless others use them; returns what was seen beside the timing."""
        if self._is_open:
            if "_identity" in self.__dict__ and (binaries := self._binaries) and binaries.undigested:
                self._protocol["undigested"] = binaries.undigested
            self._is_open = False
            self._compilers.leave()
        if self._starting:
            self._starting.abandon()
            self._starting = None
        if self._worker:
            self._protocol.update(self._worker.close())
            self._worker = None
        return self._protocol

    def stop(self) -> None:
        """End a measurement that another thread waits for, with an error there; afterwards only `close` may follow."""
        self._is_stopped = True
        for worker in (self._worker, self._starting):
            if worker:
                worker.kill()

    def worker(self) -> Driver:
        """The worker, a new one if the last was lost.

        Raises:
            NormtuneError: no worker can start, or the bench was stopped.
        """
        while self._worker is None:
            if self._is_stopped:
                raise DeviceGoneError(f"the measurements on {self.name} were stopped")
            starting = self._starting = self._starting or self._start(self._opener, self._compilers.folder)
            try:
                starting.open()
                self._worker = starting
            except WorkerLostError as error:
                self._count_lost(error, MAX_LOST)
            finally:
                self._starting = None
            self.generation += 1
        return self._worker

    def ask(self, step: str, *arguments: Any, seconds: float) -> Any:
        """The engine's answer to a step.

        Raises:
            WorkerLostError: the worker is lost; the next call starts a new one.
            NoMemoryError, NormtuneError: as `Worker.call`.
        """
        worker = self.worker()
        try:
            answer = worker.call(step, *arguments, seconds=seconds)
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
        self._counts = self._counts.plus(block.rounds)

    def _count_lost(self, error: WorkerLostError, most: int) -> None:
        self._lost += 1
        if self._lost > most:
            raise DeviceGoneError(
                f"the process that drives the device was lost {self._lost} times in a row, the last time because of: "
                f"{error}; everything measured is stored, `normtune doctor` looks for the cause"
            ) from None

    def _compile(self, problem: Problem, candidate: Candidate, seconds: float | None) -> Compiled | bool | None:
        """The compiled binary of a candidate; True if none is needed, None if the wait took over `seconds`."""
        key, binaries = compile_class(problem, candidate.launch), self._binaries
        if binaries is None or key in self._gated:
            return True
        result = binaries.result(problem, candidate.launch, seconds)
        if result is not None and (failure := result.on(self.target))[0] != "ok":
            self._gated[key] = Outcome(*failure)
        return result

    def _gate(self, problem: Problem, candidate: Candidate) -> Outcome | None:
        """The failure of a candidate in the gate, if any; outcomes of binaries and launches are kept."""
        key, gated = compile_class(problem, candidate.launch), self._gated
        if key in gated:
            return gated[key]
        # A failure is only of this config and this launch: another grid or other integers may work.
        keys = (key, candidate.config), (key, *gate_launch(operator(problem.operator), problem, candidate, self.target))
        if earlier := gated.get(keys[0]) or gated.get(keys[1]):
            return earlier
        try:
            failure = self.ask_twice("gate", problem, candidate)
        except WorkerLostError as error:
            failure = Outcome(error.status, f"in the gate: {error}")
        except NoMemoryError as error:
            raise SkippedError(str(error)) from None
        gated.update(dict.fromkeys(keys, failure) if failure else {key: None})
        return failure
