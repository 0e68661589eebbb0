"""Gradients of a call that quantizes: the bits of those of the norm, and a model that trains; on a CPU."""

import re
from pathlib import Path

import pytest
import torch

import normtune

HIDDEN = 96


def tensors(dtype, has_residual, weight_dtype=torch.float32):
    generator = torch.Generator().manual_seed(5)
    shapes = [((4, 6, HIDDEN), dtype), ((HIDDEN,), weight_dtype)] + [((4, 6, HIDDEN), dtype)] * has_residual
    made = [torch.randn(shape, generator=generator).to(kind).requires_grad_() for shape, kind in shapes]
    return made if has_residual else [*made, None]


def quantized(x, weight, residual, **options):
    options = {"scaling": "row", "return_y": True, "round_sum": residual is not None} | options
    found = normtune.rms_norm_quantize_fp8(x, weight, 1e-5, 0.5, residual=residual, **options)
    return (found.y,) if residual is None else (found.y, found.sum)


def normed(x, weight, residual):
    if residual is None:
        return (normtune.rms_norm(x, weight, 1e-5, 0.5),)
    return normtune.fused_add_rms_norm(x, residual, weight, 1e-5, 0.5, rounding="sum")


def gradients(outputs, inputs, **options):
    generator = torch.Generator().manual_seed(6)
    incoming = [torch.randn(out.shape, generator=generator).to(out.dtype) for out in outputs]
    needed = [tensor for tensor in inputs if tensor is not None]
    return torch.autograd.grad(outputs, needed, incoming, **options)


def same(found, wanted):
    return len(found) == len(wanted) and all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("scaling", ["static", "row", "block", "tensor"])
def test_gradients_are_those_of_the_norm_to_the_bit(scaling, dtype, has_residual):
    inputs = tensors(dtype, has_residual)
    scale = torch.full((1,), 0.02) if scaling == "static" else None
    found = gradients(quantized(*inputs, scaling=scaling, scale=scale), inputs)
    assert same(found, gradients(normed(*inputs), inputs))


@pytest.mark.parametrize("needed", [(True, False), (False, True)])
def test_what_needs_no_gradient_gets_none(needed):
    x, weight, _ = tensors(torch.float32, False)
    x, weight = x.detach().requires_grad_(needed[0]), weight.detach().requires_grad_(needed[1])
    quantized(x, weight, None)[0].sum().backward()
    assert (x.grad is not None, weight.grad is not None) == needed


def test_without_a_weight_no_offset_is_added():
    x, _, _ = tensors(torch.float32, False)
    assert same(gradients(quantized(x, None, None), [x]), gradients(normed(x, None, None), [x]))


def test_each_of_two_outputs_may_have_no_gradient():
    inputs = tensors(torch.float32, True)
    for index in range(2):
        found, wanted = (torch.autograd.grad(call(*inputs)[index].sum(), inputs[::2]) for call in (quantized, normed))
        assert same(found, wanted)


def test_y_and_the_sum_have_a_graph_and_nothing_else_has():
    inputs = tensors(torch.bfloat16, True)
    options = {"scale": torch.ones(1), "return_amax": True, "return_transpose": True}
    for keep in (False, True):
        x, weight, residual = inputs
        found = normtune.rms_norm_quantize_fp8(x, weight, residual=residual, return_y=True, return_rstd=keep, **options)
        graded = {name for name, value in found._asdict().items() if value is not None and value.requires_grad}
        assert graded == {"y", "sum"} and (found.rstd is not None) == keep
    with torch.no_grad():
        assert not any(out.requires_grad for out in quantized(*inputs))


def test_gradients_have_gradients():
    inputs = tensors(torch.float32, True)
    twice = []
    for call in (quantized, normed):
        first = gradients(call(*inputs), inputs, create_graph=True)
        twice.append(torch.autograd.grad(sum(one.square().sum() for one in first), inputs))
    for found, wanted in zip(*twice, strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_saved_tensor_that_changed_is_refused():
    x, weight, _ = tensors(torch.float32, False)
    (y,) = quantized(x, weight, None)
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_the_mode_of_the_forward_is_that_of_the_backward_whatever_hooks_give_back():
    """On a CPU the mode adds the rows of dweight one by one."""
    inputs, found = tensors(torch.float32, False), {}
    for mode in (False, True):
        found[mode] = gradients(quantized(*inputs, batch_invariant=mode), inputs)
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda one: one), normtune.batch_invariant(mode):
            outputs = quantized(*inputs)
        with normtune.batch_invariant(not mode):
            assert same(gradients(outputs, inputs), found[mode])
    assert not same(found[False], found[True])


def test_transforms_of_functions_are_refused():
    x, weight, _ = tensors(torch.float32, False)
    with pytest.raises(RuntimeError, match="functorch transforms"):
        torch.func.grad(lambda x: quantized(x, weight.detach(), None)[0].sum())(x.detach())


@pytest.mark.parametrize("has_residual", [False, True])
def test_gradients_by_hand_are_those_of_autograd(has_residual):
    x, weight, residual = inputs = tensors(torch.bfloat16, has_residual)
    options = {"residual": residual, "round_sum": has_residual, "scaling": "row", "return_rstd": True}
    with torch.no_grad():
        found = normtune.rms_norm_quantize_fp8(x, weight, 1e-5, 0.5, **options)
    generator = torch.Generator().manual_seed(6)
    dy, ds = (torch.randn(x.shape, generator=generator).bfloat16() for _ in range(2))
    read = found.sum if has_residual else x
    of_sum = {"ds": ds} if has_residual else {}
    dx, dweight = normtune.rms_norm_backward(dy, read, weight, found.rstd, 1e-5, 0.5, **of_sum)
    wanted = gradients(normed(*inputs), inputs)
    assert same((dx, dweight), wanted[:2])
    some = {"needs_dx": False} | of_sum
    nothing, again = normtune.rms_norm_backward(dy, read, weight, found.rstd, 1e-5, 0.5, **some)
    assert nothing is None and torch.equal(again, dweight)
    wide, _ = normtune.rms_norm_backward(dy.float(), read, weight, found.rstd, 1e-5, 0.5, needs_dweight=False, **of_sum)
    assert _ is None and torch.equal(wide, dx)  # of a wider dy, in x's dtype


X, RSTD = torch.ones(2, 8), torch.ones(2)


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"x": [1.0]}, TypeError, "x is [1.0]: expected a tensor"),
        ({"x": torch.ones(())}, ValueError, "x has no dimension: expected (..., hidden)"),
        ({"dy": torch.ones(8)}, ValueError, "dy has shape (8,): expected (2, 8), as x"),
        ({"dy": X.to(torch.float8_e5m2)}, ValueError, "dy is torch.float8_e5m2: expected bfloat16, float16, float32"),
        ({"ds": torch.ones(2, 4)}, ValueError, "ds has shape (2, 4): expected (2, 8), as x"),
        ({"weight": torch.ones(2)}, ValueError, "weight has shape (2,): expected (8,)"),
        ({"rstd": torch.ones(2, 1)}, ValueError, "rstd is torch.float32 with shape (2, 1): expected torch.float32"),
        ({"rstd": RSTD.double()}, ValueError, "rstd is torch.float64 with shape (2,): expected torch.float32 with"),
        ({"rstd": RSTD.to("meta")}, ValueError, "rstd is on meta and x on cpu"),
        ({"eps": "1"}, TypeError, "eps is '1': expected a number"),
        ({"offset": float("inf")}, ValueError, "offset is inf: expected a finite number"),
        ({"needs_dx": 1}, TypeError, "needs_dx is 1: expected True or False"),
        ({"batch_invariant": 1}, TypeError, "batch_invariant is 1: expected True, False or None"),
    ],
)
def test_bad_arguments_are_named(given, error, text):
    with pytest.raises(error) as caught:
        normtune.rms_norm_backward(**{"dy": X, "x": X, "weight": torch.ones(8), "rstd": RSTD} | given)
    assert text in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"weight": torch.ones(4)}, r"weight has shape \(4,\): expected \(8,\), the last dimension of x"),
        ({"rstd": RSTD.double()}, r"rstd is torch.float64 with shape \(2,\): expected torch.float32"),
        ({"rstd": torch.ones(3)}, r"rstd is torch.float32 with shape \(3,\): expected torch.float32 with shape \(2,\)"),
        ({"dy": X.to(torch.float8_e5m2)}, "dy is torch.float8_e5m2: expected bfloat16, float16, float32"),
        ({"dy": torch.ones(2, 4)}, r"dy has shape \(2, 4\): expected \(2, 8\), as x"),
    ],
)
def test_compilers_and_operators_refuse_what_does_not_fit(given, text):
    read = {"dy": X, "x": X, "weight": torch.ones(8), "rstd": RSTD} | given
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        with pytest.raises(ValueError, match=text):
            torch.compile(normtune.rms_norm_backward, backend=backend)(**read)
    options = (1e-6, 0.0, None, True, True)
    for device in ("cpu", "meta"):
        with pytest.raises(ValueError, match=text):
            torch.ops.normtune.rms_norm_backward(*(one.to(device) for one in read.values()), *options)


class ByHand(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        found = normtune.rms_norm_quantize_fp8(x, weight, scaling="row", return_y=True, return_rstd=True)
        ctx.save_for_backward(x, weight, found.rstd)
        return found.y

    @staticmethod
    def backward(ctx, dy):
        return normtune.rms_norm_backward(dy, *ctx.saved_tensors)


@pytest.mark.slow
def test_the_backward_of_an_autograd_function_compiles():
    read = tensors(torch.float32, False)[:2]
    found, wanted = (
        torch.autograd.grad(call(*read).sin().sum(), read)
        for call in (torch.compile(ByHand.apply, backend="aot_eager", fullgraph=True), normtune.rms_norm)
    )
    assert same(found, wanted)


def example(root):
    """The functions of docs/python.md."""
    (code,) = re.findall(r"^```python\n(def product\(.*?)^```", (root / "docs/python.md").read_text(), re.M | re.S)
    made = {"torch": torch, "normtune": normtune}
    exec(code, made)
    return made["norm_linear"], made["NormLinear"].apply


@pytest.fixture(scope="module")
def layers():
    q, scale = torch.ones(16, 16).to(torch.float8_e4m3fn), torch.ones(16, 1)
    try:
        torch._scaled_mm(q, q.t(), scale_a=scale, scale_b=scale.t(), out_dtype=torch.bfloat16)
    except RuntimeError:
        pytest.skip("on a CPU this torch, as 2.11, multiplies FP8 with one scale alone")
    return example(Path(normtune.__file__).parent)


def parameters(dtype):
    generator = torch.Generator().manual_seed(7)
    x, target = (torch.randn(32, 64, generator=generator).to(dtype) for _ in range(2))
    made = [torch.randn(64, 64, generator=generator) / 8 for _ in range(2)]
    return x, target, [one.to(dtype).requires_grad_() for one in (torch.ones(64), made[0], torch.ones(64), made[1])]


def loss_of(layer, x, target, read):
    first, weight, second, last = read
    return (layer(x + layer(x, first, weight), second, last) - target).float().square().mean()


@pytest.mark.slow
@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_layers_of_the_document_give_the_same_gradients_and_train(layers, compiles):
    found = []
    for layer in layers:
        torch._dynamo.reset()
        x, target, read = parameters(torch.bfloat16)
        step = torch.compile(loss_of, backend="aot_eager", fullgraph=True) if compiles else loss_of
        found.append(torch.autograd.grad(step(layer, x, target, read), read))
        optimizer, losses = torch.optim.SGD(read, lr=0.5), []
        for _ in range(12):
            optimizer.zero_grad()
            losses.append(step(layer, x, target, read))
            losses[-1].backward()
            optimizer.step()
        assert losses[-1] < 0.8 * losses[0] and losses == sorted(losses, reverse=True)
    assert same(*found)
    x, target, read = parameters(torch.bfloat16)
    wide = torch.autograd.grad(
        loss_of(lambda x, norm, weight: normtune.rms_norm(x, norm) @ weight.t(), x, target, read), read
    )
    for one, other in zip(found[0], wide, strict=True):
        assert (one - other).float().norm() < 0.1 * other.float().norm()  # of operands with 3 bits of mantissa
