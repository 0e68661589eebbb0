"""Whether two views have a byte in common, beside numpy's exact search."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normtune.kernels.calling.in_place import _is_apart, _share_memory

views = st.tuples(
    st.integers(0, 60), st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20)), min_size=1, max_size=3)
)
rows = st.tuples(st.integers(0, 60), st.integers(1, 5), st.integers(1, 6))


def view(memory, offset, sizes):
    shape, strides = zip(*sizes, strict=True)
    return memory.as_strided(shape, strides, offset)


@pytest.mark.slow
@settings(max_examples=500)
@given(one=views, other=views)
def test_no_common_byte_is_overlooked(one, other):
    memory = torch.zeros(400)
    tensors = [view(memory, *found) for found in (one, other)]
    if np.shares_memory(*(tensor.numpy() for tensor in tensors)):
        assert _share_memory(*tensors)
    for tensor in tensors:
        places = view(torch.arange(400), tensor.storage_offset(), list(zip(tensor.shape, tensor.stride(), strict=True)))
        assert not _is_apart(tensor) or places.unique().numel() == places.numel()


@pytest.mark.slow
@settings(max_examples=500)
@given(one=rows, other=rows, stride=st.integers(6, 20))
def test_rows_a_stride_apart_are_told_apart_exactly(one, other, stride):
    memory = torch.zeros(400)
    tensors = [view(memory, offset, [(count, stride), (width, 1)]) for offset, count, width in (one, other)]
    assert _share_memory(*tensors) == np.shares_memory(*(tensor.numpy() for tensor in tensors))
    assert all(map(_is_apart, tensors))
