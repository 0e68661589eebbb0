"""Map over items in forked processes.

Data that the function refers to, such as the measurements of a whole fleet, are neither copied nor sent; only results
are sent back. The processes end with their parent. (Processes of `concurrent.futures` outlive a killed parent, and at
Ctrl-C they finish their item and print a traceback.)
"""

import gc
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# With more than two, 2 GB would hold less than a million measurements, because pages are copied on access.
MOST_PROCESSES = 2
# From this many measurements on, operators are fitted in separate processes, which cost a quarter of a second.
_MANY = 50_000


def processes_for(measurements: int) -> int:
    """Number of processes for so many measurements."""
    return MOST_PROCESSES if measurements >= _MANY else 1


def in_order(
    function: Callable[[Item], Result], items: Sequence[Item], processes: int = MOST_PROCESSES
) -> Iterator[Result]:
    """The results in the order of the items, as from a loop.

    Args:
        function: of one item; its side effects are lost, its results must be picklable.
        items: each of n processes takes every n-th of them.
        processes: the most processes; with one, or on a system without fork, this process does the work.

    Raises:
        Exception: the function's exception for the first item that failed.
    """
    count = min(processes, len(items), len(os.sched_getaffinity(0))) if sys.platform == "linux" else 1
    if count < 2:
        yield from map(function, items)
        return
    context = multiprocessing.get_context("fork")
    children, pipes = [], []
    # A collection in a child would touch, and so copy, every page that it shares with this process.
    gc.freeze()
    try:
        for first in range(count):
            receiver, sender = context.Pipe(duplex=False)
            pipes.append(receiver)
            child = context.Process(target=_work, args=(function, items[first::count], sender, pipes), daemon=True)
            child.start()
            sender.close()
            children.append(child)
        for index, item in enumerate(items):
            try:
                failed, result = pipes[index % count].recv()
            except EOFError:
                # The child was killed, perhaps for lack of memory: continue in this process alone.
                failed, result = False, function(item)
            if failed:
                raise result
            yield result
    finally:
        gc.unfreeze()
        for child in children:
            child.kill()
        for child, pipe in zip(children, pipes, strict=True):
            child.join()
            pipe.close()


def _work(function: Callable[[Any], Any], items: Sequence[Any], pipe: Connection, others: Sequence[Connection]) -> None:
    """Run a child: send (False, result) of each item until one fails, then (True, error)."""
    for other in others:
        other.close()  # an open copy would keep the pipe alive after the parent's end
    try:
        for item in items:
            pipe.send((False, function(item)))
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)
    except Exception as error:
        pipe.send((True, error))
