"""The steps of one problem on a device, which continue even if a config kills the process that runs them.

In: a problem, its candidates, and the bench whose worker does the steps. Out: the answer to each step, and the configs
that failed. When the worker is lost, the step is repeated one config at a time to find the config that caused it.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from normtune.kernels.config import COPY, Config
from normtune.kernels.problem import Problem
from normtune.results.records import Outcome
from normtune.tuner.device.engine import Block, NoMemoryError, SkippedError
from normtune.tuner.device.worker import WorkerLostError
from normtune.tuner.plan.pool import Candidate

if TYPE_CHECKING:
    from normtune.tuner.device.bench import Bench


class Session:
    """One problem under measurement; a `search.rounds.ProblemSession`.

    Attributes:
        failed: outcomes of the configs that failed so far.
    """

    def __init__(self, bench: "Bench", problem: Problem, candidates: Sequence[Candidate]) -> None:
        self._bench = bench
        self._problem = problem
        self._candidates = candidates
        self._begun_by = -1  # number of the worker that began the problem
        self.failed: dict[Config, Outcome] = {}

    def alive(self) -> list[Config]:
        """The candidates that have not failed."""
        return [candidate.config for candidate in self._candidates if candidate.config not in self.failed]

    def block(self, configs: Sequence[Config]) -> dict[Config, list[int]]:
        """Time a block of rounds; nanoseconds by config, without configs that failed."""
        timed_block: Block = self.step("block", configs)
        self._bench.count(timed_block)
        return timed_block.times

    def step(self, name: str, configs: Sequence[Config], *more: Any) -> Any:
        """The answer to a step of several configs, without those that fail in it; None if all have failed.

        Raises:
            SkippedError: the problem does not fit, or the worker is lost twice although no single config causes it.
        """
        for _ in range(2):
            alive = [config for config in configs if config not in self.failed]
            if not alive:
                return None
            try:
                answer = self._once(name, alive, *more)
            except NoMemoryError as error:
                raise SkippedError(str(error)) from None
            except WorkerLostError as error:
                lost = error
                self._find_culprit(name, alive, *more)
                continue
            if isinstance(answer, Mapping):
                self.failed.update(answer)
            return answer
        raise SkippedError(f"the process that drives the device was lost twice over all configs together ({lost})")

    def _find_culprit(self, name: str, configs: Sequence[Config], *more: Any) -> None:
        """Repeat a step one config at a time, to find the config that loses the worker."""
        for config in configs:
            try:
                self._once(name, [config], *more)
            except WorkerLostError as error:
                if config == COPY:
                    raise SkippedError(f"a plain copy failed ({error})") from None
                self.failed[config] = Outcome(error.status, f"in {name}: {error}")
            except NoMemoryError as error:
                raise SkippedError(str(error)) from None

    def _once(self, name: str, configs: Sequence[Config], *more: Any) -> Any:
        bench = self._bench
        bench.worker()
        if self._begun_by != bench.generation:
            try:
                bench.ask_twice("begin", self._problem, self._candidates)
            except WorkerLostError as error:
                raise SkippedError(f"the process that drives the device was lost before any config ({error})") from None
            self._begun_by = bench.generation
        return bench.ask_all(name, configs, *more)
