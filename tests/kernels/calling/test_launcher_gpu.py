"""Kept launches stay right when alignment, streams, tables, hooks and graphs change; on a GPU."""

import pytest
import torch
import triton

import normtune
from normtune.kernels.calling import eager
from normtune.kernels.rms_norm.function import CALLS

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def forgotten():
    """Every test starts with no launch kept."""
    normtune.use_table()
    yield
    normtune.use_table()


def expected(x, weight, dy=None):
    """y, or the gradients of x and weight, in float64."""
    x, weight = (tensor.detach().double().requires_grad_() for tensor in (x, weight))
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight
    return y if dy is None else torch.autograd.grad(y, (x, weight), dy.double())


def check(x, weight):
    """Forward without and with gradients, and backward."""
    tolerance = {"rtol": 2e-2, "atol": 2e-2}
    with torch.no_grad():
        torch.testing.assert_close(normtune.rms_norm(x, weight).double(), expected(x, weight), **tolerance)
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    y = normtune.rms_norm(x, weight)
    dy = torch.randn_like(y)
    torch.testing.assert_close(y.double(), expected(x, weight), **tolerance)
    for found, wanted in zip(torch.autograd.grad(y, (x, weight), dy), expected(x, weight, dy), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=2e-2 * max(1.0, wanted.abs().max().item()))


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device="cuda", dtype=dtype)


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("hidden", [64, 77, 1024, 4099])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_pointers_of_any_alignment_in_turns(rows, hidden, dtype):
    storage, weights = random((rows + 1) * hidden + 16, dtype=dtype), random(hidden + 16, dtype=dtype)
    for _ in range(2):
        for x_offset, weight_offset in ((0, 0), (1, 0), (0, 1), (3, 5), (8, 8), (0, 0)):
            x = storage[x_offset : x_offset + rows * hidden].view(rows, hidden)
            check(x, weights[weight_offset : weight_offset + hidden])
        check(storage[: (rows + 1) * hidden].view(rows + 1, hidden)[1:], weights[:hidden])


def test_rows_with_strides_and_more_dimensions():
    wide, weight = random(6, 10, 3 * 96), random(96)
    for x in (wide[..., :96], wide[..., 96:192], wide[::2, :, :96], wide[..., :96].transpose(0, 1), wide[0, 0, :96]):
        check(x, weight)
        check(x.contiguous(), weight)


def test_the_gradient_that_comes_back_may_have_strides():
    x, weight = random(12, 256).requires_grad_(), random(256).requires_grad_()
    for dy in (random(12, 512)[:, 256:], random(256, 12).t(), random(1, 256).expand(12, 256), random(12, 256)):
        found = torch.autograd.grad(normtune.rms_norm(x, weight), (x, weight), dy)
        for one, wanted in zip(found, expected(x, weight, dy), strict=True):
            torch.testing.assert_close(one.double(), wanted, rtol=2e-2, atol=2e-2 * max(1.0, wanted.abs().max().item()))


def test_only_the_gradients_that_are_wanted():
    x, weight = random(8, 128), random(128)
    for needs in ((True, False), (False, True)):
        leaves = [tensor.clone().requires_grad_(need) for tensor, need in zip((x, weight), needs, strict=True)]
        y = normtune.rms_norm(*leaves)
        y.backward(torch.ones_like(y))
        assert [leaf.grad is not None for leaf in leaves] == list(needs)


def test_a_launch_goes_to_the_current_stream():
    x, weight = random(4096, 4096), random(4096)
    with torch.no_grad():
        wanted = normtune.rms_norm(x, weight)
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)  # a tenth of a second
            y = normtune.rms_norm(x, weight)
            done = stream.record_event()
        assert not done.query()
        stream.synchronize()
    assert torch.equal(y, wanted)


def test_a_graph_of_kept_launches_reads_what_is_there_at_its_replay():
    x, weight = random(64, 1024), random(1024)
    with torch.no_grad():
        normtune.rms_norm(x, weight)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = normtune.rms_norm(x, weight)
        x.normal_()
        graph.replay()
        assert torch.equal(y, normtune.rms_norm(x, weight))


def test_another_table_changes_the_launch(monkeypatch):
    x, weight = random(4096, 4096), random(4096)
    made = []
    real = eager.bind_from_table
    monkeypatch.setattr(eager, "bind_from_table", lambda *arguments: made.append(real(*arguments)) or made[-1])
    with torch.no_grad():
        for _ in range(3):
            normtune.rms_norm(x, weight)
        assert len(made) == 1
        normtune.use_table(None)
        for _ in range(3):
            normtune.rms_norm(x, weight)
    assert len(made) == 2
    options = [prepared.options[0]["num_warps"] for prepared in made]
    assert options[1] == 8


def test_who_listens_to_launches_hears_each(monkeypatch):
    x, weight = random(8, 256), random(256)
    heard = []
    enter = triton.knobs.runtime.launch_enter_hook
    with torch.no_grad():
        wanted = normtune.rms_norm(x, weight)
        listener = heard.append
        enter.add(listener)
        try:
            assert torch.equal(normtune.rms_norm(x, weight), wanted)
            assert torch.equal(normtune.rms_norm(x, weight), wanted)
        finally:
            enter.remove(listener)
        normtune.rms_norm(x, weight)
    assert len(heard) == 2


def test_a_triton_of_which_no_fast_way_is_known_gets_the_public_one(monkeypatch):
    x, weight = random(300, 1000), random(1000)
    with torch.no_grad():
        fast = normtune.rms_norm(x, weight)
        assert all(plan.launch.is_fast for plan in CALLS["gemma"].operation.plans.values())
        monkeypatch.setattr(triton, "__version__", "99.0.0")
        normtune.use_table()
        assert torch.equal(normtune.rms_norm(x, weight), fast)
        assert not any(plan.launch.is_fast for plan in CALLS["gemma"].operation.plans.values())
    check(x, weight)
