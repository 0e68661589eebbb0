"""Capture of a CUDA graph. `torch.cuda.graph` empties the allocator's cache each time; this does not.

In: work to be captured. Out: a graph. Only implementations that are not normtune's allocate inside the work; all graphs
take this memory from one pool, or each would hold its own until the cache is emptied.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch


@cache
def _pool() -> Any:
    return torch.cuda.graph_pool_handle()


def capture(stream: torch.cuda.Stream, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Graph of the work that `work` enqueues. `stream` is the current stream meanwhile."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=_pool(), capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph
