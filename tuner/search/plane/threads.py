"""The threads that choose configs: predictions run side by side, and what depends on their order one after another.

numpy lets other threads run during its large operations. More threads than `MOST` wait for Python most of the time.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

MOST = 4

_Result = TypeVar("_Result")


class Threads:
    """Begins calls in the order in which they are given."""

    def __init__(self) -> None:
        self._several = ThreadPoolExecutor(min(MOST, os.cpu_count() or 1))
        self._one = ThreadPoolExecutor(1)

    def submit(self, call: Callable[..., _Result], *arguments: Any) -> Future[_Result]:
        """Call a function beside others. It may wait for one that was given before."""

        def on_one_thread() -> _Result:
            with _BLAS:
                return call(*arguments)

        return self._several.submit(on_one_thread)

    def in_order(self, call: Callable[..., _Result], *arguments: Any) -> Future[_Result]:
        """Call a function when those that were given to this method before have returned."""
        return self._one.submit(call, *arguments)


class _OneThreadOfBlas:
    """Keeps BLAS to one thread as long as any thread is inside: other cores are compiling."""

    def __init__(self) -> None:
        self._lock, self._inside = Lock(), 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._limits = _libraries().limit(limits=1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limits.restore_original_limits()


_BLAS = _OneThreadOfBlas()


@cache
def _libraries() -> ThreadpoolController:
    """The loaded BLAS; searching for it takes longer than a choice."""
    return ThreadpoolController()
