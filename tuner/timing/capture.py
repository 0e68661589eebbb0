"""CUDA graphs without what `torch.cuda.graph` does around a capture: it empties the allocator's cache, each time.

In: work to be captured. Out: a graph. Only the outputs of functions that are not ours are allocated by the work: all
graphs take such memory from one pool, or else each would hold its own until the cache is emptied.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


@cache
def _pool() -> Any:
    return torch.cuda.graph_pool_handle()


def capture(stream: torch.cuda.Stream, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """The graph of what `work` enqueues on the current stream, which is `stream` for its time."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=_pool(), capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph
