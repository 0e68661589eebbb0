"""Compiles jobs on a node of a cluster, in a process beside that of Ray's task, and reads the files of the binaries.

In: a call of the compiler. Out: its report, and the files of each kernel with their digests. Calls and reports are
pickled, since Ray's process does not know the operators of files.
"""

import atexit
import pickle
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pebble import ProcessExpired

from normtune.tuner.compiling.binary_cache import Folder
from normtune.tuner.compiling.binary_list import digests
from normtune.tuner.compiling.pool import BESIDE_A_GPU, Executor, processes
from normtune.tuner.machine.processes import Scratch

# Contents of the files of each kernel.
Archive = Mapping[str, Mapping[str, bytes]]
# Python files that register operators: path and content.
Files = tuple[tuple[str, bytes], ...]


class Report(NamedTuple):
    """A report that comes back from a node.

    Attributes:
        outcome: a pickled `Compiled`, or the error of the compiler's process.
        digests: SHA-256 of the files of each kernel.
    """

    outcome: bytes | Exception
    digests: Mapping[str, Mapping[str, str]]


def written(folder: str, files: Files) -> list[str]:
    """Write Python files, each into a folder of its own; returns their paths."""
    paths = []
    for number, (name, content) in enumerate(files):
        path = Path(folder, f"operators-{number}", Path(name).name)
        path.parent.mkdir()
        path.write_bytes(content)
        paths.append(str(path))
    return paths


@cache
def _pool(target: str, files: Files) -> tuple[Executor, Path]:
    """One process that compiles for a target, and the folder of its binaries."""
    import ray

    scratch = Scratch(ray._private.worker.global_worker.node.get_session_dir_path())
    atexit.register(scratch.remove)
    folder = Path(scratch.path, "binaries")
    folder.mkdir()
    loaded = written(scratch.path, files)
    return processes(1, target, BESIDE_A_GPU, scratch.path, loaded, Folder(str(folder), fills=True)), folder


def compiled(target: str, files: Files, call: bytes, seconds: float | None) -> tuple[Report, Archive]:
    """Call the compiler.

    Args:
        target: architecture.
        files: define operators.
        call: `compiler.compile_job` and its arguments, pickled.
        seconds: limit of the call.
    """
    pool, folder = _pool(target, files)
    try:
        outcome, kernels = pool.schedule(_called, args=(call,), timeout=seconds).result()
    except ProcessExpired as error:
        return Report(ProcessExpired(str(error), error.exitcode), {}), {}  # type: ignore[no-untyped-call]
    # As a value: Ray would repeat the task on some errors, and wrap the others.
    except Exception as error:
        return Report(error, {}), {}
    found = {kernel: digests(folder / kernel) for kernel in kernels}
    contents = {kernel: {name: (folder / kernel / name).read_bytes() for name in found[kernel]} for kernel in kernels}
    return Report(outcome, found), contents


def _called(call: bytes) -> tuple[bytes, tuple[str, ...]]:
    function, arguments = pickle.loads(call)
    outcome: Any = function(*arguments)
    return pickle.dumps(outcome), outcome.kernels
