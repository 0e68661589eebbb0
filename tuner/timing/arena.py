"""Device memory for timing: disjoint slices at fresh offsets, so that no launch finds its data in the cache.

In: buffers of a problem. Out: tensors in pools of device memory, at offsets redrawn at every call. Inputs lie in pools
that are only read (normal random values), outputs in one that is only written. Pools grow to the largest problem.
"""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from normtune.kernels.problem import IN_OUT, ITEMSIZE, OUTPUT, SCRATCH, WEIGHT, Buffer

# Slices start at multiples of this many bytes, as the caching allocator's blocks do.
_GRANULE = 512
# Before each slice lies a random gap of fewer granules than this.
_GAP = 512


class Arena:
    """The pools of one device. Not thread-safe."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device = device
        self._random = random.Random(seed)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._pools: dict[str, Tensor] = {}

    def slices(self, buffers: Sequence[Buffer], count: int) -> list[dict[str, Tensor]]:
        """`count` sets of tensors for `buffers`, disjoint but for the weight, which all sets share.

        Inputs hold normal values, outputs whatever was there, and what is both whatever a launch left in it.
        """
        self._reserve(buffers, count)
        cursor = dict.fromkeys(self._pools, 0)
        shared = {buffer.name: self._take(buffer, cursor) for buffer in buffers if buffer.role == WEIGHT}
        own = [buffer for buffer in buffers if buffer.role != WEIGHT]
        return [shared | {buffer.name: self._take(buffer, cursor) for buffer in own} for _ in range(count)]

    def clear(self) -> None:
        """Give all pools back."""
        self._pools.clear()

    def _reserve(self, buffers: Sequence[Buffer], count: int) -> None:
        needed: dict[str, int] = {}
        for buffer in buffers:
            pool = _pool_of(buffer)
            needed[pool] = needed.get(pool, 0) + count * (_padded(buffer.nbytes) + _GAP * _GRANULE)
        for pool, size in needed.items():
            if pool not in self._pools or self._pools[pool].numel() < size:
                self._pools.pop(pool, None)
                self._pools[pool] = self._make(pool, size)

    def _make(self, pool: str, size: int) -> Tensor:
        if pool == OUTPUT:
            return torch.zeros(size, dtype=torch.uint8, device=self._device)
        dtype = pool.rpartition(":")[2]
        values = torch.empty(size // ITEMSIZE[dtype], dtype=getattr(torch, dtype), device=self._device)
        return values.normal_(generator=self._generator).view(torch.uint8)

    def _take(self, buffer: Buffer, cursor: dict[str, int]) -> Tensor:
        pool = _pool_of(buffer)
        start = cursor[pool] + self._random.randrange(_GAP) * _GRANULE
        cursor[pool] = start + _padded(buffer.nbytes)
        memory = self._pools[pool][start : start + buffer.nbytes]
        return memory.view(getattr(torch, buffer.dtype)).view(buffer.shape)


def _pool_of(buffer: Buffer) -> str:
    """What is written lies apart from what is read, and what is both apart from either."""
    if buffer.role in (OUTPUT, SCRATCH):
        return OUTPUT
    return f"{IN_OUT}:{buffer.dtype}" if buffer.role == IN_OUT else buffer.dtype


def _padded(nbytes: int) -> int:
    return -(-nbytes // _GRANULE) * _GRANULE
