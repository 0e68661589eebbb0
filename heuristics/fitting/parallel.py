"""The same work for many items, in processes of its own where that pays.

In: a function and items. Out: its results in the order of the items, as if they were made one after another. The
processes are forked, so that what the function refers to, such as the measurements of a whole fleet, is neither copied
nor sent; what it returns is sent back. They end with the process that began them.
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

# More than two would have 2 GB hold less than a million measurements, as what is read is copied page by page.
MOST_PROCESSES = 2
# Measurements from which on operators are fitted in processes of their own, which cost a quarter of a second.
_MANY = 50_000


def processes_for(measurements: int) -> int:
    """How many processes are worth their start to fit so many measurements."""
    return MOST_PROCESSES if measurements >= _MANY else 1


def in_order(
    function: Callable[[Item], Result], items: Sequence[Item], processes: int = MOST_PROCESSES
) -> Iterator[Result]:
    """The results, one after another.

    Args:
        function: of one item; what it changes elsewhere is lost. Its results can be pickled.
        items: each process takes every so many-th of them.
        processes: at most; one, or a system without fork, does the work in this process.

    Raises:
        Exception: what the function raised, for the first item for which it did.
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
            ours, theirs = context.Pipe(duplex=False)
            pipes.append(ours)
            child = context.Process(target=_work, args=(function, items[first::count], theirs, pipes), daemon=True)
            child.start()
            theirs.close()
            children.append(child)
        for place, item in enumerate(items):
            try:
                failed, result = pipes[place % count].recv()
            except EOFError:
                # Killed, for want of memory perhaps: here there is more of it than in a child.
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
    """A child: sends (False, result) of each item until one fails, of which it sends (True, error)."""
    for other in others:
        other.close()  # else the end of this process's parent would not break its pipe
    try:
        for item in items:
            pipe.send((False, function(item)))
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(1)
    except Exception as error:
        pipe.send((True, error))
