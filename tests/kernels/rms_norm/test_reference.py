"""The reference is right and its bounds are the documented ones."""

import pytest
import torch

from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.reference import inputs, reference, unit_in_last_place


@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", 2.0**-7), ("float16", 2.0**-10), ("float32", 2.0**-23)])
def test_unit_in_last_place(dtype, unit):
    dtype = getattr(torch, dtype)
    values = torch.tensor([1.0, 1.5, 2.0, -4.0, 0.75], dtype=torch.float64)
    expected = unit * torch.tensor([1, 1, 2, 4, 0.5], dtype=torch.float64)
    assert torch.equal(unit_in_last_place(values, dtype), expected)
    zero = unit_in_last_place(torch.zeros(1, dtype=torch.float64), dtype)
    assert zero.item() == torch.finfo(dtype).smallest_normal * unit


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_forward_and_gradients_are_those_of_autograd(offset):
    generator = torch.Generator().manual_seed(0)
    cpu = torch.device("cpu")
    forward, backward = operator("rms_norm_forward"), operator("rms_norm_backward")
    tensors = inputs(backward.problem(9, 33, "float32"), generator, cpu, hostile=False)
    x = tensors["x"].double().requires_grad_()
    weight = tensors["weight"].double().requires_grad_()
    y = torch.nn.functional.rms_norm(x, (33,), weight + offset, 1e-6)
    found = reference(forward.problem(9, 33, "float32"), tensors, 1e-6, offset)
    assert torch.allclose(found["y"].value, y, rtol=1e-12)
    assert torch.allclose(found["rstd"].value, torch.rsqrt(x.square().mean(1) + 1e-6), rtol=1e-12)

    dx, dweight = torch.autograd.grad(y, (x, weight), tensors["dy"].double())
    tensors["rstd"] = found["rstd"].value
    found = reference(backward.problem(9, 33, "float32"), tensors, 1e-6, offset)
    assert torch.allclose(found["dx"].value, dx, rtol=1e-10, atol=1e-13)
    assert torch.allclose(found["dweight"].value, dweight, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_hostile_rows_are_finite_and_what_they_are_called(dtype):
    spec = operator("rms_norm_backward")
    tensors = inputs(spec.problem(11, 96, dtype), torch.Generator().manual_seed(0), torch.device("cpu"), hostile=True)
    x = tensors["x"]
    assert torch.isfinite(x).all() and torch.isfinite(tensors["rstd"]).all()
    assert (x[1] == 0).all() and (x[6] == 0).all()
    assert 0 < x[2].abs().max() < 0.01
    assert x[3].abs().max() > 1e4
    assert x[4].abs().max() >= 5e4 and x[4].abs().median() < 10
    for value, tolerance in reference(spec.problem(11, 96, dtype), tensors, 1e-6, 0.25).values():
        assert torch.isfinite(value).all() and (tolerance > 0).all()


def test_variants_have_fewer_outputs():
    forward, backward = operator("rms_norm_forward"), operator("rms_norm_backward")
    generator, cpu = torch.Generator(), torch.device("cpu")
    problem = forward.problem(3, 8, "float32", "no_rstd")
    assert set(reference(problem, inputs(problem, generator, cpu, False), 1e-6, 0.0)) == {"y"}
    problem = backward.problem(3, 8, "float32", "no_dweight")
    assert set(reference(problem, inputs(problem, generator, cpu, False), 1e-6, 0.0)) == {"dx"}


def test_the_longest_chain_of_sums_of_a_launch_is_allowed():
    """One warp sums 4096 squares: 128 a lane, one after the other. Four units in the last place are exceeded."""
    problem = operator("rms_norm_forward").problem(1, 4096, "bfloat16")
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(8192, 4096, generator=generator).bfloat16()[6040:6050]
    lanes = x.float().square().view(len(x), 32, 128)
    total = lanes[..., 0].clone()
    for number in range(1, lanes.shape[-1]):
        total += lanes[..., number]
    while total.shape[1] > 1:
        total = total[:, ::2] + total[:, 1::2]
    rstd = torch.rsqrt(total[:, 0] / 4096 + 1e-6)
    expected = reference(problem, {"x": x, "weight": torch.ones(4096)}, 1e-6, 0.0)["rstd"]
    error = (rstd.double() - expected.value).abs()
    assert (error > 4 * unit_in_last_place(expected.value, torch.float32)).any()
    assert (error <= expected.tolerance).all()
    without_one = torch.rsqrt(x[:, 1:].double().square().sum(1) / 4096 + 1e-6)
    assert ((without_one - expected.value).abs() > expected.tolerance).sum() > 8
