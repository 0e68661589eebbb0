"""Conversions to bfloat16 that round to nearest in Triton's interpreter, as every GPU does."""

import numpy as np
import pytest


@pytest.fixture
def rounded_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter of Triton 3.7 cuts the bits off, and loses subnormal numbers."""
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def converted(values, source, target, rounding):
        if (source, target) == (tl.float32, tl.bfloat16):
            bits = values.view(np.uint32)
            rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
            return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
        if (source, target) == (tl.bfloat16, tl.float32):
            return (values.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
        return convert(values, source, target, rounding)

    monkeypatch.setattr(interpreter, "_convert_float", converted)
