"""Compiles one job, in a process of the pool that has triton, no torch and no CUDA context.

In: a `Job`, and the target of the process. Out: `Compiled`, with the compiler's report or the reason of its failure,
and digests of the code. `pool` runs the jobs.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from normtune.errors import NormtuneError
from normtune.kernels.call import AnyLaunch, ImplementationLaunch, KernelCall, warmup
from normtune.kernels.fake_tensor import FakeTensor
from normtune.kernels.load_file import load
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.spec_faults import OperatorError
from normtune.kernels.target import Target
from normtune.results.parallel.processes import belong_to_parent
from normtune.results.records import TimedCode, launch_digest
from normtune.tuner.compiling.kernel_cache import Folder, is_whole, key_of
from normtune.tuner.compiling.resources import Resources, resources_of
from normtune.tuner.machine.processes import use_scratch
from normtune.tuner.plan.binaries import Job
from normtune.tuner.staleness.code import REFUSED, Assembler, MisfitError, digest_of_compiled, digest_of_launch

# State of this process of the pool: digests of assembly, and Triton's hashes of the kernels that it compiled.
_ASSEMBLER = Assembler()
_COMPILED: set[str] = set()
# Arithmetic in TTIR; a conversion from fp64 is none.
_IN_FP64 = re.compile(r"= (?:arith\.(?!truncf|constant)|math\.|tt\.extern_elementwise)[^\n]*f64")


class Compiled(NamedTuple):
    """Result of one job.

    Attributes:
        job: the job.
        status: `ok`, `compile_error`, `timeout` or `crashed`.
        reason: the compiler's message, one line; empty for `ok`.
        shared_bytes: shared memory of the largest of the job's kernels, bytes.
        threads: most threads per program among the job's kernels.
        binaries: names of the compiled kernels with their assembly; only on request.
        resources: of these kernels; only on the same request.
        promoted: these kernels, arguments and effects (`_promoted`); only on the same request.
        codes: code of each (problem, launch) pair that the job serves.
        kernels: Triton's names of all kernels of these pairs, if they were compiled.
        new_kernels: those kernels that were in no cache.
        undigested: why the code of a compiled binary has no digest; empty if there is a digest.
    """

    job: Job
    status: str
    reason: str = ""
    shared_bytes: int = 0
    threads: int = 0
    binaries: tuple[tuple[str, str], ...] = ()
    resources: tuple[Resources, ...] = ()
    promoted: tuple[tuple[str, str, str], ...] = ()
    codes: tuple[TimedCode, ...] = ()
    kernels: tuple[str, ...] = ()
    new_kernels: tuple[str, ...] = ()
    undigested: str = ""

    def on(self, target: Target) -> tuple[str, str]:
        """Status and reason on a GPU with these limits: the compiler takes more shared memory than there is."""
        if self.status == "ok" and self.shared_bytes > target.shared_bytes:
            return "out_of_resources", f"{self.shared_bytes} bytes of shared memory exceed {target.shared_bytes}"
        return self.status, self.reason


def activate(target: str, nice: int, scratch: str, files: Sequence[str] = (), folder: Folder | None = None) -> None:
    """Prepare this process: compile for `target`, with a priority lowered by `nice`.

    Temporary files go to the folder `scratch`, because Triton does not remove the assembler's input if a compile is
    killed. Binaries come from or go to `folder`; None for Triton's own cache. `files` define operators.
    """
    belong_to_parent()
    sys.stdout = sys.stderr  # on which libraries may print
    use_scratch(scratch)
    os.nice(nice)
    if folder:
        folder.enter()
    from normtune.kernels.calling.triton_inside import compile_for, do_without_torch

    for file in files:  # before the target is set: a library that queries the target when imported then gets its GPU's
        load(file)
    compile_for(target, _note_compilation)
    do_without_torch()


def _calls(problem: Problem, launch: AnyLaunch) -> Sequence[KernelCall]:
    spec = operator(problem.operator)
    tensors = {buffer.name: FakeTensor(buffer.dtype, buffer.shape) for buffer in spec.buffers(problem)}
    workspace = FakeTensor("float32", (max(1, launch.workspace),))
    return spec.calls(launch, problem, tensors, workspace, spec.scalars)


def compile_job(job: Job, keep_assembly: bool, only_codes: bool = False) -> Compiled:
    """Compile a job, or only digest its code; a failure of the compiler is a result. Arguments as in `CompilePool`.

    Raises:
        OperatorError: the operator's calls cannot be built, or do not fit its kernels.
        NormtuneError: this machine cannot compile at all, a binary in Triton's cache is damaged, or the output of this
            Triton cannot be read.
    """
    if isinstance(job.launch, ImplementationLaunch):
        return Compiled(job, "ok")  # another library compiles its implementation itself
    groups = [_calls(*pair) for pair in ((job.problem, job.launch), *job.serves)]
    if only_codes and (digests := _digests(job, groups)):
        return Compiled(job, "ok", codes=_codes(job, groups, digests))
    try:
        # Launches of a job may differ in the kernel that sums partial sums; equal kernels cost no second compile.
        compiled = [warmup(calls) for calls in groups]
    except OSError as error:
        raise NormtuneError(
            f"no kernel can be compiled ({_one_line(error)}): `normtune doctor` looks for the cause"
        ) from error
    # Any other exception is the compiler's verdict on this config.
    except Exception as error:
        _digests(job, groups)  # raises if the calls are wrong, not the config
        refused = tuple(TimedCode(launch_digest(launch), REFUSED) for _, launch in job.serves)
        return Compiled(job, "compile_error", _one_line(error), codes=refused)
    try:
        return _described(job, groups, compiled, keep_assembly)
    except (NormtuneError, OSError):
        raise
    except Exception as error:
        raise NormtuneError(
            f"normtune cannot read the output of this version of Triton ({_one_line(error)}): install the version that "
            "constraints.txt names"
        ) from error


def _digests(job: Job, groups: Sequence[Sequence[KernelCall]]) -> list[list[bytes]]:
    """Digests of the assembly of calls, made without binaries.

    Empty if Triton refuses a kernel or has other private interfaces: compiling the binaries shows which.

    Raises:
        OperatorError: a call does not fit its kernel.
    """
    try:
        return [[_ASSEMBLER.of_call(call) for call in calls] for calls in groups]
    except MisfitError as error:
        raise OperatorError(f"operator {job.problem.operator!r}: {error}, for {job.problem}") from error
    except Exception:
        return []


def _codes(
    job: Job, groups: Sequence[Sequence[KernelCall]], digests: Sequence[Sequence[bytes]]
) -> tuple[TimedCode, ...]:
    """The code of each pair that a job serves; `groups` and `digests` have the calls of its launch before theirs."""
    return tuple(
        TimedCode(launch_digest(launch), digest_of_launch(calls, of_calls) if all(of_calls) else b"")
        for (_, launch), calls, of_calls in zip(job.serves, groups[1:], digests[1:], strict=True)
    )


def _described(
    job: Job, groups: Sequence[Sequence[KernelCall]], compiled: Sequence[Sequence[Any]], keep_assembly: bool
) -> Compiled:
    """The report on a job, from the calls and kernels of its launch and of each pair that it serves."""
    codes = _codes(job, groups, [[*map(digest_of_compiled, kernels)] for kernels in compiled])
    kernels = compiled[0]
    metadata = [kernel.metadata for kernel in kernels]
    warp_size = metadata[0].target.warp_size
    text, binary = ("ptx", "cubin") if metadata[0].target.backend == "cuda" else ("amdgcn", "hsaco")
    binaries = {kernel.hash: kernel.asm[binary] for group in compiled for kernel in group}
    if damaged := [name for name, content in binaries.items() if not is_whole(content)]:
        from triton import knobs

        folders = " ".join(os.path.join(knobs.cache.dir, key_of(name)) for name in damaged)
        raise NormtuneError(f"Triton's cache has a damaged binary: delete {folders}, and it is compiled again")
    assembly = zip((item.name for item in metadata), (kernel.asm[text] for kernel in kernels), strict=True)
    return Compiled(
        job,
        "ok",
        shared_bytes=max(item.shared for item in metadata),
        threads=max(item.num_warps for item in metadata) * warp_size,
        binaries=tuple(assembly) if keep_assembly else (),
        resources=tuple(map(resources_of, kernels)) if keep_assembly else (),
        promoted=tuple(one for kernel in kernels for one in _promoted(kernel)) if keep_assembly else (),
        codes=codes,
        undigested="" if all(code.assembly for code in codes) else "Triton's cache has binaries without assembly",
        kernels=tuple(sorted(map(key_of, binaries))),
        new_kernels=tuple(sorted(map(key_of, binaries.keys() & _COMPILED))),
    )


def _promoted(kernel: Any) -> Iterator[tuple[str, str, str]]:
    """Name of a compiled kernel, a float argument, and what the kernel does if that is fp64 instead of fp32.

    Only arguments with which it computes in fp64, or does not compile: those that it casts at first are left out.
    """
    from triton.compiler import CompilationError

    from normtune.kernels.calling.triton_inside import code_with_fp64, float_arguments

    for argument in float_arguments(kernel):
        try:
            with stderr_discarded():
                code = code_with_fp64(kernel, argument)
        # Triton raises RuntimeError, and prints the whole module, where only its verifier finds the types unequal.
        except (CompilationError, RuntimeError):
            yield kernel.metadata.name, argument, "does not compile"
        else:
            if len(_IN_FP64.findall(code)) > len(_IN_FP64.findall(kernel.asm["ttir"])):
                yield kernel.metadata.name, argument, "computes in fp64"


@contextmanager
def stderr_discarded() -> Iterator[None]:
    """Inside of a `with`, what this process and its new children write to stderr is lost, MLIR's messages included."""
    errors = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(errors, 2)
        os.close(errors)


def _one_line(error: BaseException) -> str:
    """Type, first line (the position in the kernel) and last line (the reason) of a compiler's error."""
    # An error inside a function that a kernel calls is wrapped in an error for the call, which lacks the reason.
    while error.__cause__ is not None and type(error.__cause__) is type(error):
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    text = lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
    return f"{type(error).__name__}: {text}"[:200]


def _note_compilation(*, metadata: Mapping[str, Any], cache_hit: bool, **_: Any) -> None:
    if not cache_hit:
        _COMPILED.add(metadata["hash"])
