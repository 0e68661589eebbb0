"""Kernels of the fused addition, run by Triton's interpreter, beside the formulas of other libraries."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normtune import fused_add_rms_norm, qk_norm, rms_norm
from normtune.kernels.calling import eager
from normtune.kernels.fused_add_rms_norm.function import CALLS

pytestmark = pytest.mark.interpreter


ORDERS = ("float32", "sum", "llama")


@pytest.mark.one_in(11)
@pytest.mark.parametrize("rounding", ORDERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("hidden", [1, 64, 100, 2880])
def test_bits_are_those_of_others(agree, rounding, dtype, hidden):
    agree(fused_add_rms_norm, rounding, dtype, hidden, "cpu")


@pytest.mark.slow
def test_the_three_orders_differ():
    generator = torch.Generator().manual_seed(3)
    x, residual = (torch.randn(65, 300, generator=generator).half() for _ in range(2))
    weight = torch.randn(300, generator=generator).half()
    results = [fused_add_rms_norm(x, residual, weight, rounding=rounding)[0] for rounding in ORDERS]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert (results[one] != results[other]).float().mean() > 0.01


@pytest.mark.parametrize("rounding", ORDERS)
@pytest.mark.parametrize("residual_dtype", [torch.float32, None])
@pytest.mark.parametrize(("shape", "dtype"), [((5, 7, 100), torch.float32), ((130, 33), torch.float16)])
@pytest.mark.slow
def test_gradients_are_those_of_float64(rounding, residual_dtype, shape, dtype):
    generator = torch.Generator().manual_seed(5)
    x, residual, dy, ds = (torch.randn(shape, generator=generator).to(dtype) for _ in range(4))
    residual = residual.to(residual_dtype or dtype)
    weight = torch.randn(shape[-1], generator=generator).to(dtype)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, residual, weight)]
    y, s = fused_add_rms_norm(*leaves, 1e-6, 0.5, rounding=rounding)
    assert (y.dtype, s.dtype) == (dtype, residual.dtype)
    torch.autograd.backward((y, s), (dy, ds.to(s.dtype)))
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, residual, weight)]
    # The gradient is that at the sum as it was stored.
    total = exact[0] + exact[1] + (s.double() - x.double() - residual.double()).detach()
    normalized = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * (exact[2] + 0.5)
    torch.autograd.backward((normalized, total), (dy.double(), ds.double()))
    bound = {torch.float32: 2e-6, torch.float16: 2e-3}[dtype]
    for leaf, reference in zip(leaves, exact, strict=True):
        assert leaf.grad.dtype == leaf.dtype
        assert (leaf.grad - reference.grad).abs().max() <= bound * reference.grad.abs().max()


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    lead=st.lists(st.integers(1, 4), max_size=2),
    hidden=st.integers(1, 70),
    gaps=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    is_in_place=st.booleans(),
    rounding=st.sampled_from(ORDERS),
)
def test_any_shape_and_stride_gives_what_contiguous_tensors_give(lead, hidden, gaps, is_in_place, rounding):
    generator = torch.Generator().manual_seed(hidden)
    x, residual = (torch.randn(*lead, hidden + gap, generator=generator)[..., :hidden] for gap in gaps)
    weight = torch.randn(hidden, generator=generator)
    expected = fused_add_rms_norm(x.contiguous(), residual.contiguous(), weight, rounding=rounding)
    found = fused_add_rms_norm(x, residual, weight, rounding=rounding, in_place=is_in_place)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert not is_in_place or (found[0] is x and found[1] is residual)


def test_a_call_in_place_keeps_a_launch_of_its_own_and_writes_into_its_inputs(monkeypatch):
    x, residual, weight = torch.randn(9, 64), torch.randn(9, 64), torch.randn(64)
    expected = fused_add_rms_norm(x, residual, weight)
    plans = CALLS["float32"].operation.plans
    kept = len(plans)
    pointers = x.data_ptr(), residual.data_ptr()
    fused_add_rms_norm(x.clone(), residual.clone(), weight, in_place=True)
    assert len(plans) == kept + 1  # another launch may write its inputs
    y, s = fused_add_rms_norm(x, residual, weight, in_place=True)
    assert len(plans) == kept + 1
    assert (y.data_ptr(), s.data_ptr()) == pointers
    assert torch.equal(y, expected[0]) and torch.equal(s, expected[1])


def test_a_call_in_place_keeps_what_launches_elsewhere():
    x, residual, weight = torch.randn(9, 72), torch.randn(9, 72), torch.randn(72)
    fused_add_rms_norm(x.clone(), residual.clone(), weight, in_place=True)
    y, s = fused_add_rms_norm(x, residual, weight)
    assert torch.equal(s, x + residual)
    torch.testing.assert_close(y, torch.nn.functional.rms_norm(s, (72,), weight, 1e-6))


def test_one_tensor_twice_keeps_what_launches_two():
    x, residual, weight, other = torch.randn(9, 88), torch.randn(9, 88), torch.randn(88), torch.randn(88)
    assert torch.equal(fused_add_rms_norm(x, x, weight)[1], x + x)
    assert torch.equal(fused_add_rms_norm(x, residual, weight)[1], x + residual)
    qkv = torch.randn(9, 3 * 88)
    for weights in ((weight, weight), (weight, other)):
        out = qk_norm(qkv, *weights, 1, 1)
        for number, of_head in enumerate(weights):
            head = qkv[:, 88 * number : 88 * (number + 1)]
            expected = torch.nn.functional.rms_norm(head, (88,), of_head, 1e-6)
            torch.testing.assert_close(out[:, 88 * number : 88 * (number + 1)], expected)


def test_a_gradient_that_is_an_input_keeps_what_launches_others():
    x, dy = torch.randn(9, 104, requires_grad=True), torch.randn(9, 104)
    weight = torch.randn(104, requires_grad=True)
    for gradient in (x, dy):
        found = torch.autograd.grad(rms_norm(x, weight), (x, weight), gradient)
        expected = torch.autograd.grad(torch.nn.functional.rms_norm(x, (104,), weight, 1e-6), (x, weight), gradient)
        torch.testing.assert_close(found, expected)


def test_rows_have_the_same_bits_in_every_batch():
    x, residual, weight = torch.randn(40, 1000), torch.randn(40, 1000), torch.randn(1000)
    y, s = fused_add_rms_norm(x, residual, weight, batch_invariant=True)
    for first, last in ((0, 1), (3, 20)):
        part = fused_add_rms_norm(x[first:last], residual[first:last], weight, batch_invariant=True)
        assert torch.equal(part[0], y[first:last]) and torch.equal(part[1], s[first:last])


def test_a_config_is_legal_for_the_widest_rows(monkeypatch):
    problems = []
    real = eager.bind_from_table
    monkeypatch.setattr(eager, "bind_from_table", lambda request: problems.append(request.problem) or real(request))
    x, weight = torch.randn(11, 72).half().requires_grad_(), torch.randn(72).half().requires_grad_()
    y, s = fused_add_rms_norm(x, torch.randn(11, 72), weight)
    torch.autograd.backward((y, s), (torch.ones_like(y), torch.ones_like(s)))
    assert [(problem.operator, problem.dtype) for problem in problems] == [
        ("fused_add_rms_norm_forward", "float32"),
        ("fused_add_rms_norm_backward", "float32"),
    ]
