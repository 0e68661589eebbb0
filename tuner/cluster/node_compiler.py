"""Compiles jobs on a node of a cluster, in a process beside that of Ray's task, and reads the files of the binaries.

In: a call of the compiler. Out: its result, and the files of each kernel. Calls and results are pickled, since Ray's
process does not know the operators of files.
"""

import atexit
import os
import pickle
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeAlias

from normtune.results.parallel.operator_files import Files, unpacked
from normtune.tuner.compiling.kernel_cache import FOLDER, Folder, kernel_files
from normtune.tuner.compiling.pool import BESIDE_A_GPU, Executor, processes

# Contents of the files of each kernel.
Archive: TypeAlias = Mapping[str, Mapping[str, bytes]]


@cache
def _pool(target: str, files: Files) -> Executor:
    """One process that compiles for a target into a folder of its own."""
    scratch, paths = unpacked(files)
    atexit.register(scratch.remove)
    folder = Path(scratch.path, "binaries")
    folder.mkdir()
    return processes(1, target, BESIDE_A_GPU, scratch.path, paths, Folder(str(folder), fills=True))


def compiled(target: str, files: Files, call: bytes, seconds: float | None) -> tuple[bytes, Archive]:
    """Call the compiler.

    Args:
        target: architecture.
        files: define operators.
        call: `compiler.compile_job` and its arguments, pickled.
        seconds: limit of the call.

    Raises:
        Exception: as `Executor.schedule`.
    """
    result: tuple[bytes, Archive] = _pool(target, files).schedule(_called, args=(call,), timeout=seconds).result()
    return result


def _called(call: bytes) -> tuple[bytes, Archive]:
    function, arguments = pickle.loads(call)
    outcome = function(*arguments)
    folder = Path(os.environ[FOLDER])
    files = {kernel: kernel_files(folder / kernel) for kernel in outcome.kernels}
    archive = {kernel: {name: file.read_bytes() for name, file in each.items()} for kernel, each in files.items()}
    return pickle.dumps(outcome), archive
