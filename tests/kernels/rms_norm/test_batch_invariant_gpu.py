"""Rows alone and in a batch have equal bits in the batch-invariant mode, on a GPU, with its own table."""

import pytest
import torch

import normtune
from normtune.kernels.alignment import alignment_of
from normtune.kernels.calling import dispatch
from normtune.kernels.calling.device import describe
from normtune.kernels.operator import operator

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*has no batch-invariant function")]
DEVICE = torch.device("cuda", 0)
ROWS = 9000
HIDDEN = (64, 100, 192, 768, 1000, 4096, 8192, 12288, 32768)
DTYPES = (torch.bfloat16, torch.float32)


def batch(hidden, dtype):
    generator = torch.Generator(DEVICE).manual_seed(hidden)
    rows = max(300, min(ROWS, (1 << 25) // hidden))
    x, dy = (torch.randn(rows, hidden, generator=generator, device=DEVICE).to(dtype) for _ in range(2))
    return x, torch.randn(hidden, generator=generator, device=DEVICE).to(dtype), dy


def results(x, weight, dy, needs_dweight=True):
    """Y of inference, y and rstd of training, and dx."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_(needs_dweight)
    with torch.no_grad():
        inference = normtune.rms_norm(x, weight)
    y = normtune.rms_norm(x, weight)
    rstd = y.grad_fn.saved_tensors[2]
    return inference, y.detach(), rstd, torch.autograd.grad(y, x, dy)[0]


def parts(rows):
    """First rows of a batch, of every number of rows at which tables or tiles turn, and rows from within."""
    counts = {1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 64, 100, 128, 132, 133, 264, 500, 1024, 2048, 2049, 4096, 4097}
    found = [(0, count) for count in sorted(counts) if count < rows] + [(0, rows - 1)]
    return found + [(first, first + count) for first in (1, 7, rows // 2 + 1) for count in (1, 33, rows // 3)]


@pytest.mark.parametrize("needs_dweight", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", HIDDEN)
def test_rows_have_the_same_bits_in_every_batch(hidden, dtype, needs_dweight):
    x, weight, dy = batch(hidden, dtype)
    with normtune.batch_invariant():
        whole = results(x, weight, dy, needs_dweight)
        for first, last in parts(len(x)):
            rows = slice(first, last)
            # Views begin where they like; copies begin as new tensors do.
            for part in ((x[rows], dy[rows]), (x[rows].clone(), dy[rows].clone())):
                alone = results(part[0], weight, part[1], needs_dweight)
                for name, one, other in zip(("inference", "y", "rstd", "dx"), whole, alone, strict=True):
                    assert torch.equal(one[rows], other), (name, first, last)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_padded_and_of_odd_strides_have_the_bits_of_contiguous_ones(dtype):
    x, weight, dy = batch(1000, dtype)
    with normtune.batch_invariant():
        wanted = results(x, weight, dy)
        for more in (1, 8, 13):
            padded = [torch.nn.functional.pad(tensor, (0, more))[:, :1000] for tensor in (x, dy)]
            for rows in (slice(None), slice(0, 1), slice(5, 6), slice(7, 100)):
                found = results(padded[0][rows], weight, padded[1][rows])
                assert all(torch.equal(one[rows], other) for one, other in zip(wanted, found, strict=True)), more


def test_without_the_mode_orders_of_sums_and_some_bits_depend_on_the_batch():
    """What shows that the tests above can fail."""
    target = describe(0)
    differs = set()
    for hidden in HIDDEN:
        for name in ("rms_norm_forward", "rms_norm_backward"):
            spec = operator(name)
            problems = [spec.problem(rows, hidden, "bfloat16") for rows in (1, 64, 1024, ROWS)]
            found = [
                len({dispatch._resolve(spec, one, target, 0, alignment_of(hidden), mode).row_sum for one in problems})
                for mode in (False, True)
            ]
            assert found[1] == 1
            if found[0] > 1:
                differs.add((name, hidden))
    assert {name for name, _ in differs} == {"rms_norm_forward", "rms_norm_backward"}
    bits = []
    for hidden in (192, 768, 4096, 8192):
        x, weight, dy = batch(hidden, torch.float32)
        whole = results(x, weight, dy)
        for first, last in ((0, 1), (0, 64), (0, 1024)):
            alone = results(x[first:last], weight, dy[first:last])
            bits += [torch.equal(one[first:last], other) for one, other in zip(whole, alone, strict=True)]
    assert not all(bits)
