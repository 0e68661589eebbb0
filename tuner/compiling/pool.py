"""Compilation ahead of the timing, in a pool of processes, for a GPU that may be absent.

In: (problem, launch) pairs and a target. Out: for each binary the compiler's report or the reason of its failure, and
the digest of the code of each pair. The binaries go to Triton's disk cache, where a later launch with the same
arguments finds them. The processes import triton but never torch, and open no CUDA context. A compile that hangs or
dies is repeated once; then its binary counts as failed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from typing import Any, Protocol, cast

from pebble import ProcessExpired, ProcessPool

from normtune.errors import NormtuneError
from normtune.kernels.call import AnyLaunch
from normtune.kernels.key import Key
from normtune.kernels.load_file import loaded
from normtune.kernels.problem import Problem
from normtune.results.parallel.interrupts import shielded
from normtune.results.parallel.processes import Scratch, cores
from normtune.results.records import TimedCode, launch_digest
from normtune.tuner.compiling.compiler import Compiled, activate, compile_job
from normtune.tuner.compiling.kernel_cache import Folder
from normtune.tuner.machine.processes import SPAWN, check_guarded, exit_text, start_tracker
from normtune.tuner.plan.binaries import Job, compile_class, jobs_of

# No binary of the full space took more than 6 s on a core of the H200's host.
COMPILE_SECONDS = 60.0
# The first failure may not be the compiler's: another process may have killed it, or the machine may have slept.
TRIES = 2
# `nice` of compilers beside a process that drives a GPU, which has priority.
BESIDE_A_GPU = 10


class Executor(Protocol):
    """Calls functions in processes that are prepared by `compiler.activate`; what is used of Pebble's pool."""

    def schedule(self, function: Callable[..., Any], args: Sequence[Any] = (), timeout: float | None = None) -> Any:
        """The future of a call. Its errors: TimeoutError, ProcessExpired, and those of the function."""
        ...

    def stop(self) -> None:
        """End the processes, without waiting for calls."""
        ...

    def join(self) -> None:
        """Wait until the processes have ended."""
        ...


def processes(
    workers: int, target: str, nice: int, scratch: str, files: Sequence[str], folder: Folder | None
) -> Executor:
    """Processes of this machine, which start at once; further arguments as in `compiler.activate`."""
    start_tracker()
    # An interrupt between the start of a process and its entry in the pool would leave it behind.
    with shielded():
        initial = target, nice, scratch, files, folder
        pool = ProcessPool(workers, initializer=activate, initargs=initial, context=SPAWN)
        pool.schedule(int)  # starts the processes
    return cast(Executor, pool)


class CompilePool:
    """Compiles jobs in the background, about in their order.

    Args:
        jobs: one per compile class; `add` takes more.
        target: `sm_90`, `gfx942`, ...
        workers: number of processes; by default one per core, but not more than the jobs, if any.
        keep_assembly: whether to fill `Compiled.binaries` (PTX or AMD assembly, much text) and `Compiled.resources`.
        on_progress: called from another thread, after each job, with the number of finished jobs.
        nice: added to the niceness of the processes, as by `os.nice`.
        only_codes: whether to compute only the digests of code, without making binaries.
        folder: of binaries, to read or to fill; None for Triton's own cache.
        elsewhere: where to compile instead of in processes of this machine.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        target: str,
        workers: int | None = None,
        keep_assembly: bool = False,
        on_progress: Callable[[int], None] | None = None,
        nice: int = 0,
        only_codes: bool = False,
        folder: Folder | None = None,
        elsewhere: Executor | None = None,
    ) -> None:
        self._futures: dict[tuple[Key, AnyLaunch], Future[Compiled]] = {}
        self._jobs: dict[Future[Compiled], Job] = {}
        # The job that digests the code of each launch: the job of its binary, or a later one.
        self._of_launch: dict[tuple[Problem, AnyLaunch], Future[Compiled]] = {}
        self._done = 0
        self._on_progress = on_progress
        self._pool: Executor | None = elsewhere
        self._scratch: Scratch | None = None
        self._workers = min(workers or cores(), len(jobs) or cores())
        self._initial = target, nice
        self._folder = folder
        self._keep_assembly = keep_assembly
        self._only_codes = only_codes
        self.add(jobs)

    def start(self) -> None:
        """Start the processes before there are jobs, because loading Triton takes them seconds."""
        self._started()

    def add(self, jobs: Sequence[Job]) -> None:
        """Compile further jobs, behind the others.

        A binary is compiled once; a later job of it compiles only the kernels for other numbers of partial sums.
        """
        for job in jobs:
            new = tuple(pair for pair in job.serves if pair not in self._of_launch)
            earlier = self._futures.get(compile_class(job.problem, job.launch))
            if earlier is not None and not new:
                continue
            future: Future[Compiled] = Future()
            self._of_launch.update(dict.fromkeys(new, future))
            if earlier is not None:
                self._try(self._jobs[earlier]._replace(serves=new), future, TRIES, self._only_codes)
                continue
            future.add_done_callback(self._count)
            self._futures[compile_class(job.problem, job.launch)] = future
            self._jobs[future] = job
            self._try(job, future, TRIES, self._only_codes)

    def __iter__(self) -> Iterator[Compiled]:
        """All results, in the order of completion.

        Raises:
            NormtuneError: no process of the pool can start.
        """
        for future in as_completed(self._jobs):
            yield self._result(future)

    def result(self, problem: Problem, launch: AnyLaunch, seconds: float | None = None) -> Compiled | None:
        """Result of the binary of a launch, after a wait of at most `seconds`; None if it is not finished.

        Raises:
            KeyError: the binary is not among the jobs.
            NormtuneError: no process of the pool can start, or a failure that no config caused.
        """
        future = self._futures[compile_class(problem, launch)]
        # A separate wait: a timeout of `Future.result` would look like a timeout of the compiler.
        wait([future], seconds)
        return self._result(future) if future.done() else None

    def code(self, problem: Problem, launch: AnyLaunch) -> TimedCode:
        """The code of a launch, once its job has ended; without digests if the compiler failed or has none.

        Raises:
            NormtuneError: as `result`.
        """
        unknown = TimedCode(launch_digest(launch))
        try:
            compiled = self._of_launch[problem, launch].result()
        except NormtuneError:
            raise
        # `result` reports the compiler's failure.
        except Exception:
            return unknown
        return dict(zip(compiled.job.serves, compiled.codes, strict=False)).get((problem, launch), unknown)

    def kernels(self, problem: Problem, launch: AnyLaunch) -> set[str]:
        """Triton's names of the kernels of a launch, as far as they are compiled."""
        futures = self._futures[compile_class(problem, launch)], self._of_launch[problem, launch]
        return {name for each in futures if each.done() and not each.exception() for name in each.result().kernels}

    def close(self) -> None:
        """End the processes and remove their temporary files; pending jobs stay uncompiled."""
        if self._pool is not None:
            try:
                self._pool.stop()
                self._pool.join()
            finally:
                if self._scratch:
                    self._scratch.remove()

    def _started(self) -> Executor:
        if self._pool is None:
            self._scratch = Scratch()
            self._pool = processes(self._workers, *self._initial, self._scratch.path, loaded(), self._folder)
        return self._pool

    def _count(self, _: object) -> None:
        self._done += 1
        if self._on_progress:
            self._on_progress(self._done)

    def _try(self, job: Job, future: Future[Compiled], tries: int, only_codes: bool) -> None:
        """Compile a job, at most `tries` times; after a kill or a timeout it is repeated behind the others."""

        def finish(attempt: Future[Compiled]) -> None:
            try:
                future.set_result(attempt.result())
            except (ProcessExpired, TimeoutError) as error:
                if tries > 1:
                    with suppress(RuntimeError):  # the pool is closing
                        return self._try(job, future, tries - 1, only_codes)
                future.set_exception(error)
            except BrokenProcessPool as error:
                # Its traceback refers to the job that could not be sent, and the job to it: Python 3.13 warns of that.
                error.__cause__ = error.__context__ = None
                future.set_exception(error.with_traceback(None))
            except BaseException as error:
                future.set_exception(error)

        attempt = self._started().schedule(
            compile_job, args=(job, self._keep_assembly, only_codes), timeout=COMPILE_SECONDS
        )
        attempt.add_done_callback(finish)

    def _result(self, future: Future[Compiled]) -> Compiled:
        try:
            return future.result()
        except ProcessExpired as error:
            check_guarded(error.exitcode)
            return Compiled(self._jobs[future], "crashed", f"the compiler's process died ({exit_text(error.exitcode)})")
        except BrokenProcessPool:
            raise NormtuneError(
                "the compiler's processes cannot start: a script that starts them needs `if __name__ == '__main__':`, "
                "`normtune doctor` looks for other causes"
            ) from None
        except (TimeoutError, CancelledError) as error:
            outcome = "was stopped" if isinstance(error, CancelledError) else f"took over {COMPILE_SECONDS:g} s"
            return Compiled(self._jobs[future], "timeout", f"compiling {outcome}")


def compile_all(
    jobs: Sequence[Job], target: str, workers: int | None = None, keep_assembly: bool = False
) -> Iterator[Compiled]:
    """Compile all jobs for `target`; yields results as they finish, in any order. Arguments as in `CompilePool`."""
    pool = CompilePool(jobs, target, workers, keep_assembly)
    try:
        yield from pool
    finally:  # also if the caller stops iterating
        pool.close()


def codes_of(
    pairs: Iterable[tuple[Problem, AnyLaunch]], target: str, workers: int | None = None
) -> dict[tuple[Problem, AnyLaunch], TimedCode]:
    """The code of each pair; without a digest if the compiler died or took too long, or this Triton gives none.

    Raises:
        NormtuneError: no process of the pool can start.
    """
    jobs = jobs_of(pairs)
    codes = {pair: TimedCode(launch_digest(pair[1])) for job in jobs for pair in job.serves}
    with closing(CompilePool(jobs, target, workers, only_codes=True)) as pool:
        for compiled in pool:
            codes |= zip(compiled.job.serves, compiled.codes, strict=False)  # no codes of a compiler that died
    return codes
