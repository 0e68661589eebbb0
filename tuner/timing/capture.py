"""Capture of a CUDA graph. `torch.cuda.graph` empties the allocator's cache each time; this does not.

In: work to be captured. Out: a graph. No allocation inside the work may outlive it.
"""

from collections.abc import Callable

import torch


def capture(stream: torch.cuda.Stream, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Graph of the work that `work` enqueues. `stream` is the current stream meanwhile."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph
