"""Compilers of a cluster: tasks of Ray on the CPUs of any node, whose binaries stay in Ray's object store.

In: calls of the compiler, as for Pebble's pool. Out: their results, and for each kernel where its files are.
"""

import pickle
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from pebble import ProcessExpired

from normtune.results.parallel.operator_files import files_of_operators
from normtune.results.parallel.tasks import TaskPool
from normtune.tuner.cluster.node_compiler import Report, compiled
from normtune.tuner.compiling.binary_list import Toolchain

# Exit code of a process that Ray lost, as if it were killed.
_KILLED = -9


class Made(NamedTuple):
    """A kernel that was compiled on some node.

    Attributes:
        archive: Ray's object with its files, a `node_compiler.Archive`.
        toolchain: of that node.
        files: SHA-256 of each file.
    """

    archive: Any
    toolchain: Toolchain
    files: Mapping[str, str]


class CompilerTasks(TaskPool):
    """Compilers for one target; a `pool.Executor`.

    Args:
        ray: connected.
        target: architecture.
        wanted: versions that a node must have, as `on_node.facts`.
        made: receives what is compiled, by Triton's name of the kernel.

    Raises:
        NormtuneError: the cluster has no CPUs.
    """

    def __init__(
        self, ray: ModuleType, target: str, wanted: Mapping[str, str], made: MutableMapping[str, Made]
    ) -> None:
        lost = partial(ProcessExpired, code=_KILLED)
        super().__init__(ray, wanted, compiled, (target, files_of_operators()), lost)
        self._made = made

    def schedule(
        self, function: Callable[..., Any], args: Sequence[Any] = (), timeout: float | None = None
    ) -> Future[Any]:
        """The future of a call, as `Executor.schedule`."""
        return self.begin(pickle.dumps((function, args)), timeout)

    def join(self) -> None:
        """Do nothing: Ray ends the processes."""

    def _noted(self, result: Report, kept: Any) -> Any:
        pickled, files = result
        outcome = pickle.loads(pickled)
        self._made.update({kernel: Made(kept, outcome.toolchain, files[kernel]) for kernel in files})
        return outcome
