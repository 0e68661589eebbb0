"""Rows of several programs on a GPU: the gate, float64, equal bits in every batch, wide offsets, memory, a graph."""

import pytest
import torch

import normtune
from normtune.kernels.operator import operator, operators
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing.gate import gate

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)
HIDDEN = (65537, 100_000, 262_144, 1_048_576)
NAMES = tuple(name for name in operators() if name.startswith(("rms_norm_forward", "rms_norm_backward", "fused_add")))


def made(shape, dtype, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, device="cuda", generator=generator, dtype=torch.float32).to(dtype)


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("key", [(name, variant) for name in NAMES for variant in operator(name).variants])
def test_default_space_passes_the_gate(key, hidden, target):
    spec = operator(key[0])
    for rows in (1, 257):
        problem = spec.problem(rows, hidden, "bfloat16", key[1])
        kept, _ = candidates(spec, spec.space("default", problem, target), problem, target)
        assert kept
        for candidate in kept[::4]:
            gate(spec, problem, candidate, target, DEVICE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("rows", [1, 3, 257])
@pytest.mark.parametrize("hidden", HIDDEN)
def test_outputs_and_gradients_are_those_of_float64(hidden, rows, dtype):
    x, dy = (made((rows, hidden), dtype, seed) for seed in range(2))
    weight = made((hidden,), dtype, 2)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, weight)]
    y = normtune.rms_norm(*leaves, 1e-6, 1.0)
    y.backward(dy)
    wide = [tensor.double().requires_grad_() for tensor in (x, weight)]
    expected = torch.nn.functional.rms_norm(wide[0], (hidden,), wide[1] + 1.0, 1e-6)
    expected.backward(dy.double())
    bound = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    assert (y - expected).abs().max() <= bound * expected.abs().max()
    for leaf, reference in zip(leaves, wide, strict=True):
        assert (leaf.grad - reference.grad).abs().max() <= 2 * bound * reference.grad.abs().max()


@pytest.mark.parametrize("hidden", HIDDEN)
def test_a_row_has_the_same_bits_in_every_batch(hidden):
    x, dy, weight = (
        made((257, hidden), torch.bfloat16),
        made((257, hidden), torch.bfloat16, 1),
        made((hidden,), torch.float32, 2),
    )

    def both(rows):
        leaf = x[rows].requires_grad_()
        y = normtune.rms_norm(leaf, weight, batch_invariant=True)
        return y.detach(), torch.autograd.grad(y, leaf, dy[rows])[0]

    whole = both(slice(None))
    for rows in (slice(0, 1), slice(100, 103), slice(256, 257)):
        for part, all_rows in zip(both(rows), whole, strict=True):
            assert torch.equal(part, all_rows[rows])


def test_every_launch_gives_the_same_bits():
    x, dy = (made((257, 100_000), torch.bfloat16, seed) for seed in range(2))
    weight = made((100_000,), torch.bfloat16, 2).requires_grad_()
    leaf = x.requires_grad_()
    found = []
    for _ in range(2):
        y = normtune.rms_norm(leaf, weight)
        found.append((y.detach(), *torch.autograd.grad(y, (leaf, weight), dy)))
    assert all(map(torch.equal, *found))


def test_offsets_beyond_two_to_the_31_elements():
    hidden, rows = 1 << 20, (1 << 11) + 3
    x = torch.zeros(rows, hidden, dtype=torch.bfloat16, device=DEVICE)
    tail = made((2, hidden), torch.bfloat16, 1)
    x[-2:] = tail
    found = []
    for leaf, dy in ((x.requires_grad_(), x.detach()), (tail.clone().requires_grad_(), tail)):
        y = normtune.rms_norm(leaf, batch_invariant=True)
        found.append((y.detach(), torch.autograd.grad(y, leaf, dy)[0]))
    for many, few in zip(*found, strict=True):
        assert torch.equal(many[-2:], few) and not many[:-2].any()


def test_the_backward_takes_little_memory_beside_its_tensors():
    hidden = 1 << 20
    x, dy = (made((64, hidden), torch.bfloat16, seed) for seed in range(2))
    weight = made((hidden,), torch.bfloat16, 2).requires_grad_()
    y = normtune.rms_norm(x.requires_grad_(), weight)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    dx, dweight = torch.autograd.grad(y, (x, weight), dy)
    assert torch.cuda.max_memory_allocated() - before <= dx.nbytes + dweight.nbytes + (66 << 20)


def test_a_graph_replays_a_call():
    x, residual = (made((9, 100_000), torch.bfloat16, seed) for seed in range(2))
    weight = made((100_000,), torch.bfloat16, 2)
    expected = normtune.fused_add_rms_norm(x, residual, weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = normtune.fused_add_rms_norm(x, residual, weight)
    graph.replay()
    assert all(map(torch.equal, found, expected))
