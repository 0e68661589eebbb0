"""The binaries of a sweep, compiled ahead of the timing; devices with the same target share them.

In: tasks in about the order of measuring. Out: for each binary the compiler's report, and the digest of its code.
"""

from collections.abc import Callable, Sequence
from threading import Lock

from normtune.kernels.call import AnyLaunch, ImplementationLaunch
from normtune.kernels.problem import Problem
from normtune.results.records import Outcome, TimedCode
from normtune.tuner.compiling.compiler import Compiled
from normtune.tuner.compiling.kernel_cache import KernelCache
from normtune.tuner.compiling.pool import BESIDE_A_GPU, CompilePool, Executor
from normtune.tuner.plan.plan import Plan, Task


class Binaries:
    """Binaries for one target; several threads may use it at once.

    Args:
        target: `sm_90`, `gfx942`, ...
        cache: binaries that were compiled elsewhere; None for Triton's cache.
        elsewhere: as in `CompilePool`.

    Attributes:
        undigested: why code has no digest; empty if it has.
    """

    def __init__(self, target: str, cache: KernelCache | None = None, elsewhere: Executor | None = None) -> None:
        self.undigested = ""
        self._cache = cache
        self._tasks: set[Task] = set()
        self._requests = Lock()
        self._on_progress: Callable[[int], None] | None = None
        self._pool = CompilePool(
            [],
            target,
            on_progress=self._report_progress,
            nice=BESIDE_A_GPU,
            folder=cache.folder if cache else None,
            elsewhere=elsewhere,
        )
        self._pool.start()

    def request(self, tasks: Sequence[Task], on_progress: Callable[[int], None] | None = None) -> None:
        """Start compiling, in the order of the tasks; `on_progress` as in `CompilePool`."""
        self._on_progress = on_progress or self._on_progress
        with self._requests:
            for task in tasks:
                if task not in self._tasks:
                    self._tasks.add(task)
                    self._pool.add(Plan((task,), {}).jobs())

    def result(self, problem: Problem, launch: AnyLaunch, seconds: float | None) -> Compiled | None:
        """The report of a requested binary, after a wait of at most `seconds`; None if it is not compiled by then."""
        result = self._pool.result(problem, launch, seconds)
        if result is not None:
            self.undigested = result.undigested or self.undigested
            if self._cache and result.kernels:
                self._cache.note(problem, launch, bool(result.new_kernels))
        return result

    def kernels(self, task: Task) -> set[str]:
        """Triton's names of the kernels of a task, as far as they are compiled."""
        launches = [one.launch for one in task.candidates if not isinstance(one.launch, ImplementationLaunch)]
        return {name for launch in launches for name in self._pool.kernels(task.problem, launch)}

    def code(self, problem: Problem, launch: AnyLaunch) -> TimedCode:
        """The code of a launch, as `CompilePool.code`."""
        return self._pool.code(problem, launch)

    def close(self) -> None:
        """End the compilers."""
        self._pool.close()

    def _report_progress(self, done: int) -> None:
        if self._on_progress:
            self._on_progress(done)


class Compilers:
    """The binaries of each target, and what the gate said of them, for the benches of one sweep.

    The last bench that leaves closes the compilers.

    Args:
        cache: as in `Binaries`.
        elsewhere: where to compile for a target, instead of in processes of this machine.

    Attributes:
        folder: of the cache, if any.
    """

    def __init__(self, cache: KernelCache | None = None, elsewhere: Callable[[str], Executor] | None = None) -> None:
        self._elsewhere = elsewhere
        self.folder = cache.folder if cache else None
        self._cache = cache
        self._of: dict[str, Binaries] = {}
        self._gated: dict[object, dict[object, Outcome | None]] = {}
        self._users = 0
        self._leaving = Lock()

    def gated(self, kind: object) -> dict[object, Outcome | None]:
        """Failures in the gate on devices of a kind; None for a binary that passed."""
        return self._gated.setdefault(kind, {})

    def enter(self) -> None:
        """Count a bench that will use them."""
        self._users += 1

    def leave(self) -> None:
        """Count a bench that no longer uses them."""
        with self._leaving:
            self._users -= 1
            while self._of and not self._users:
                self._of.popitem()[1].close()

    def drop(self, target: str) -> None:
        """Close the binaries for a target that no device has, unless another bench may expect it."""
        if self._users == 1 and target in self._of:
            self._of.pop(target).close()

    def of(self, target: str) -> Binaries:
        """The binaries for a target, whose compilers start with the first call."""
        if target not in self._of:
            elsewhere = self._elsewhere(target) if self._elsewhere else None
            self._of[target] = Binaries(target, self._cache, elsewhere)
        return self._of[target]
