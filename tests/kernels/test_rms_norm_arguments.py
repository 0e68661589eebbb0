"""What the function cannot take is refused by name and value."""

import pytest
import torch

import normtune

CASES = [
    (torch.zeros(2, 8), torch.ones(8), "x is on cpu: normtune's kernels run on CUDA GPUs"),
    (torch.zeros(2, 8, dtype=torch.float64), torch.ones(8), "x is torch.float64: expected bfloat16"),
    (torch.zeros(2, 8, dtype=torch.int32), torch.ones(8), "x is torch.int32"),
]
META = [
    (torch.zeros(2, 8), torch.ones(7), r"weight has shape \(7,\): expected \(8,\)"),
    (torch.zeros(2, 8), torch.ones(8, 1), r"weight has shape \(8, 1\)"),
    (torch.zeros(8, 4).t(), torch.ones(8), r"x has strides \(1, 4\): expected a contiguous last dimension"),
    (torch.zeros(()), torch.ones(8), "x has no dimension"),
    (torch.zeros(2, 0), torch.ones(0), r"x has shape \(2, 0\): expected a last dimension of 1 to 65536"),
    (torch.zeros(1, 65537), torch.ones(65537), "last dimension of 1 to 65536"),
    (torch.zeros(2, 8), torch.ones(8, dtype=torch.float16), "weight is torch.float16: expected torch.float32"),
    (torch.zeros(2, 8), torch.ones(16)[::2], r"weight has strides \(2,\)"),
    (torch.zeros(2, 8), torch.ones(8, device="meta"), "weight is on meta and x on cpu"),
]


@pytest.mark.parametrize(("x", "weight", "message"), CASES)
def test_refused_without_a_gpu(x, weight, message):
    with pytest.raises(ValueError, match=message):
        normtune.rms_norm(x, weight)


@pytest.mark.interpreter
@pytest.mark.parametrize(("x", "weight", "message"), META)
def test_refused_where_kernels_run(x, weight, message):
    with pytest.raises(ValueError, match=message):
        normtune.rms_norm(x, weight)


@pytest.mark.parametrize("hidden", [0, -1, 65537, 1.5, "64"])
def test_module_refuses_a_hidden_size(hidden):
    with pytest.raises(ValueError, match="expected an integer from 1 to 65536"):
        normtune.RMSNorm(hidden)
