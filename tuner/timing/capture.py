"""Capture of a CUDA graph that, unlike `torch.cuda.graph`, does not empty the allocator's cache each time.

In: work to be captured. Out: a graph. Only implementations of other libraries allocate memory inside the work. All
graphs take it from one pool: otherwise each would keep a pool of its own until the cache is emptied.
"""

from collections.abc import Callable
from functools import cache

import torch


@cache
def _pool_owner(device: torch.device) -> torch.cuda.CUDAGraph:
    """A graph that is never freed: torch does not reuse a pool once all graphs of it are freed."""
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        torch.zeros(1, device=device)
    finally:
        graph.capture_end()
    return graph


def capture(stream: torch.cuda.Stream, *steps: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Graph of the launches that `steps` enqueue; each runs once, in order, with `stream` as the current stream."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=_pool_owner(stream.device).pool(), capture_error_mode="thread_local")
        try:
            for step in steps:
                step()
        finally:
            graph.capture_end()
    return graph
