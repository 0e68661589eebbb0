"""Compilers of a cluster: tasks of Ray on the CPUs of any node, whose binaries stay in Ray's object store.

In: calls of the compiler, as for Pebble's pool. Out: their reports; for each kernel the object with its files, and the
toolchain and digests of those who made it.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

from pebble import ProcessExpired

from normtune.errors import NormtuneError
from normtune.kernels.load_file import loaded
from normtune.tuner.cluster import on_node
from normtune.tuner.compiling.binary_list import Toolchain

# A task on a node with other versions goes to another one, at most so often.
_NODES = 100
# Exit code of a process that Ray lost, as if it were killed.
_KILLED = -9


class Made:
    """The kernels that were compiled anywhere.

    Attributes:
        objects: Ray's object with the files of a kernel.
        digests: toolchain, and SHA-256 of each file.
    """

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.digests: dict[str, tuple[Toolchain, Mapping[str, str]]] = {}


class TaskPool:
    """Compilers for one target; a `pool.Executor`.

    Args:
        ray: connected.
        target: architecture.
        wanted: versions that a node must have, as `on_node.facts`.
        made: notes what is compiled.
    """

    def __init__(self, ray: ModuleType, target: str, wanted: Mapping[str, str], made: Made) -> None:
        self._ray, self._target, self._wanted, self._made = ray, target, wanted, made
        self._files = tuple((path, Path(path).read_bytes()) for path in loaded())
        self._task = ray.remote(num_cpus=1, num_returns=2, max_retries=3)(on_node.compiled)
        self._refused: set[str] = set()
        self._running: set[Any] = set()
        self._lock = Lock()
        self._is_stopped = False

    def schedule(
        self, function: Callable[..., Any], args: Sequence[Any] = (), timeout: float | None = None
    ) -> Future[Any]:
        """The future of a call, as `Executor.schedule`."""
        future: Future[Any] = Future()
        self._begin(future, pickle.dumps((function, args)), timeout, _NODES)
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

    def _begin(self, future: Future[Any], call: bytes, seconds: float | None, nodes: int) -> None:
        others = {"label_selector": {"ray.io/node-id": f"!in({','.join(sorted(self._refused))})"}}
        with self._lock:
            if self._is_stopped:
                future.cancel()
                return
            task = self._task.options(**(others if self._refused else {}))
            report, archive = task.remote(self._wanted, self._target, self._files, call, seconds)
            self._running.add(report)

        def finish(done: Future[Any]) -> None:
            with self._lock:
                self._running.discard(report)
            try:
                found = done.result()
                if isinstance(found, str):  # the id of a node with other versions
                    self._refused.add(found)
                    if nodes:
                        return self._begin(future, call, seconds, nodes - 1)
                    raise NormtuneError("the nodes of the cluster with CPUs have other versions than the sweep")
                future.set_result(self._noted(found, archive))
            except self._ray.exceptions.RayError as error:
                told = f"a task of Ray was lost: {error}".splitlines()[0]
                future.set_exception(ProcessExpired(told, code=_KILLED))  # type: ignore[no-untyped-call]
            except BaseException as error:
                future.set_exception(error)

        report.future().add_done_callback(finish)

    def _noted(self, report: Any, archive: Any) -> Any:
        if isinstance(report.outcome, Exception):
            raise report.outcome
        outcome = pickle.loads(report.outcome)
        for kernel, digests in report.digests.items():
            self._made.objects[kernel] = archive
            self._made.digests[kernel] = outcome.toolchain, digests
        return outcome
