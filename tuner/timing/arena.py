"""Device memory for timing: disjoint slices at new offsets, so that no launch finds its data in the cache.

In: the buffers of a problem. Out: tensors in pools of device memory, at new random offsets in every call. Inputs
(normal random values, indices of 0), outputs, and tensors that are both have separate pools, which grow to the largest
problem.
"""

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from normtune.kernels.problem import IN_OUT, INTEGERS, ITEMSIZE, OUTPUT, SCRATCH, WEIGHT, Buffer

# Slices start at multiples of this many bytes, like the blocks of the caching allocator.
_GRANULE = 512
# A random gap of fewer granules than this precedes each slice.
_GAP = 512


class Arena:
    """The pools of one device. Not thread-safe."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device = device
        self._random = random.Random(seed)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._pools: dict[str, Tensor] = {}

    def slices(self, buffers: Sequence[Buffer], count: int) -> list[dict[str, Tensor]]:
        """`count` sets of tensors for `buffers`, disjoint except for the weight, which all sets share.

        Inputs have normal random values, indices 0. Outputs, and tensors that are read and written, have values of
        earlier launches.
        """
        self._reserve(buffers, count)
        cursor = dict.fromkeys(self._pools, 0)
        shared = {buffer.name: self._take(buffer, cursor) for buffer in buffers if buffer.role == WEIGHT}
        separate = [buffer for buffer in buffers if buffer.role != WEIGHT]
        return [shared | {buffer.name: self._take(buffer, cursor) for buffer in separate} for _ in range(count)]

    def clear(self) -> None:
        """Free all pools."""
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
        dtype = pool.rpartition(":")[2]
        if pool == OUTPUT or dtype in INTEGERS:  # index 0 is valid for every tensor
            return torch.zeros(size, dtype=torch.uint8, device=self._device)
        if dtype not in ITEMSIZE:  # torch draws no FP8 values; bytes 0 to 63 are finite and positive in each FP8 dtype
            bits = torch.empty(size, dtype=torch.uint8, device=self._device)
            return bits.random_(64, generator=self._generator)
        values = torch.empty(size // ITEMSIZE[dtype], dtype=getattr(torch, dtype), device=self._device)
        return values.normal_(generator=self._generator).view(torch.uint8)

    def _take(self, buffer: Buffer, cursor: dict[str, int]) -> Tensor:
        pool = _pool_of(buffer)
        start = cursor[pool] + self._random.randrange(_GAP) * _GRANULE
        cursor[pool] = start + _padded(buffer.nbytes)
        memory = self._pools[pool][start : start + buffer.nbytes]
        return memory.view(getattr(torch, buffer.dtype)).view(buffer.shape)


def _pool_of(buffer: Buffer) -> str:
    if buffer.role in (OUTPUT, SCRATCH):
        return OUTPUT
    return f"{IN_OUT}:{buffer.dtype}" if buffer.role == IN_OUT else buffer.dtype


def _padded(nbytes: int) -> int:
    return -(-nbytes // _GRANULE) * _GRANULE
