"""Compilers of a cluster: tasks of Ray on the CPUs of any node, whose binaries stay in Ray's object store.

In: calls of the compiler, as for Pebble's pool. Out: their results, and for each kernel where its files are.
"""

import pickle
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from types import ModuleType
from typing import Any, NamedTuple

from pebble import ProcessExpired

from normtune.errors import NormtuneError
from normtune.tuner.cluster import on_node
from normtune.tuner.cluster.connect import in_one_line
from normtune.tuner.cluster.node_compiler import files_of_operators
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


class TaskPool:
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
        self._ray, self._made = ray, made
        self._job = wanted, target, files_of_operators()
        self._task = ray.remote(num_cpus=1, num_returns=2, max_retries=3)(on_node.compiled)
        self._refused: set[str] = set()
        self._running: set[Any] = set()
        self._lock = Lock()
        self._is_stopped = False
        self._check_cpus()

    def schedule(
        self, function: Callable[..., Any], args: Sequence[Any] = (), timeout: float | None = None
    ) -> Future[Any]:
        """The future of a call, as `Executor.schedule`."""
        future: Future[Any] = Future()
        self._begin(future, pickle.dumps((function, args)), timeout)
        return future

    def stop(self) -> None:
        """Cancel what is not done."""
        with self._lock:
            self._is_stopped = True
            running = [*self._running]
        for report in running:
            with suppress(Exception):  # the cluster may be gone
                self._ray.cancel(report, force=True)

    def join(self) -> None:
        """Do nothing: Ray ends the processes."""

    def _check_cpus(self) -> None:
        """Raise NormtuneError if no node can compile: its tasks would wait for ever."""
        nodes = {node["NodeID"] for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}
        if not nodes - self._refused:
            reason = "have other versions than the sweep" if nodes else "are none, and kernels have to be compiled"
            raise NormtuneError(f"the nodes of the cluster with CPUs {reason}")

    def _begin(self, future: Future[Any], call: bytes, seconds: float | None) -> None:
        with self._lock:
            if self._is_stopped:
                future.cancel()
                return
            others = {"ray.io/node-id": f"!in({','.join(sorted(self._refused))})"} if self._refused else None
            report, archive = self._task.options(label_selector=others).remote(*self._job, call, seconds)
            self._running.add(report)

        def finish(done: Future[Any]) -> None:
            with self._lock:
                self._running.discard(report)
            try:
                found = done.result()
                if isinstance(found, str):  # the id of a node with other versions
                    self._refused.add(found)
                    self._check_cpus()
                    return self._begin(future, call, seconds)
                outcome, files = found
                future.set_result(self._noted(outcome, files, archive))
            except self._ray.exceptions.RayTaskError as error:
                future.set_exception(error.cause)
            except self._ray.exceptions.RayError as error:
                told = f"a task of Ray was lost: {in_one_line(error)}"
                future.set_exception(ProcessExpired(told, code=_KILLED))  # type: ignore[no-untyped-call]
            except BaseException as error:
                future.set_exception(error)

        report.future().add_done_callback(finish)

    def _noted(self, outcome: bytes, files: Mapping[str, Mapping[str, str]], archive: Any) -> Any:
        compiled = pickle.loads(outcome)
        self._made.update({kernel: Made(archive, compiled.toolchain, files[kernel]) for kernel in files})
        return compiled
