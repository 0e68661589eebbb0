"""Map over items in forked processes, on all cores that this process may use; or by another map, as on a cluster.

Data that the function refers to, such as the measurements of a whole fleet, are neither copied nor sent; only results
are sent back. Maps may be nested (operators, their folds): each takes the cores that are free when it begins. The
processes end with their parent. (Processes of `concurrent.futures` outlive a killed parent, and at Ctrl-C they finish
their item and print a traceback.)
"""

import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Semaphore
from typing import Any, TypeAlias, TypeVar, cast

from normtune.results.parallel.processes import belong_to_parent, cores

Item = TypeVar("Item")
Result = TypeVar("Result")

# Processes are not worth their start for less.
LEAST_SECONDS = 0.2
# Maps of functions over items that take about some seconds, in order.
Map: TypeAlias = Callable[[Callable[[Any], Any], Sequence[Any], float], Iterator[Any]]
# Counts the free cores; None in a process that is in no map.
_FREE: ContextVar[Semaphore | None] = ContextVar("free", default=None)
_MAP: ContextVar[Map | None] = ContextVar("map", default=None)


@contextmanager
def mapped_by(other: Map) -> Iterator[None]:
    """Let `in_order` use another map in this block, instead of processes of this machine."""
    token = _MAP.set(other)
    try:
        yield
    finally:
        _MAP.reset(token)


def in_order(function: Callable[[Item], Result], items: Sequence[Item], seconds: float) -> Iterator[Result]:
    """The results in the order of the items, as from a loop.

    Args:
        function: of one item; its side effects are lost, its results must be picklable.
        items: each of n processes takes every n-th of them.
        seconds: about how long all items take on one core; brief ones stay in this process.

    Raises:
        Exception: the function's exception for the first item that failed.
    """
    if seconds < LEAST_SECONDS or len(items) < 2:
        return map(function, items)
    return (_MAP.get() or _in_processes)(function, items, seconds)


def _in_processes(function: Callable[[Any], Any], items: Sequence[Any], _: float) -> Iterator[Any]:
    context, free, count = multiprocessing.get_context("fork"), _FREE.get(), 1
    is_nested = free is not None
    free = free or context.Semaphore(cores() - 1)
    while count < len(items) and free.acquire(block=False):
        count += 1
    if count == 1:
        yield from map(function, items)
        return
    # The last child has the core of this process, which waits; the others give theirs back when they end.
    extra_cores = context.Semaphore(count - 1)
    children, pipes = [], []
    if not is_nested:
        # A collection in a child would touch, and so copy, every page that it shares with this process.
        gc.freeze()
    try:
        # Interrupts are for the parent; one that arrived before a child is known here would leave it behind.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            for first in range(count):
                receiver, sender = context.Pipe(duplex=False)
                work = function, items[first::count], sender, free, extra_cores
                child = context.Process(target=_work, args=work)
                child.start()
                sender.close()
                children.append(child)
                pipes.append(receiver)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # A child whose large result nobody takes would wait, with its core.
        results: list[deque[tuple[bool, Any]]] = [deque() for _ in pipes]
        waiting = dict(zip(pipes, results, strict=True))
        for index, item in enumerate(items):
            pipe, queue = pipes[index % count], results[index % count]
            while not queue and pipe in waiting:
                for ready in cast("list[Connection]", wait([*waiting])):
                    try:
                        waiting[ready].append(ready.recv())
                    except EOFError:
                        del waiting[ready]
            # Without a result the child was killed, perhaps for lack of memory: continue in this process alone.
            failed, result = queue.popleft() if queue else (False, function(item))
            if failed:
                raise result
            yield result
    finally:
        if not is_nested:
            gc.unfreeze()
        for child in children:
            child.kill()
        for child, pipe in zip(children, pipes, strict=True):
            child.join()
            pipe.close()
        while extra_cores.acquire(block=False):
            free.release()


def _work(
    function: Callable[[Any], Any], items: Sequence[Any], pipe: Connection, free: Semaphore, extra_cores: Semaphore
) -> None:
    """Run a child: send (False, result) of each item until one fails, then (True, error); give back a core."""
    belong_to_parent()
    _FREE.set(free)
    try:
        for item in items:
            pipe.send((False, function(item)))
    except Exception as error:
        with suppress(BrokenPipeError):
            pipe.send((True, error))
    except BaseException:
        os._exit(1)
    if extra_cores.acquire(block=False):
        free.release()
