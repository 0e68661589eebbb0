"""After a warmup no call loads a binary, on a GPU; and tokens of any distance are read as they lie."""

import pytest
import torch

import normtune
from normtune.kernels.calling import launcher

pytestmark = pytest.mark.gpu


def random(*shape, dtype=torch.bfloat16, needs=False):
    return torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_(needs)


def fused(rows):
    return normtune.fused_add_rms_norm, (random(rows, 4096), random(rows, 4096), random(4096, needs=True)), {}


def gated(rows):
    heads = random(rows, 8, 136)[..., :128].requires_grad_()
    return normtune.rms_norm_gated, (heads, random(128, needs=True), random(rows, 8, 128, needs=True)), {}


def groups(rows):
    tensors = random(rows, 4096, needs=True), random(4096, needs=True), random(rows, 4096, needs=True)
    return normtune.rms_norm_gated, tensors, {"group_size": 512}


def quantized(rows):
    return normtune.rms_norm_quantize_fp8, (random(rows, 4096), random(4096)), {"scaling": "row"}


def heads(rows):
    qkv = random(rows, 24 * 128 + 4)[:, : 24 * 128]
    return normtune.qk_norm, (qkv, random(128), random(128), 16, 4), {"in_place": True}


@pytest.mark.parametrize("example", [fused, gated, groups, quantized, heads])
def test_after_a_warmup_no_call_loads_a_binary(example):
    normtune.use_table()
    launcher._binaries.clear()
    function, arguments, named = example(3)
    assert normtune.warmup(function, *arguments, **named) >= 1
    loaded = set(launcher._binaries)
    for rows in (1, 2, 31, 64, 133, 1024, 4097, 20000):
        function, arguments, named = example(rows)
        out = function(*arguments, **named)
        outputs = [tensor for tensor in (out if isinstance(out, tuple) else (out,)) if tensor is not None]
        if outputs[0].requires_grad:
            torch.autograd.backward(outputs, list(map(torch.ones_like, outputs)))
    torch.cuda.synchronize()
    assert set(launcher._binaries) == loaded


@pytest.mark.parametrize("padding", [1, 2, 4, 8])
def test_heads_of_tokens_of_any_distance(padding):
    qkv, weights = random(64, 24 * 128 + padding)[:, : 24 * 128], (random(128), random(128))
    wanted = normtune.qk_norm(qkv.contiguous(), *weights, 16, 4, in_place=False)
    torch.testing.assert_close(normtune.qk_norm(qkv, *weights, 16, 4, in_place=False), wanted, rtol=1e-2, atol=1e-2)
    torch.cuda.synchronize()
