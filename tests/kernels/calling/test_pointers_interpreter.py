"""The pointers that kept launches get beside their tensors are those of the tensors."""

from functools import partial

import pytest
import torch

from normtune import fused_add_rms_norm, qk_norm, rms_norm, rms_norm_gated, rms_norm_quantize_fp8
from normtune.kernels.calling import cached
from normtune.kernels.calling.launcher import BoundLaunch

ROWS, HIDDEN = 5, 64


def tensors(*needs):
    """Rows for all of `needs` but the last, which is a weight; each with a gradient or not."""
    shapes = [(ROWS, HIDDEN)] * (len(needs) - 1) + [(HIDDEN,)]
    return [
        torch.randn(shape, dtype=torch.float16, requires_grad=need) for shape, need in zip(shapes, needs, strict=True)
    ]


def backward(y):
    (y if isinstance(y, torch.Tensor) else sum(y)).backward(torch.randn(ROWS, HIDDEN, dtype=torch.float16))


def added_in_place():
    x, residual, weight = tensors(False, False, False)
    fused_add_rms_norm(x, residual, weight, in_place=True)


def gated(*needs):
    x, gate, weight = tensors(*needs)
    return rms_norm_gated(x, weight, gate)


def heads(in_place, needs=False):
    """Rotated by the halves of one table, as servers keep it."""
    qkv = torch.randn(ROWS, 4 * HIDDEN, dtype=torch.float16, requires_grad=needs)
    weights = [torch.randn(HIDDEN, dtype=torch.float16) for _ in range(2)]
    cos, sin = torch.randn(9, HIDDEN, dtype=torch.float16).chunk(2, -1)
    return qk_norm(qkv, *weights, 2, 1, cos=cos, sin=sin, positions=torch.arange(ROWS), in_place=in_place)


# Rows as models have them: of heads, of a part of a projection, one row for all; and at addresses of no multiple of 16.
STRIDED = {
    "transposed": lambda: torch.randn(2, 8, 3, HIDDEN, dtype=torch.float16).transpose(1, 2),
    "columns": lambda: torch.randn(2, 8, 3 * HIDDEN, dtype=torch.float16)[..., HIDDEN : 2 * HIDDEN],
    "unordered": lambda: torch.randn(8, HIDDEN, 2, dtype=torch.float16).transpose(1, 2),
    "expanded": lambda: torch.randn(8, 1, HIDDEN, dtype=torch.float16).expand(8, 3, HIDDEN),
    "misaligned": lambda: torch.randn(8 * HIDDEN + 3, dtype=torch.float16)[3:].view(8, HIDDEN),
    "misaligned columns": lambda: torch.randn(8, 3 * HIDDEN, dtype=torch.float16)[:, 1 : HIDDEN + 1],
}


def of_strided(kind):
    """Results and gradients of strided rows, and of contiguous copies of them."""
    x, dy, weight = STRIDED[kind](), STRIDED[kind](), torch.randn(2 * HIDDEN, dtype=torch.float16)[::2]
    x, weight = x.requires_grad_(), weight.requires_grad_()
    copies = [tensor.detach().contiguous().requires_grad_() for tensor in (x, weight)]
    results = []
    for inputs, incoming in ((x, weight), dy), (copies, dy.contiguous()):
        y = rms_norm(*inputs)
        results.append((y, *torch.autograd.grad(y, inputs, incoming)))
    return results


# Calls, and the launches of each at known pointers once they are kept.
CALLS = {
    "forward": (lambda: rms_norm(*tensors(False, False)), 1),
    "with_gradients": (lambda: backward(rms_norm(*tensors(True, True))), 2),
    "reusing_dy": (lambda: backward(rms_norm(*tensors(True, True), reuse_dy=True)), 2),
    "without_that_of_weight": (lambda: backward(rms_norm(*tensors(True, False))), 2),
    "batch_invariant": (lambda: backward(rms_norm(*tensors(True, True), batch_invariant=True)), 2),
    "added": (lambda: backward(fused_add_rms_norm(*tensors(True, True, True))), 2),
    "added_in_place": (added_in_place, 1),
    "gated": (lambda: backward(gated(True, True, True)), 2),
    **{kind: (partial(of_strided, kind), 4) for kind in STRIDED},
    "heads": (lambda: heads(False), 1),
    "heads in place": (lambda: heads(True), 1),
    "heads, backward": (lambda: heads(False, True).sum().backward(), 2),
    "quantized": (lambda: rms_norm_quantize_fp8(*tensors(False, False), scaling="row"), 1),
}


@pytest.mark.interpreter
@pytest.mark.parametrize("name", CALLS)
def test_the_pointers_are_those_of_the_tensors(name, monkeypatch):
    call, launches = CALLS[name]
    call()
    found = []

    def at(prepared, pointers, *launched):
        found.append((list(pointers), [None if tensor is None else tensor.data_ptr() for tensor in launched]))

    def new(prepared, *launched):
        raise AssertionError("launched as new tensors are")

    monkeypatch.setattr(BoundLaunch, "at", at)
    monkeypatch.setattr(BoundLaunch, "__call__", new)
    call()
    assert len(found) == launches and all(pointers == wanted for pointers, wanted in found)


@pytest.mark.interpreter
@pytest.mark.parametrize("kind", STRIDED)
def test_strided_rows_give_what_contiguous_ones_do(kind):
    for _ in range(3):
        for strided, contiguous in zip(*of_strided(kind), strict=True):
            assert strided.is_contiguous() and torch.equal(strided, contiguous)


@pytest.mark.interpreter
def test_what_a_call_only_reads_may_share_memory_without_a_check_each_time(monkeypatch):
    for _ in range(2):
        heads(True)
    monkeypatch.setattr(cached, "check_written", lambda *_: pytest.fail("checked again"))
    heads(True)
