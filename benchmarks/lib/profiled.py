"""Times of kernels by torch's profiler.

In: a call. Out: the times of each kernel that it launches, by name.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def kernel_times(call: Callable[[], Any], count: int) -> dict[str, list[float]]:
    """Microseconds of the kernels of `count` calls, by name."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(count):
            call()
        torch.cuda.synchronize()
    times = defaultdict(list)
    for event in profiler.events():
        if event.device_type.name == "CUDA":
            times[event.name].append(event.device_time)
    return times
