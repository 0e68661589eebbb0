"""A tensor without memory, for compiling and resolving launches without a GPU.

In: dtype and shape. Out: the part of a tensor that Triton's warm-up and an operator's launch use. Needs triton.
"""

import math
from typing import Any

# Triton's names of dtypes that torch calls otherwise.
_TRITON_NAMES = {
    "float8_e4m3fn": "float8e4nv",
    "float8_e5m2": "float8e5",
    "float8_e4m3fnuz": "float8e4b8",
    "float8_e5m2fnuz": "float8e5b16",
    "bool": "int1",
}


class FakeTensor:
    """A tensor with only dtype and strides, contiguous, for Triton's warm-up.

    Args:
        dtype: its name in torch.
        shape: its extents.
        address: where it begins, bytes.
    """

    is_cuda = True

    def __init__(self, dtype: str, shape: tuple[int, ...], address: int = 0) -> None:
        import triton.language as tl

        self._address = address
        self.dtype = getattr(tl, _TRITON_NAMES.get(dtype, dtype))
        self.shape = shape
        self.ndim = len(shape)

    def data_ptr(self) -> int:
        """Its address; nothing is there."""
        return self._address

    def ptr_range(self) -> int:
        """Bytes behind the pointer, for AMD's compiler: it distinguishes those of more than 32 bits."""
        return 2**40

    def stride(self, dimension: int | None = None) -> Any:
        """Stride of a dimension, in elements; of all dimensions without one."""
        strides = [1] * len(self.shape)
        for axis in range(len(self.shape) - 2, -1, -1):
            strides[axis] = strides[axis + 1] * self.shape[axis + 1]
        return tuple(strides) if dimension is None else strides[dimension]

    def size(self, dimension: int | None = None) -> Any:
        """Extent of a dimension; of all dimensions without one."""
        return self.shape if dimension is None else self.shape[dimension]

    def dim(self) -> int:
        """Number of dimensions."""
        return self.ndim

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def element_size(self) -> int:
        """Bytes per element."""
        return int(self.dtype.primitive_bitwidth) // 8

    def is_contiguous(self) -> bool:
        """Always True."""
        return True
