"""The limits of a GPU of this machine, from torch.

In: CUDA's number of the GPU. Out: its `Target`, read once. Other modules of `kernels/` query no device.
"""

from functools import cache

import torch

from normtune.kernels.target import Target


@cache
def describe(index: int) -> Target:
    """The limits of GPU `index`, from torch."""
    properties = torch.cuda.get_device_properties(index)
    hip = torch.version.hip is not None
    name = properties.gcnArchName.partition(":")[0] if hip else f"sm_{properties.major}{properties.minor}"
    return Target(
        name=name,
        sms=properties.multi_processor_count,
        # On NVIDIA's GPUs a block may opt in to more shared memory; builds of torch for others may lack the attribute.
        shared_bytes=getattr(properties, "shared_memory_per_block_optin", properties.shared_memory_per_block),
        warp_size=properties.warp_size,
        max_threads=1024,
        l2_bytes=properties.L2_cache_size,
    )
