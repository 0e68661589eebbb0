"""Tasks of Ray on the CPUs of any node of a cluster that has the versions of this process."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from types import ModuleType
from typing import Any

from normtune.errors import NormtuneError
from normtune.results.parallel import on_node
from normtune.results.parallel.connect import in_one_line

_POLL_SECONDS = 0.01
_RECHECK_SECONDS = 10.0


class TaskPool:
    """Calls one function on the nodes; nodes with other versions get no second call.

    Args:
        ray: connected.
        versions: versions that a node must have, as `on_node.facts`.
        function: which importable function, as `on_node.run`; its second result stays in Ray's object store.
        first: its first arguments in every call.
        lost: the error for a task that Ray lost, of its reason.

    Raises:
        NormtuneError: the cluster has no CPUs.
    """

    def __init__(
        self,
        ray: ModuleType,
        versions: Mapping[str, str],
        function: Callable[..., tuple[Any, Any]],
        first: tuple[Any, ...],
        lost: Callable[[str], Exception] = NormtuneError,
    ) -> None:
        self._ray, self._lost = ray, lost
        self._first = versions, f"{function.__module__}.{function.__name__}", *first
        ray.cloudpickle.register_pickle_by_value(on_node)
        self._task = ray.remote(num_cpus=1, num_returns=2, max_retries=3)(on_node.run)
        self._refused: set[str] = set()
        self._running: set[Any] = set()
        self._lock = Lock()
        self._is_stopped = False
        self._check_cpus()

    def begin(self, *arguments: Any) -> Future[Any]:
        """The future of a call with these as its last arguments."""
        future: Future[Any] = Future()
        self._begin(future, arguments)
        return future

    def result(self, future: Future[Any]) -> Any:
        """The result of a call, to wait for in a task: Ray gives its CPU to others meanwhile.

        Raises:
            NormtuneError: no node is left that can take it.
            Exception: the error of the call.
        """
        while not future.done():
            with self._lock:
                running = [*self._running]
            if not running:  # it is being noted
                time.sleep(_POLL_SECONDS)
            elif not self._ray.wait(running, timeout=_RECHECK_SECONDS)[0]:
                self._check_cpus()  # the last node that may take it may be gone
        return future.result()

    def stop(self) -> None:
        """Cancel what is not done."""
        with self._lock:
            self._is_stopped = True
            running = [*self._running]
        for result in running:
            with suppress(Exception):  # the cluster may be gone
                self._ray.cancel(result, force=True)

    def _check_cpus(self) -> None:
        """Raise NormtuneError if no node can take a task, which would wait for ever."""
        nodes = {node["NodeID"] for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}
        if not nodes - self._refused:
            reason = "have other versions than this command" if nodes else "are none, and it needs some"
            raise NormtuneError(f"the nodes of the cluster with CPUs {reason}")

    def _noted(self, result: Any, stored: Any) -> Any:
        """The result of a future, of a call's first result and Ray's object of the second."""
        return result

    def _begin(self, future: Future[Any], arguments: tuple[Any, ...]) -> None:
        with self._lock:
            if self._is_stopped:
                future.cancel()
                return
            others = {"ray.io/node-id": f"!in({','.join(sorted(self._refused))})"} if self._refused else None
            result, stored = self._task.options(label_selector=others).remote(*self._first, *arguments)
            self._running.add(result)

        def finish(done: Future[Any]) -> None:
            with self._lock:
                self._running.discard(result)
            try:
                answer = done.result()
                if isinstance(answer, str):  # the id of a node with other versions
                    self._refused.add(answer)
                    self._check_cpus()
                    return self._begin(future, arguments)
                future.set_result(self._noted(answer, stored))
            except self._ray.exceptions.RayTaskError as error:
                future.set_exception(error.cause)
            except self._ray.exceptions.RayError as error:
                future.set_exception(self._lost(f"a task of Ray was lost: {in_one_line(error)}"))
            except BaseException as error:
                future.set_exception(error)

        result.future().add_done_callback(finish)
