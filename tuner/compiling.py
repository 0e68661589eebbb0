"""Compiling ahead of the timing, in a pool of processes, for a GPU that need not be there.

In: (problem, launch) pairs, one a binary, and a target. Out: what the compiler reported for each, or why it failed;
the binaries themselves end up in Triton's disk cache, where the later launch of the same arguments finds them. The
workers import triton but never torch and open no CUDA context.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

from normtune.kernels.call import warmup
from normtune.kernels.operator import Launch, operator
from normtune.kernels.problem import Problem

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Job(NamedTuple):
    """One binary to compile: the problem that represents it and the launch that it serves."""

    problem: Problem
    launch: Launch


class Compiled(NamedTuple):
    """What came of one job.

    Attributes:
        job: the job.
        status: `ok`, `compile_error` or `crashed`.
        reason: the compiler's message, one line; empty for `ok`.
        shared_bytes: shared memory of the largest of the job's kernels, bytes.
        threads: threads a program, the most of them.
        binaries: names of the compiled kernels with their assembly, only when asked for.
    """

    job: Job
    status: str
    reason: str = ""
    shared_bytes: int = 0
    threads: int = 0
    binaries: tuple[tuple[str, str], ...] = ()


def compile_class(problem: Problem, launch: Launch) -> tuple[str, str, str, Launch]:
    """What one binary serves: operator, variant, dtype and the launch without grid and row count."""
    return (problem.operator, problem.variant, problem.dtype, launch.binary)


def jobs_of(pairs: Iterable[tuple[Problem, Launch]]) -> list[Job]:
    """One job a compile class, in the order of first appearance."""
    found: dict[tuple[str, str, str, Launch], Job] = {}
    for problem, launch in pairs:
        found.setdefault(compile_class(problem, launch), Job(problem, launch))
    return list(found.values())


def default_workers() -> int:
    """Processes of the pool: as many as this process may use cores."""
    return max(1, len(os.sched_getaffinity(0)))


def compile_all(
    jobs: Sequence[Job], target: str, workers: int | None = None, keep_assembly: bool = False
) -> Iterator[Compiled]:
    """Compile all jobs for `target`, yielding each as it is done, in any order.

    Args:
        jobs: one a compile class.
        target: `sm_90`, `gfx942`, ...
        workers: processes; default one a core.
        keep_assembly: whether `Compiled.binaries` is filled (PTX or AMD assembly, much text).
    """
    if not jobs:
        return
    # Spawned, because a forked child of a process with a CUDA context or threads may hang.
    context = multiprocessing.get_context("spawn")
    workers = min(workers or default_workers(), len(jobs))
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_activate, initargs=(target,))
    try:
        futures = {pool.submit(_compile, job, keep_assembly): job for job in jobs}
        for future in as_completed(futures):
            try:
                yield future.result()
            except BrokenProcessPool:
                yield Compiled(futures[future], "crashed", "the compiler's process died")
    finally:  # also where the caller stops listening: what has not begun is not compiled
        pool.shutdown(cancel_futures=True)


class _Driver:
    """As much of a Triton driver as compiling asks for."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self._target


def gpu_target(name: str) -> Any:
    """Triton's GPUTarget of `sm_90`, `gfx942`, ..."""
    from triton.backends.compiler import GPUTarget

    if name.startswith("sm_"):
        return GPUTarget("cuda", int(name.removeprefix("sm_")), 32)
    return GPUTarget("hip", name, 64)


def _activate(target: str) -> None:
    """Make `target` the active target of this process, which leaves interrupts to its parent and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":  # a parent that is killed cannot end its workers: the kernel does
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    from triton.runtime.driver import driver

    driver.set_active(_Driver(gpu_target(target)))  # type: ignore[arg-type]


class _Tensor:
    """A tensor that is only its dtype and strides, 16-byte aligned, as Triton's warm-up takes it."""

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        import triton.language as tl

        self.dtype = getattr(tl, dtype)
        self.shape = shape

    def data_ptr(self) -> int:
        return 0

    def ptr_range(self) -> int:
        return 2**40

    def stride(self, dimension: int) -> int:
        stride = 1
        for extent in self.shape[dimension + 1 :]:
            stride *= extent
        return stride


def _compile(job: Job, keep_assembly: bool) -> Compiled:
    spec = operator(job.problem.operator)
    tensors = {buffer.name: _Tensor(buffer.dtype, buffer.shape) for buffer in spec.buffers(job.problem)}
    workspace = _Tensor("float32", (max(1, job.launch.workspace),))
    try:
        kernels = warmup(spec.kernels().calls(job.launch, job.problem, tensors, workspace, 1e-6, 0.0))
    # Whatever the compiler throws is this config's result.
    except Exception as error:
        return Compiled(job, "compile_error", _one_line(error))
    metadata = [kernel.metadata for kernel in kernels]
    warp_size = metadata[0].target.warp_size
    assembly: tuple[tuple[str, str], ...] = ()
    if keep_assembly:
        kind = "ptx" if metadata[0].target.backend == "cuda" else "amdgcn"
        assembly = tuple((item.name, kernel.asm[kind]) for item, kernel in zip(metadata, kernels, strict=True))
    return Compiled(
        job,
        "ok",
        shared_bytes=max(item.shared for item in metadata),
        threads=max(item.num_warps for item in metadata) * warp_size,
        binaries=assembly,
    )


def _one_line(error: BaseException) -> str:
    """Type, first and last line of an error's text: the compiler says where in the one and why in the other."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    told = lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
    return f"{type(error).__name__}: {told}"[:200]
