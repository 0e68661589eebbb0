"""State kept by a process, and concurrent threads, streams and graphs; on a GPU, each test alone."""

import gc
import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import normtune
from normtune.kernels.calling import eager, launcher
from normtune.kernels.rms_norm.function import CALLS

pytestmark = pytest.mark.gpu
F = torch.nn.functional


@pytest.fixture(autouse=True)
def forgotten():
    """Every test starts with no launch kept and no binary loaded."""
    normtune.use_table()
    launcher._binaries.clear()
    gc.collect()
    yield
    normtune.use_table()
    normtune.use()


def random(*shape, dtype=torch.bfloat16, **named):
    return torch.randn(*shape, device="cuda", dtype=dtype, **named)


def allocated():
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def exact(x, weight, dy=None, eps=1e-6):
    leaves = [tensor.detach().double().requires_grad_() for tensor in (x, weight)]
    y = leaves[0] * torch.rsqrt(leaves[0].square().mean(-1, keepdim=True) + eps) * leaves[1]
    return (y,) if dy is None else (y, *torch.autograd.grad(y, leaves, dy.double()))


def assert_close(found, wanted, unit=2e-2):
    for one, other in zip(found, wanted, strict=True):
        assert torch.isfinite(one).all()
        torch.testing.assert_close(one.double(), other, rtol=unit, atol=unit * max(1.0, other.abs().max().item()))


def test_a_server_of_many_row_counts_keeps_no_gpu_memory():
    weight = random(4096)
    with torch.no_grad():
        normtune.rms_norm(random(1, 4096), weight)
        before = allocated()
        for rows in range(1, 301):
            normtune.rms_norm(random(rows * 13, 4096), weight)
        assert allocated() == before
    assert len(launcher._binaries) <= 8 and len(CALLS["gemma"].operation.plans) == 301


def test_many_row_counts_keep_a_bounded_number_of_launches(monkeypatch):
    monkeypatch.setattr("normtune.kernels.calling.dispatch.MOST_KEPT", 10)
    weight = random(64).requires_grad_()
    for rows in range(1, 60):
        normtune.rms_norm(random(rows, 64).requires_grad_(), weight).sum().backward()
        normtune.rms_norm(random(rows, 128)[:, :64], weight).sum().backward()
    assert len(CALLS["gemma"].operation.plans) <= 10 and len(eager._launches) <= 10


def test_a_large_training_step_leaves_nothing():
    before = allocated()
    x, weight = random(1 << 16, 8192).requires_grad_(), random(8192).requires_grad_()
    normtune.rms_norm(x, weight).backward(random(1 << 16, 8192))
    del x, weight
    assert allocated() == before


def test_threads_that_meet_new_shapes_at_once():
    errors, barrier = [], threading.Barrier(8)

    def work(seed):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for number in range(12):
                    hidden = 64 * (number + 1)
                    weight = random(hidden).requires_grad_()
                    barrier.wait()
                    x = random(33 + seed % 2, hidden).requires_grad_()
                    y, dy = normtune.rms_norm(x, weight), random(33 + seed % 2, hidden)
                    assert_close((y, *torch.autograd.grad(y, (x, weight), dy)), exact(x, weight, dy))
        except Exception as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_the_first_call_may_come_under_capture():
    x, weight = random(64, 1024), random(1024)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = normtune.rms_norm(x, weight)
    x.normal_()
    graph.replay()
    assert_close((y,), exact(x, weight))
    leaves, dy = (random(300, 2048).requires_grad_(), random(2048).requires_grad_()), random(300, 2048)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = normtune.rms_norm(*leaves)
        gradients = torch.autograd.grad(y, leaves, dy)
    dy.normal_()
    graph.replay()
    assert_close((y, *gradients), exact(*leaves, dy))


@pytest.mark.parametrize("dtype", list(CALLS["gemma"].operation.dtypes))
@pytest.mark.parametrize("hidden", [64, 1000, 4096, 16384])
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_after_a_warmup_no_call_loads_a_binary(dtype, hidden, batch_invariant):
    assert normtune.warmup(hidden, dtype, batch_invariant=batch_invariant) >= 4
    loaded = set(launcher._binaries)
    for rows in (1, 2, 3, 31, 64, 65, 132, 133, 500, 1024, 2048, 2049, 4096, 4097, 20000):
        x, weight = random(rows, hidden, dtype=dtype), random(hidden, dtype=dtype)
        with torch.no_grad():
            normtune.rms_norm(x, weight, batch_invariant=batch_invariant)
        normtune.rms_norm(x.requires_grad_(), weight, batch_invariant=batch_invariant).sum().backward()
        y = normtune.rms_norm(x.detach().requires_grad_(), weight.requires_grad_(), batch_invariant=batch_invariant)
        y.backward(torch.ones_like(y))
    assert set(launcher._binaries) == loaded


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "hidden is 0"),
        ((65537,), "hidden is 65537"),
        ((64, torch.float64), "dtype is torch.float64"),
        ((64, torch.bfloat16, "cpu"), "device is cpu: expected a CUDA GPU"),
    ],
)
def test_a_warmup_of_something_else_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        normtune.warmup(*arguments)


def test_the_least_eps_gives_torchs_numbers():
    weight = torch.ones(256, device="cuda")
    for scale in (1e-19, 3e-20, 1e-21):
        x = random(8, 256, dtype=torch.float32) * scale
        for eps in (0.0, 1e-40):
            found, wanted = normtune.rms_norm(x, weight, eps), F.rms_norm(x, (256,), weight, eps)
            assert torch.isfinite(found).all()
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=0)
    x = random(8, 256, dtype=torch.float32)
    torch.testing.assert_close(normtune.rms_norm(x, weight, 0.0), F.rms_norm(x, (256,), weight, 0.0))


@pytest.mark.parametrize("dtype", list(CALLS["gemma"].operation.dtypes))
@pytest.mark.parametrize("shape", [(1, 64), (3, 1000), (5000, 128), (70000, 64), (300, 5120), (17, 32768), (4, 65536)])
def test_the_weight_gradient_alone(dtype, shape):
    x, weight, dy = (
        random(*shape, dtype=dtype),
        random(shape[1], dtype=dtype).requires_grad_(),
        random(*shape, dtype=dtype),
    )
    for inputs in (x, torch.cat([x, x], 1)[:, 1 : 1 + shape[1]]):
        before, peak = allocated(), 0
        y = normtune.rms_norm(inputs, weight)
        torch.cuda.reset_peak_memory_stats()
        (found,) = torch.autograd.grad(y, weight, dy)
        peak = torch.cuda.max_memory_allocated() - before - y.nbytes
        assert peak < x.nbytes + (64 << 20)  # no dx of x's size beside a copy of x
        (wanted,) = exact(inputs, weight, dy)[2:]
        part = (dy.double() * inputs.double()).abs().sum(0).mean()
        assert ((found.double() - wanted).abs() <= torch.finfo(dtype).eps * wanted.abs() + 1e-5 * part).all()
        assert all(
            torch.equal(torch.autograd.grad(normtune.rms_norm(inputs, weight), weight, dy)[0], found) for _ in range(3)
        )


def test_rows_up_to_the_limit_are_all_written():
    rows = 2**30
    x = torch.ones(rows, 1, device="cuda", dtype=torch.bfloat16).requires_grad_()
    weight = torch.full((1,), 0.5, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    y = normtune.rms_norm(x, weight)
    assert (y == 0.5).all()
    dx, dweight = torch.autograd.grad(y, (x, weight), torch.ones_like(y))
    assert (dx.abs() < 1e-2).all() and dweight.item() == rows
    more = torch.ones(rows + 5, 1, device="cuda", dtype=torch.bfloat16)
    assert (normtune.rms_norm(more, weight) == 0.5).all()


def test_what_has_no_memory_of_the_gpus_never_reaches_a_launch():
    x, weight = random(4, 64), random(64)
    wanted = normtune.rms_norm(x, weight)
    with FakeTensorMode() as mode:
        fake = normtune.rms_norm(mode.from_tensor(x), mode.from_tensor(weight))
    assert fake.device == x.device and fake.shape == x.shape
    for others in ((x.cpu(), weight), (x, weight.cpu())):
        with pytest.raises(ValueError, match="expected one device"):
            normtune.rms_norm(*others)
    assert torch.equal(normtune.rms_norm(x, weight), wanted)


@pytest.mark.parametrize("weight_dtype", [None, *CALLS["gemma"].operation.dtypes, torch.float64])
@pytest.mark.parametrize("dtype", [*CALLS["gemma"].operation.dtypes, torch.float64])
def test_dtypes_as_torch_takes_them(dtype, weight_dtype):
    x = random(33, 640, dtype=dtype).requires_grad_()
    weight = None if weight_dtype is None else random(640, dtype=weight_dtype).requires_grad_()
    leaves, dy = (x,) if weight is None else (x, weight), random(33, 640, dtype=dtype)
    found, wanted = (
        ((y := f(x, (640,), weight)), *torch.autograd.grad(y, leaves, dy)) for f in (normtune.rms_norm, F.rms_norm)
    )
    unit = 4 * max(torch.finfo(leaf.dtype).eps for leaf in leaves)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=unit, atol=unit * other.abs().max().item())


@pytest.mark.parametrize("size", ["machine epsilon", 1e-3])
def test_the_machine_epsilon_is_torchs(size):
    for dtype in (*CALLS["gemma"].operation.dtypes, torch.float64):
        x = 1e-3 * random(16, 256, dtype=dtype)
        unit = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(normtune.rms_norm(x, (256,)), F.rms_norm(x, (256,)), rtol=unit, atol=unit)


def test_second_derivatives_on_a_gpu():
    leaves = random(16, 256, dtype=torch.float32).requires_grad_(), random(256, dtype=torch.float32).requires_grad_()
    dy = random(16, 256, dtype=torch.float32).requires_grad_()
    found = []
    for function in (normtune.rms_norm, lambda x, weight: F.rms_norm(x, (256,), weight, 1e-6)):
        first = torch.autograd.grad(function(*leaves), leaves, dy, create_graph=True)
        found.append((*first, *torch.autograd.grad(sum(one.square().sum() for one in first), (*leaves, dy))))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * other.abs().max().item())
    plain = torch.autograd.grad(normtune.rms_norm(*leaves), leaves, dy)
    assert all(torch.equal(one, other) for one, other in zip(plain, found[0], strict=False))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_kernels_give_the_bits_of_eager_ones(mode):
    torch._dynamo.reset()
    normtune.use(compiled="kernel")
    module = normtune.RMSNorm(1024, eps=1e-6, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(module, fullgraph=True, mode=mode, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (4, 100, 333, 5000):
            x, dy = random(rows, 1024).requires_grad_(), random(rows, 1024)
            for one, other in zip(
                *(((y := f(x)), *torch.autograd.grad(y, (x, module.weight), dy)) for f in (compiled, module)),
                strict=True,
            ):
                assert torch.equal(one, other)


def test_two_threads_with_streams_of_their_own_keep_their_results_apart():
    inputs = [(random(2000, 4096), random(4096)) for _ in range(3)]
    wanted = [normtune.rms_norm(*pair) for pair in inputs]
    wrong = []

    def work(index):
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(200):
                if not torch.equal(normtune.rms_norm(*inputs[index]), wanted[index]):
                    wrong.append(index)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
