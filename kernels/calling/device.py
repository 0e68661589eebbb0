"""The limits of a GPU of this machine, from torch.

In: torch's number of the GPU. Out: its `Target`, read once; its hardware id. Other modules of `kernels/` query none.
"""

from functools import cache
from typing import Any

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


def hardware_id(properties: Any) -> str:
    """The id by which the library of its vendor finds a GPU: NVIDIA's its uuid, AMD's its PCI address."""
    if torch.version.hip is None:
        return str(properties.uuid).removeprefix("GPU-")
    return f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
