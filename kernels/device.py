"""The GPU at hand as a `Target`.

In: CUDA's number of a GPU. Out: its limits, asked of torch once. The one file of this room that asks a device.
"""

from functools import cache

import torch

from normtune.kernels.target import Target


@cache
def describe(index: int) -> Target:
    """The limits of GPU `index`, as torch reports them."""
    properties = torch.cuda.get_device_properties(index)
    hip = torch.version.hip is not None
    name = properties.gcnArchName.partition(":")[0] if hip else f"sm_{properties.major}{properties.minor}"
    return Target(
        name=name,
        sms=properties.multi_processor_count,
        # A block may opt in to more shared memory on NVIDIA's GPUs; builds of torch for others need not have the name.
        shared_bytes=getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block),
        warp_size=properties.warp_size,
        max_threads=1024,
        l2_bytes=properties.L2_cache_size,
    )
