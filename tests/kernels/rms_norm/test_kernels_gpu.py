"""Exact rounding, equal bits, wide offsets and odd alignments, on a GPU."""

import pytest
import torch

import normtune
from normtune.kernels.call import run
from normtune.kernels.operator import operator, operators
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing.gate import compare, gate

pytestmark = pytest.mark.gpu


DEVICE = torch.device("cuda", 0)
NAMES = tuple(name for name, spec in operators().items() if spec.is_default)


@pytest.mark.parametrize("hidden", [1, 17, 96, 1000, 4096, 8192, 12288, 65536])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("key", [(name, variant) for name in NAMES for variant in operator(name).variants])
def test_default_space_passes_the_gate(key, dtype, hidden, target):
    spec = operator(key[0])
    for rows in (1, 40_000):
        problem = spec.problem(rows, hidden, dtype, key[1])
        kept, _ = candidates(spec, spec.space("default", problem, target), problem, target)
        assert kept
        for candidate in kept[:: max(1, len(kept) // 6)]:
            gate(spec, problem, candidate, target, DEVICE)


@pytest.mark.parametrize("hidden", [96, 4096, 12288])
@pytest.mark.parametrize(
    "key", [(name, variant) for name, spec in operators().items() if not spec.is_default for variant in spec.variants]
)
def test_operators_that_are_swept_on_demand_pass_the_gate(key, hidden, target):
    spec = operator(key[0])
    for rows in (1, 4099):
        problem = spec.problem(rows, hidden, "bfloat16", key[1])
        kept, _ = candidates(spec, spec.space("default", problem, target), problem, target)
        if not kept and "fnuz" in key[1]:
            pytest.skip("dtypes of AMD's GPUs")
        for candidate in kept[:: max(1, len(kept) // 3)]:
            gate(spec, problem, candidate, target, DEVICE)


@pytest.mark.parametrize("name", NAMES)
def test_offsets_beyond_two_to_the_31_elements(name, target):
    spec = operator(name)
    hidden, rows = 4096, (1 << 19) + 5
    problem = spec.problem(rows, hidden, "bfloat16", spec.variants[1])
    generator = torch.Generator(DEVICE).manual_seed(0)
    tail = spec.problem(9, hidden, "bfloat16", spec.variants[1])
    inputs = spec.references().inputs(tail, generator, DEVICE, True)
    expected = spec.references().reference(tail, inputs, 1e-6, 0.0)
    tensors = {}
    for buffer in spec.buffers(problem):
        tensors[buffer.name] = torch.zeros(buffer.shape, dtype=getattr(torch, buffer.dtype), device=DEVICE)
        if buffer.name in inputs:
            tensors[buffer.name][-9:] = inputs[buffer.name][-9:]
    tensors["weight"] = inputs["weight"]
    kept, _ = candidates(spec, spec.space("default", problem, target), problem, target)
    for schedule in {candidate.config.schedule for candidate in kept}:
        launch = next(candidate.launch for candidate in kept if candidate.config.schedule == schedule)
        for output in expected:
            tensors[output].fill_(float("nan"))
        run(spec.calls_function()(launch, problem, tensors, None, 1e-6, 0.0))
        compare({output: tensors[output][-9:] for output in expected}, expected)
        assert all(bool(torch.isfinite(tensors[output]).all()) for output in expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("rows", [1, 17, 300])
@pytest.mark.parametrize("hidden", [63, 64, 1000, 5120])
def test_alignment_of_what_is_passed_does_not_matter(dtype, rows, hidden):
    generator = torch.Generator(DEVICE).manual_seed(0)
    odd = torch.randn((rows + 1) * hidden + 1, generator=generator, device=DEVICE).to(dtype)
    wide = torch.randn(rows, hidden + 3, generator=generator, device=DEVICE).to(dtype)
    weight = torch.randn(hidden, generator=generator, device=DEVICE).to(dtype)
    offset_by_one = odd[1 : 1 + rows * hidden].view(rows, hidden)
    second_row_on = odd[: (rows + 1) * hidden].view(rows + 1, hidden)[1:]
    spec = operator("rms_norm_forward")
    problem = spec.problem(rows, hidden, str(dtype).removeprefix("torch."), "no_rstd")
    for x in (offset_by_one, second_row_on, wide[:, :hidden], wide[:, 3:]):
        expected = spec.references().reference(problem, {"x": x, "weight": weight}, 1e-6, 0.0)
        compare({"y": normtune.rms_norm(x, weight)}, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("weight_dtype", ["same", torch.float32])
@pytest.mark.parametrize("shape", [(1, 64), (3, 7, 768), (4096, 128), (300, 5120), (2, 32768)])
def test_gradients_are_within_rounding(dtype, weight_dtype, shape):
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn(shape, generator=generator, device=DEVICE).to(dtype).requires_grad_()
    weight = torch.randn(shape[-1], generator=generator, device=DEVICE)
    weight = weight.to(dtype if weight_dtype == "same" else weight_dtype).requires_grad_()
    dy = torch.randn(shape, generator=generator, device=DEVICE).to(dtype)
    y = normtune.rms_norm(x, weight, 1e-6, 1.0)
    dx, dweight = torch.autograd.grad(y, (x, weight), dy)
    exact_x, exact_weight = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    exact = torch.nn.functional.rms_norm(exact_x, shape[-1:], exact_weight + 1.0, 1e-6)
    exact_dx, exact_dweight = torch.autograd.grad(exact, (exact_x, exact_weight), dy.double())
    assert (y.dtype, dx.dtype, dweight.dtype) == (dtype, dtype, weight.dtype)
    for found, wanted in ((y, exact), (dx, exact_dx), (dweight, exact_dweight)):
        unit = torch.finfo(found.dtype).eps
        scale = wanted.abs() + wanted.abs().mean()
        assert ((found.double() - wanted).abs() <= (unit + 64 * 2**-23) * scale).all()


@pytest.mark.parametrize("shape", [(1, 4096), (4096, 1024), (70000, 64), (513, 16384)])
def test_the_same_call_gives_the_same_bits(shape):
    x = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(shape[1], device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
    first, *others = ((y := normtune.rms_norm(x, weight), *torch.autograd.grad(y, (x, weight), dy)) for _ in range(20))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_no_rows_and_other_streams():
    weight = torch.ones(64, device=DEVICE, requires_grad=True)
    x = torch.zeros(0, 64, device=DEVICE, requires_grad=True)
    normtune.rms_norm(x, weight).sum().backward()
    assert x.grad.shape == (0, 64) and (weight.grad == 0).all()
    x = torch.randn(5000, 64, device=DEVICE)
    wanted = normtune.rms_norm(x, weight)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = normtune.rms_norm(x, weight)
    stream.synchronize()
    assert torch.equal(found, wanted)


def test_tables_are_chosen_and_taken_back():
    x, weight = torch.randn(4096, 256, device=DEVICE), torch.ones(256, device=DEVICE)
    tuned = normtune.rms_norm(x, weight)
    try:
        normtune.use_table(None)
        torch.testing.assert_close(normtune.rms_norm(x, weight), tuned)
    finally:
        normtune.use_table()
    assert torch.equal(normtune.rms_norm(x, weight), tuned)
