"""Calls that write into their inputs: what autograd saved of these, and inputs that cannot be written.

In float32 kernels write, run by Triton's interpreter; in float64 torch's operations do.
"""

from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import normtune

pytestmark = pytest.mark.interpreter

HIDDEN = 32
DTYPES = [torch.float32, torch.float64]


def fused(x, residual, weight):
    return normtune.fused_add_rms_norm(x, residual, weight, in_place=True)


def heads(qkv, weight):
    """Two query heads, a key head, and a value head, which is not written."""
    return normtune.qk_norm(qkv, weight, weight, 2, 1, in_place=True)


def rotated(qkv, weight, cos):
    return normtune.qk_norm(qkv, weight, weight, 2, 1, cos=cos, sin=cos, in_place=True)


def drawn(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


class Seen(TorchDispatchMode):
    """Sends calls through torch's dispatcher."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


# The call, shapes of the tensors that it writes, and of those that it reads.
CALLS = {
    "fused_add_rms_norm": (fused, [(4, HIDDEN), (4, HIDDEN)], [(HIDDEN,)]),
    "without a weight": (lambda x, residual: fused(x, residual, None), [(4, HIDDEN), (4, HIDDEN)], []),
    "batch_invariant": (
        partial(normtune.fused_add_rms_norm, in_place=True, batch_invariant=True),
        [(4, HIDDEN), (4, HIDDEN)],
        [(HIDDEN,)],
    ),
    "qk_norm": (heads, [(4, HIDDEN)], [(8,)]),
    "qk_norm rotated": (rotated, [(4, HIDDEN)], [(8,), (4, 4)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_autograd_refuses_what_was_overwritten(name, dtype):
    call, written, read = CALLS[name]
    for has_mode, has_gap in ((False, False), (False, False), (True, False), (False, True)):
        tensors = [drawn(*shape[:-1], shape[-1] + has_gap, dtype=dtype)[..., has_gap:] for shape in [*written, *read]]
        versions = [tensor._version for tensor in tensors]
        factor = drawn(HIDDEN, dtype=dtype).requires_grad_()
        losses = [(tensor * factor).sum() for tensor in tensors[: len(written)]]
        if has_mode:
            with Seen():
                call(*tensors)
        else:
            call(*tensors)
        changed = [tensor._version > version for tensor, version in zip(tensors, versions, strict=True)]
        assert changed == [True] * len(written) + [False] * len(read)
        for loss in losses:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


def test_an_input_out_of_order_is_written_and_has_another_version():
    x, residual = drawn(HIDDEN, 4).t(), drawn(4, HIDDEN)
    expected, versions = normtune.fused_add_rms_norm(x, residual), (x._version, residual._version)
    fused(x, residual, None)
    assert torch.equal(x, expected[0]) and torch.equal(residual, expected[1])
    assert x._version > versions[0] and residual._version > versions[1]


@pytest.mark.parametrize("call", ["fused_add_rms_norm", "qk_norm"])
@pytest.mark.parametrize("made", [torch._neg_view, lambda one: torch._efficientzerotensor(one.shape)])
def test_what_has_no_memory_of_its_own_is_refused(made, call):
    call, written, read = CALLS[call]
    first, *others = (drawn(*shape) for shape in [*written, *read])
    with pytest.raises(ValueError, match="is a negated or zero tensor without memory of its own"):
        call(made(first), *others)


@pytest.mark.parametrize("call", ["fused_add_rms_norm", "qk_norm"])
def test_tensors_of_inference_have_no_version_and_are_written_in_that_mode_alone(call):
    call, written, read = CALLS[call]
    with torch.inference_mode():
        tensors = [drawn(*shape) for shape in [*written, *read]]
        call(*tensors)
    before = tensors[0].clone()
    with pytest.raises(ValueError, match=r"is an inference tensor: expected to be written in torch.inference_mode"):
        call(*tensors)
    assert torch.equal(tensors[0], before)


def memory(dtype, *shape):
    return drawn(4096, dtype=dtype).as_strided(shape, torch.empty(shape, device="meta").stride())


# Rows of one memory, by name, and what is said of them.
SHARED = {
    "expanded rows": (lambda m: (m[0].expand(4, HIDDEN), m[64:68], m[99]), r"x has shape .* and strides \(0, 1\)"),
    "expanded residual": (lambda m: (m[64:68], m[:1].expand(4, HIDDEN), m[99]), r"residual has shape"),
    "expanded elements": (lambda m: (m[:4, :1].expand(4, HIDDEN), m[64:68], m[99]), r"x has shape"),
    "unfolded": (lambda m: (m[:4].flatten().unfold(0, HIDDEN, 8)[:4], m[64:68], m[99]), r"x has shape"),
    "the same": (lambda m: (m[:4], m[:4], m[99]), "x and residual share memory"),
    "the same, reversed": (lambda m: (m[:4], m[:4].view(2, 2, HIDDEN)[:, :].flatten(0, 1), m[99]), "share memory"),
    "partly the same": (lambda m: (m[:4], m[3:7], m[99]), "x and residual share memory"),
    "between": (lambda m: (m[:8:2], m[1:8].flatten()[8 : 8 + 5 * HIDDEN].view(5, HIDDEN)[:4], m[99]), "share memory"),
    "a weight in x": (lambda m: (m[:4], m[64:68], m[2]), "x and weight share memory"),
    "a weight in the residual": (lambda m: (m[64:68], m[:4], m[3]), "residual and weight share memory"),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHARED)
def test_memory_that_is_shared_is_refused_and_stays(name, dtype):
    views, text = SHARED[name]
    whole = memory(dtype, 100, HIDDEN)
    fused(whole[:4].clone(), whole[:4].clone(), whole[0].clone())  # a kept launch checks, too
    before = whole.clone()
    with pytest.raises(ValueError, match=text):
        fused(*views(whole))
    assert torch.equal(whole, before)


HEADS = {
    "expanded": (lambda m: (m[:1].expand(4, HIDDEN), m[99, :8]), r"qkv\[..., :24\] has shape \(4, 24\) and strides"),
    "unfolded": (lambda m: (m.flatten().unfold(0, HIDDEN, 16)[:4], m[99, :8]), r"qkv\[..., :24\] has shape"),
    "a weight in it": (lambda m: (m[:4], m[2, 8:16]), r"qkv\[..., :24\] and weight_q share memory"),
    "a weight partly in it": (lambda m: (m[:4], m[2, 20:28]), r"qkv\[..., :24\] and weight_q share memory"),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HEADS)
def test_heads_that_share_memory_are_refused_and_stay(name, dtype):
    views, text = HEADS[name]
    whole = memory(dtype, 100, HIDDEN)
    heads(whole[:4].clone(), whole[0, :8].clone())
    before = whole.clone()
    with pytest.raises(ValueError, match=text):
        heads(*views(whole))
    assert torch.equal(whole, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_that_lie_between_each_other_are_written(dtype):
    whole = memory(dtype, 100, HIDDEN)
    wide = whole[:32].view(16, 2 * HIDDEN)
    for x, residual, weight in (
        (*wide.chunk(2, -1), whole[50]),
        (whole[:8:2], whole[1:8:2], whole[50]),
        (whole[:4], whole[4:8], whole[8]),
        (whole[:4].view(4, 1, HIDDEN), whole[4:8].view(4, 1, HIDDEN), whole[8]),
        (wide[:4, :HIDDEN], wide[:4, HIDDEN:], wide[5, :HIDDEN]),
    ):
        expected = normtune.fused_add_rms_norm(x, residual, weight)
        fused(x, residual, weight)
        assert torch.equal(x, expected[0]) and torch.equal(residual, expected[1])
    for qkv, weight in ((whole[:8:2], whole[1, :8]), (whole[:4], whole[2, 24:32])):
        expected = normtune.qk_norm(qkv, weight, weight, 2, 1)
        for _ in range(2):
            written = qkv.clone()
            heads(written, weight)
        assert torch.equal(heads(qkv, weight), expected) and torch.equal(written, expected)
