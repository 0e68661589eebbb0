"""Rows of two strides and groups are read where they are."""

import pytest
import torch

from normtune.kernels.calling.layout import grouped_rows
from normtune.kernels.rms_norm_gated.function import CALLS

OPERATION = CALLS[True, True, True].operation
WIDE = torch.arange(5 * 6 * 40, dtype=torch.float32).view(5, 6, 40)


def layout(x, z, weight, batch_invariant=False):
    found = grouped_rows(OPERATION, {"x": x, "z": z, "weight": weight}, batch_invariant)
    for name, tensor in (("x", x), ("z", z)):
        assert torch.equal(found[name].reshape(tensor.shape), tensor)
    assert found["x"].shape == found["z"].shape
    return found["x"], found["z"]


@pytest.mark.parametrize(
    ("x", "z", "extents"),
    [
        (WIDE, WIDE, (1, 30, 1, 40)),
        (WIDE[:, :, :16], WIDE[:, :, 16:32], (1, 30, 1, 16)),
        (WIDE[:, :3], WIDE[:, 3:], (5, 3, 1, 40)),
        (WIDE[:, :3, :8], WIDE[:, 3:].contiguous()[..., :8], (5, 3, 1, 8)),
        (WIDE[:1, :3], WIDE[2:3, 3:], (1, 3, 1, 40)),
        (WIDE.transpose(0, 1), WIDE.transpose(0, 1), (6, 5, 1, 40)),
        (WIDE[0, 0], WIDE[1, 1], (1, 1, 1, 40)),
        (WIDE[:1].expand(5, 6, 40), WIDE, (5, 6, 1, 40)),
    ],
)
def test_rows_of_two_strides_are_not_copied(x, z, extents):
    found = layout(x, z, torch.ones(x.shape[-1]))
    assert found[0].shape == extents
    assert [one.data_ptr() for one in found] == [x.data_ptr(), z.data_ptr()]


def test_groups_keep_a_stride_of_their_own():
    x, z = (part.unflatten(-1, (4, 5)) for part in (WIDE[..., :20], WIDE[:, :, 20:]))
    found = layout(x, z, torch.ones(4, 5))
    assert found[0].shape == (1, 30, 4, 5) and found[0].stride() == (20, 40, 5, 1)
    assert [one.data_ptr() for one in found] == [x.data_ptr(), z.data_ptr()]


def test_three_strides_and_scattered_elements_are_copied():
    wide = torch.arange(4 * 5 * 6 * 7).float().view(4, 5, 6, 7)
    x = wide[:3, :4, :5]
    found = layout(x, x, torch.ones(7))
    assert found[0].data_ptr() != x.data_ptr()
    x = WIDE.transpose(1, 2)
    assert layout(x, x.contiguous(), torch.ones(6))[0].data_ptr() != x.data_ptr()


def test_the_batch_invariant_mode_copies_what_is_less_aligned_than_a_new_tensor():
    x = WIDE[:, :, 1:17]
    found = layout(x, WIDE[:, :, :16], torch.ones(16), True)
    assert found[0].is_contiguous() and found[0].data_ptr() != x.data_ptr()
    z = torch.zeros(5, 6, 32)[..., :16]
    assert layout(z, z, torch.ones(16), True)[0].data_ptr() == z.data_ptr()
