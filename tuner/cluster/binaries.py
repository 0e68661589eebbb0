"""Compilers of a cluster: tasks of Ray on the CPUs of any node, whose binaries stay in Ray's object store.

In: calls of the compiler, as for Pebble's pool. Out: their results, and for each kernel where its files are.
"""

import pickle
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import ModuleType
from typing import Any

from pebble import ProcessExpired

from normtune.results.parallel.operator_files import files_of_operators
from normtune.results.parallel.tasks import TaskPool
from normtune.tuner.cluster.node_compiler import compiled

# Exit code of a process that Ray lost, as if it were killed.
_KILLED = -9


class CompilerTasks(TaskPool):
    """Compilers for one target; a `pool.Executor`.

    Args:
        ray: connected.
        target: architecture.
        versions: versions that a node must have, as `on_node.facts`.
        archives: receives Ray's objects with the files, each a `node_compiler.Archive`, by Triton's name of the kernel.

    Raises:
        NormtuneError: the cluster has no CPUs.
    """

    def __init__(
        self, ray: ModuleType, target: str, versions: Mapping[str, str], archives: MutableMapping[str, Any]
    ) -> None:
        lost = partial(ProcessExpired, code=_KILLED)
        super().__init__(ray, versions, compiled, (target, files_of_operators()), lost)
        self._archives = archives

    def schedule(
        self, function: Callable[..., Any], args: Sequence[Any] = (), timeout: float | None = None
    ) -> Future[Any]:
        """The future of a call, as `Executor.schedule`."""
        return self.begin(pickle.dumps((function, args)), timeout)

    def join(self) -> None:
        """Do nothing: Ray ends the processes."""

    def _noted(self, result: bytes, stored: Any) -> Any:
        outcome = pickle.loads(result)
        self._archives.update(dict.fromkeys(outcome.kernels, stored))
        return outcome
