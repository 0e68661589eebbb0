"""A tensor without memory, for compiling and resolving launches where there is no GPU.

In: dtype and shape. Out: as much of a tensor as Triton's warm-up and an operator's launch ask for. Needs triton.
"""

import math
from typing import Any


class StandIn:
    """A tensor that is only its dtype and strides, contiguous and 16-byte aligned, as Triton's warm-up takes it.

    Args:
        dtype: its name.
        shape: its extents.
    """

    is_cuda = True

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        import triton.language as tl

        self.dtype = getattr(tl, dtype)
        self.shape = shape
        self.ndim = len(shape)

    def data_ptr(self) -> int:
        """Aligned."""
        return 0

    def ptr_range(self) -> int:
        """Bytes behind the pointer, as AMD's compiler asks: more than 32 bits count."""
        return 2**40

    def stride(self, dimension: int | None = None) -> Any:
        """Elements from one index of a dimension to the next, of all dimensions without one."""
        strides = [1] * len(self.shape)
        for place in range(len(self.shape) - 2, -1, -1):
            strides[place] = strides[place + 1] * self.shape[place + 1]
        return tuple(strides) if dimension is None else strides[dimension]

    def size(self, dimension: int | None = None) -> Any:
        """An extent, all of them without a dimension."""
        return self.shape if dimension is None else self.shape[dimension]

    def dim(self) -> int:
        """How many dimensions it has."""
        return self.ndim

    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    def element_size(self) -> int:
        """Bytes an element."""
        return int(self.dtype.primitive_bitwidth) // 8

    def is_contiguous(self) -> bool:
        """It is."""
        return True
