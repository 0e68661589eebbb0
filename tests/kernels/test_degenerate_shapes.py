"""Rows of no element and of one: gradients of any order, and results in memory of their own; on a CPU."""

import pytest
import torch

import normtune

CALLS = {
    "rms_norm": lambda x, _, weight: normtune.rms_norm(x, weight),
    "llama": lambda x, _, weight: normtune.rms_norm(x, weight, casting="llama"),
    "none": lambda x, _, weight: normtune.rms_norm(x, casting="none"),
    "fused_add_rms_norm": lambda *tensors: sum(normtune.fused_add_rms_norm(*tensors)),
    "rms_norm_gated": lambda x, z, weight: normtune.rms_norm_gated(x, weight, z),
    "groups": lambda x, z, weight: normtune.rms_norm_gated(x, weight, z, rounding="hugging_face"),
}


@pytest.mark.parametrize("leading", [(), (0,), (3,), (2, 3)])
@pytest.mark.parametrize("name", CALLS)
def test_rows_without_elements_have_gradients(name, leading):
    leaves = [torch.zeros(*leading, 0, requires_grad=True) for _ in range(2)]
    leaves.append(torch.zeros(0, requires_grad=True))
    y = CALLS[name](*leaves)
    first = torch.autograd.grad(y.sum(), leaves, allow_unused=True, create_graph=True)
    found = [gradient for gradient in first if gradient is not None]
    found += torch.autograd.grad(sum(one.sum() for one in found), leaves, allow_unused=True)
    assert y.shape == leaves[0].shape and len(found) > 1
    assert {one.shape for one in found if one is not None} <= {leaf.shape for leaf in leaves}


def quantized(x, weight):
    found = normtune.rms_norm_quantize_fp8(
        x, weight, scale=torch.ones(1), residual=x, return_amax=True, return_y=True, return_transpose=True
    )
    return [*found[:1], *found[2:]]  # the scale is the one that was given


RESULTS = {
    "rms_norm": lambda x, weight: [normtune.rms_norm(x, weight), normtune.rms_norm(x)],
    "fused_add_rms_norm": lambda x, weight: normtune.fused_add_rms_norm(x, x, weight),
    "rms_norm_gated": lambda x, weight: [normtune.rms_norm_gated(x, weight, x)],
    "quantize": quantized,
    "quantize rows": lambda x, weight: normtune.rms_norm_quantize_fp8(x, weight, scaling="row")[:2],
    "quantize blocks": lambda x, weight: normtune.rms_norm_quantize_fp8(x, weight, scaling="block")[:2],
    "transpose_fp8": lambda x, _: [normtune.transpose_fp8(x.view(torch.uint8))],
    "qk_norm": lambda x, _: [normtune.qk_norm(x, x[0, :1], x[0, :1], 1, 1)] if x.shape[-1] > 1 else [],
}


@pytest.mark.parametrize(("rows", "hidden"), [(1, 1), (5, 1), (1, 8), (4, 8)])
@pytest.mark.parametrize("name", RESULTS)
def test_results_have_memory_of_their_own(name, rows, hidden):
    """So `transpose_fp8` and `q_t` had not where a transposition leaves all elements in their order."""
    for x in (torch.ones(rows, hidden), torch.ones(hidden, rows).t()):
        if name == "transpose_fp8":
            x = torch.ones(hidden, rows, dtype=torch.uint8).t() if not x.is_contiguous() else x.to(torch.uint8)
        weight = torch.ones(hidden)
        tensors = [x, weight, *RESULTS[name](x, weight)]
        memory = [tensor.untyped_storage().data_ptr() for tensor in tensors if tensor is not None]
        assert len(set(memory)) == len(memory)
