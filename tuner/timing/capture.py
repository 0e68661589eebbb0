"""Capture of a CUDA graph. `torch.cuda.graph` empties the allocator's cache each time; this does not.

In: work to be captured. Out: a graph. Only implementations that are not normtune's allocate inside the work; all graphs
take this memory from one pool, or each would hold its own until the cache is emptied.
"""

from collections.abc import Callable
from functools import cache

import torch


@cache
def _keeper(device: torch.device) -> torch.cuda.CUDAGraph:
    """The graph that holds the pool of a device: torch takes no pool again whose graphs are all gone."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        torch.zeros(1, device=device)
    finally:
        graph.capture_end()
    return graph


def capture(stream: torch.cuda.Stream, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Graph of the work that `work` enqueues. `stream` is the current stream meanwhile."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=_keeper(stream.device).pool(), capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph
