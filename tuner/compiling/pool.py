"""Compilation ahead of the timing, in a pool of processes, for a GPU that may be absent.

In: (problem, launch) pairs and a target. Out: for each binary the compiler's report or the reason of its failure, and
the digest of the code of each pair. The binaries go to Triton's disk cache, where a later launch of the same arguments
finds them. The pool's processes import triton but never torch and open no CUDA context. A compiler that hangs or dies
twice costs its binary.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress

from pebble import ProcessExpired, ProcessPool

from normtune.errors import NormtuneError
from normtune.kernels.key import Key
from normtune.kernels.load_file import loaded
from normtune.kernels.operator import AnyLaunch
from normtune.kernels.problem import Problem
from normtune.results.records import TimedCode, launch_digest
from normtune.tuner.compiling.binary_cache import Folder
from normtune.tuner.compiling.compiler import Compiled, activate, compile_job
from normtune.tuner.machine.interrupts import shielded
from normtune.tuner.machine.processes import SPAWN, Scratch, start_tracker, told_exit
from normtune.tuner.plan.binaries import Job, compile_class, jobs_of

# No binary of the full space took more than 6 s on a core of the H200's host.
COMPILE_SECONDS = 60.0
# The first failure may have another cause: a compiler that another process killed, or a machine that slept.
TRIES = 2
# `nice` of compilers beside a process that drives a GPU: they take the rest of the cores.
BESIDE_A_GPU = 10


def default_workers() -> int:
    """Processes of the pool: one per core that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


class CompilePool:
    """Compiles jobs in the background, about in their order.

    Args:
        jobs: one per compile class; `add` takes more.
        target: `sm_90`, `gfx942`, ...
        workers: number of processes; default one per core, and no more than jobs if there are any.
        keep_assembly: fill `Compiled.binaries` (PTX or AMD assembly, much text) and `Compiled.resources`.
        seconds: limit of a compile; after it the compile is repeated, or given up.
        told: called from another thread with the number of finished jobs, after each.
        nice: added to the niceness of the processes, as by `os.nice`.
        only_codes: compute only the digests of code, without compiling.
        folder: of binaries, to read or to fill; None for Triton's own cache.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        target: str,
        workers: int | None = None,
        keep_assembly: bool = False,
        seconds: float = COMPILE_SECONDS,
        told: Callable[[int], None] | None = None,
        nice: int = 0,
        only_codes: bool = False,
        folder: Folder | None = None,
    ) -> None:
        self._seconds = seconds
        self._futures: dict[tuple[Key, AnyLaunch], Future[Compiled]] = {}
        self._jobs: dict[Future[Compiled], Job] = {}
        # Source of the digest of each launch's code: the job of its binary, or a later one.
        self._of_launch: dict[tuple[Problem, AnyLaunch], Future[Compiled]] = {}
        self._done = 0
        self._told = told
        self._pool: ProcessPool | None = None
        self._workers = min(workers or default_workers(), len(jobs) or default_workers())
        self._initial = target, nice
        self._folder = folder
        self._keep_assembly = keep_assembly
        self._only_codes = only_codes
        self.add(jobs)

    def start(self) -> None:
        """Start the processes, which load Triton for seconds, before there are jobs."""
        self._started()

    def add(self, jobs: Sequence[Job]) -> None:
        """Compile further jobs, behind the others.

        A known binary is not compiled again, but for kernels of new launches that sum other numbers of partial sums.
        """
        for job in jobs:
            new = tuple(pair for pair in job.serves if pair not in self._of_launch)
            known = self._futures.get(compile_class(job.problem, job.launch))
            if known is not None and not new:
                continue
            future: Future[Compiled] = Future()
            self._of_launch.update(dict.fromkeys(new, future))
            if known is not None:
                self._try(self._jobs[known]._replace(serves=new), future, TRIES, self._only_codes)
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
            NormtuneError: no process of the pool can start, or what failed is no outcome of a config.
        """
        future = self._futures[compile_class(problem, launch)]
        # A separate wait: the timeout of `Future.result` would read as one of the compiler.
        wait([future], seconds)
        return self._result(future) if future.done() else None

    def code(self, problem: Problem, launch: AnyLaunch) -> TimedCode:
        """The code of a launch, after a wait for it; without its digests if the compiler failed, or there are none.

        Raises:
            NormtuneError: as `result`.
        """
        unknown = TimedCode(launch_digest(launch))
        try:
            done = self._of_launch[problem, launch].result()
        except NormtuneError:
            raise
        # `result` reports the compiler's failure.
        except Exception:
            return unknown
        return dict(zip(done.job.serves, done.codes, strict=False)).get((problem, launch), unknown)

    def close(self) -> None:
        """End the processes and remove their temporary files; pending jobs stay uncompiled."""
        if self._pool is not None:
            try:
                self._pool.stop()  # type: ignore[no-untyped-call]
                self._pool.join()
            finally:
                self._scratch.remove()

    def _started(self) -> ProcessPool:
        if self._pool is None:
            start_tracker()
            self._scratch = Scratch()
            initial = (*self._initial, self._scratch.path, loaded(), self._folder)
            # An interrupt between the start of a process and its entry in the pool would leave it behind.
            with shielded():
                self._pool = ProcessPool(self._workers, initializer=activate, initargs=initial, context=SPAWN)
                self._pool.schedule(int)  # starts the processes
        return self._pool

    def _count(self, _: object) -> None:
        self._done += 1
        if self._told:
            self._told(self._done)

    def _try(self, job: Job, future: Future[Compiled], tries: int, only_codes: bool) -> None:
        """Compile a job, at most `tries` times; after a kill or a timeout it is repeated behind the others."""

        def tried(attempt: Future[Compiled]) -> None:
            try:
                future.set_result(attempt.result())
            except (ProcessExpired, TimeoutError) as error:
                if tries > 1:
                    with suppress(RuntimeError):  # the pool ends
                        return self._try(job, future, tries - 1, only_codes)
                future.set_exception(error)
            except BrokenProcessPool as error:
                # Its frames hold the job whose sending broke, and it the frames: Python 3.13 warns of that at its end.
                error.__cause__ = error.__context__ = None
                future.set_exception(error.with_traceback(None))
            except BaseException as error:
                future.set_exception(error)

        attempt = self._started().schedule(
            compile_job, args=(job, self._keep_assembly, only_codes), timeout=self._seconds
        )
        attempt.add_done_callback(tried)

    def _result(self, future: Future[Compiled]) -> Compiled:
        try:
            return future.result()
        except ProcessExpired as error:
            return Compiled(self._jobs[future], "crashed", f"the compiler's process died ({told_exit(error.exitcode)})")
        except BrokenProcessPool:
            raise NormtuneError(
                "the compiler's processes cannot start: `normtune doctor` looks for the cause"
            ) from None
        except (TimeoutError, CancelledError) as error:
            outcome = "was stopped" if isinstance(error, CancelledError) else f"took over {self._seconds:g} s"
            return Compiled(self._jobs[future], "timeout", f"compiling {outcome}")


def compile_all(
    jobs: Sequence[Job], target: str, workers: int | None = None, keep_assembly: bool = False
) -> Iterator[Compiled]:
    """Compile all jobs for `target`; yields each at its end, in any order. Arguments as in `CompilePool`."""
    pool = CompilePool(jobs, target, workers, keep_assembly)
    try:
        yield from pool
    finally:  # also if the caller stops iterating
        pool.close()


# Why a digest is empty that `codes_of` gives.
UNDIGESTED = "this Triton gives no digest of what they launch"


def codes_of(
    pairs: Iterable[tuple[Problem, AnyLaunch]], target: str, workers: int | None = None, is_compiled: bool = False
) -> dict[tuple[Problem, AnyLaunch], TimedCode]:
    """The code of each pair by Triton's frontend, if `is_compiled` its instructions too, without pairs that it refuses.

    Digests are empty where they are not known: the compiler died or took too long, or this Triton has other private
    interfaces.

    Raises:
        NormtuneError: no process of the pool can start.
    """
    pool = CompilePool(jobs_of(pairs), target, workers, only_codes=not is_compiled)
    try:
        return {pair: code for done in pool for pair, code in _codes_of(done)}
    finally:
        pool.close()


def _codes_of(done: Compiled) -> Iterable[tuple[tuple[Problem, AnyLaunch], TimedCode]]:
    """The code of a job's pairs; none if Triton refuses it, without digests if it is not known whether it would."""
    if done.status in ("ok", "compile_error"):
        return zip(done.job.serves, done.codes, strict=False)
    return ((pair, TimedCode(launch_digest(pair[1]))) for pair in done.job.serves)
