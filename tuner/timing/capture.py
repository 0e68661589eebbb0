"""CUDA graphs without what `torch.cuda.graph` does around a capture: it empties the allocator's cache, each time.

In: work to be captured. Out: a graph. Nothing may be allocated by the work that outlives it.
"""

from collections.abc import Callable

import torch


def capture(stream: torch.cuda.Stream, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """The graph of what `work` enqueues on the current stream, which is `stream` for its time."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    return graph
