"""Arguments, traced calls and higher derivatives of the public function, and the reference of its operators."""

import pytest
import torch

import normtune
from normtune.kernels.operator import operator

X, WEIGHT, Z = torch.ones(3, 8), torch.ones(8), torch.ones(3, 8)
MODES = [
    *({"norm_before_gate": first, "group_size": size} for first in (True, False) for size in (None, 4)),
    {"z": None, "group_size": 4},
]


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"x": None}, TypeError, "x is None: expected a tensor"),
        ({"weight": None}, TypeError, "weight is None: expected a tensor"),
        ({"z": 2.0}, TypeError, "z is 2.0: expected a tensor"),
        ({"z": torch.ones(3, 4)}, ValueError, r"z has shape \(3, 4\): expected \(3, 8\), as x"),
        ({"z": torch.ones(3, 4), "group_size": 2}, ValueError, r"z has shape \(3, 4\): expected \(3, 8\), as x"),
        ({"weight": torch.ones(2, 4)}, ValueError, r"weight has shape \(2, 4\): expected one dimension"),
        ({"weight": torch.ones(2, 4), "group_size": 4}, ValueError, r"weight has shape \(2, 4\): expected \(8,\)"),
        ({"weight": torch.ones(7)}, ValueError, r"weight has shape \(7,\): expected \(8,\)"),
        ({"group_size": 3}, ValueError, "group_size is 3: expected a divisor of 8"),
        ({"group_size": 0}, ValueError, "group_size is 0: expected a divisor of 8"),
        ({"group_size": 2.0}, TypeError, "group_size is 2.0: expected an integer or None"),
        ({"group_size": True}, TypeError, "group_size is True: expected an integer or None"),
        ({"x": torch.ones(()), "group_size": 2}, ValueError, "x has no dimension"),
        ({"norm_before_gate": 1}, TypeError, "norm_before_gate is 1: expected True or False"),
        ({"rounding": "half"}, ValueError, "rounding is 'half': expected one of float32, hugging_face"),
        ({"rounding": "hugging_face", "offset": 1.0}, ValueError, "offset is 1.0 with the rounding 'hugging_face'"),
        ({"eps": "small"}, TypeError, "eps is 'small': expected a number"),
        ({"z": torch.ones(3, 8, dtype=torch.int32)}, ValueError, "z is torch.int32"),
        ({"batch_invariant": 1}, TypeError, "batch_invariant is 1"),
    ],
)
def test_wrong_arguments_are_named(changed, error, message):
    with pytest.raises(error, match=message):
        normtune.rms_norm_gated(**({"x": X, "weight": WEIGHT, "z": Z} | changed))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_derivatives_of_second_order_are_right(mode):
    generator = torch.Generator().manual_seed(0)
    x, z = (torch.randn(3, 8, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    weight = torch.randn(8, generator=generator, dtype=torch.float64).requires_grad_()
    mode = {"z": z} | mode
    leaves = [x, weight, *([z] if mode["z"] is not None else [])]

    def call(x, weight, z=None):
        return normtune.rms_norm_gated(x, weight, **(mode | {"z": z}))

    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_traced_calls_give_what_eager_ones_give(mode):
    generator = torch.Generator().manual_seed(0)
    x, z = (torch.randn(3, 2, 8, generator=generator).requires_grad_() for _ in range(2))
    weight = torch.randn(8, generator=generator).requires_grad_()
    mode = {"z": z} | mode
    leaves = [x, weight, *([z] if mode["z"] is not None else [])]
    y = normtune.rms_norm_gated(x, weight, **mode)
    compiled = torch.compile(normtune.rms_norm_gated, backend="aot_eager", fullgraph=True)(x, weight, **mode)
    torch.testing.assert_close(compiled, y)
    dy = torch.randn(y.shape, generator=generator)
    for one, wanted in zip(torch.autograd.grad(compiled, leaves, dy), torch.autograd.grad(y, leaves, dy), strict=True):
        torch.testing.assert_close(one, wanted)
    batched = torch.func.vmap(lambda x: normtune.rms_norm_gated(x, weight, **(mode | {"z": None})))(x)
    torch.testing.assert_close(batched, normtune.rms_norm_gated(x, weight, **(mode | {"z": None})))


def test_the_module_has_the_state_of_hugging_faces():
    module = normtune.RMSNormGated(8, group_size=4, norm_before_gate=False, offset=1.0, rounding="float32")
    assert list(module.state_dict()) == ["weight"] and (module.weight == 0).all()
    assert repr(module) == "RMSNormGated(8, eps=1e-06, offset=1.0, norm_before_gate=False, group_size=4)"
    assert torch.equal(
        module(X, Z), normtune.rms_norm_gated(X, WEIGHT * 0, Z, 1e-6, 1.0, norm_before_gate=False, group_size=4)
    )
    with pytest.raises(ValueError, match="group_size is 3: expected a divisor of 8"):
        normtune.RMSNormGated(8, group_size=3)
    with pytest.raises(ValueError, match="hidden_size is 0"):
        normtune.RMSNormGated(0)


def test_plain_calls_are_those_of_rms_norm():
    x = torch.randn(3, 8, dtype=torch.float64)
    assert torch.equal(normtune.rms_norm_gated(x, WEIGHT, group_size=8), normtune.rms_norm(x, WEIGHT))


@pytest.mark.parametrize("variant", ["", "gate_first", "no_gate"])
def test_the_reference_is_that_of_autograd(variant):
    forward, backward = operator("rms_norm_gated_forward"), operator("rms_norm_gated_backward")
    problem = backward.problem(9, 33, "float32", variant)
    tensors = backward.references().inputs(problem, torch.Generator().manual_seed(0), torch.device("cpu"), False)
    names = [name for name in ("x", "weight", "z") if name in tensors]
    leaves = {name: tensors[name].double().requires_grad_() for name in names}
    mode = {"norm_before_gate": variant != "gate_first", "offset": 0.25}
    y = normtune.rms_norm_gated(**leaves, **mode)
    found = forward.references().reference(forward.problem(9, 33, "float32", variant), tensors, 1e-6, 0.25)
    torch.testing.assert_close(found["y"].value, y.detach(), rtol=1e-12, atol=1e-14)
    tensors["rstd"] = found["rstd"].value
    found = backward.references().reference(problem, tensors, 1e-6, 0.25)
    gradients = torch.autograd.grad(y, list(leaves.values()), tensors["dy"].double())
    for name, gradient in zip(names, gradients, strict=True):
        torch.testing.assert_close(found[f"d{name}"].value, gradient, rtol=1e-10, atol=1e-12)
