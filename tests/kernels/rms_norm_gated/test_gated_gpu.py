"""Gated RMSNorm on a GPU: float64, groups and strides, gradients, and a replayed graph."""

import pytest
import torch

from normtune import rms_norm_gated
from normtune.kernels.operator import operator
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing.gate import gate

pytestmark = pytest.mark.gpu


def exact(x, weight, z, norm_before_gate, group_size, eps=1e-6):
    """The definition, in the dtype of the tensors."""
    gate = torch.nn.functional.silu(z)
    rows = x if norm_before_gate else x * gate
    groups = rows.unflatten(-1, (-1, group_size))
    y = (groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)).flatten(-2) * weight
    return y * gate if norm_before_gate else y


def made(shape, dtype, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=generator).to(dtype)


@pytest.mark.parametrize("norm_before_gate", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("shape", "group_size"),
    [
        ((64, 24, 128), 128),
        ((3, 5, 64), 64),
        ((4096, 192), 192),
        ((300, 2880), 2880),
        ((77, 4096), 512),
        ((9, 12288), 12288),
    ],
)
def test_outputs_and_gradients_are_those_of_float64(shape, group_size, dtype, norm_before_gate):
    x, z, dy = (made(shape, dtype, seed) for seed in range(3))
    weight = made(shape[-1:], dtype, 3)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, z)]
    y = rms_norm_gated(*leaves, norm_before_gate=norm_before_gate, group_size=group_size)
    y.backward(dy)
    wide = [tensor.double().requires_grad_() for tensor in (x, weight, z)]
    expected = exact(*wide, norm_before_gate, group_size)
    expected.backward(dy.double())
    bound = {torch.float32: 4e-6, torch.bfloat16: 1e-2}[dtype]
    assert (y - expected).abs().max() <= bound * expected.abs().max()
    for leaf, reference in zip(leaves, wide, strict=True):
        assert (leaf.grad - reference.grad).abs().max() <= 2 * bound * reference.grad.abs().max()


def test_heads_inside_a_projection_are_read_where_they_are():
    projected = made((60, 24, 3 * 128), torch.bfloat16)
    x, z = projected[..., :128], projected[..., 256:]
    weight = made((128,), torch.bfloat16, 1)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    y = rms_norm_gated(x, weight, z)
    assert torch.cuda.max_memory_allocated() - before <= 2 * y.nbytes  # no copies of x and z
    assert torch.equal(y, rms_norm_gated(x.contiguous(), weight, z.contiguous()))


def test_a_million_rows_and_one():
    weight = made((128,), torch.bfloat16, 1)
    x, z = (made(((1 << 20) + 24, 128), torch.bfloat16, seed) for seed in (2, 3))
    y = rms_norm_gated(x, weight, z)
    for part in (slice(0, 1), slice(1 << 19, (1 << 19) + 7), slice(-3, None)):
        expected = exact(x[part].double(), weight.double(), z[part].double(), True, 128)
        assert (y[part] - expected).abs().max() <= 1e-2 * expected.abs().max()


def test_a_graph_replays_a_call():
    x, z, weight = (
        made((64, 24, 128), torch.bfloat16),
        made((64, 24, 128), torch.bfloat16, 1),
        made((128,), torch.bfloat16, 2),
    )
    rms_norm_gated(x, weight, z)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = rms_norm_gated(x, weight, z)
    x.copy_(made(x.shape, x.dtype, 5))
    graph.replay()
    assert torch.equal(y, rms_norm_gated(x, weight, z))


@pytest.mark.parametrize("mode", ["", "gate_first", "no_gate", "hugging_face"])
@pytest.mark.parametrize(
    ("rows", "hidden", "dtype"),
    [
        (4099, 192, "bfloat16"),
        (33, 100, "bfloat16"),
        (1001, 800, "float16"),
        (77, 1536, "float32"),
        (5, 7168, "bfloat16"),
    ],
)
def test_rows_in_held_chunks_pass_the_gate(rows, hidden, dtype, mode):
    from normtune.kernels.calling.device import describe

    spec, target = operator("rms_norm_gated_forward"), describe(0)
    problem = spec.problem(rows, hidden, dtype, mode)
    kept, _ = candidates(spec, spec.space("default", problem, target), problem, target)
    held = [candidate for candidate in kept if candidate.launch.held]
    assert held
    for candidate in held:
        gate(spec, problem, candidate, target, torch.device("cuda", 0))
