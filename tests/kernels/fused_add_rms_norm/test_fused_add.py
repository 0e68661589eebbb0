"""The fused addition without kernels: gradients of any order, compilers, transforms, module, wrong arguments."""

import pytest
import torch

import normtune
from normtune import FusedAddRMSNorm, fused_add_rms_norm

X, RESIDUAL, WEIGHT = torch.randn(4, 32), torch.randn(4, 32), torch.randn(32)


def plain(x, residual, weight, eps=1e-6):
    s = x + residual
    return s * torch.rsqrt(s.square().mean(-1, keepdim=True) + eps) * weight, s


def double(*shapes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["float32", "sum", "llama"])
def test_gradients_of_first_and_second_order(rounding):
    def function(*tensors):
        return fused_add_rms_norm(*tensors, rounding=rounding)

    tensors = double((2, 3, 5), (2, 3, 5), (5,))
    assert torch.autograd.gradcheck(function, tensors)
    assert torch.autograd.gradgradcheck(function, tensors)
    assert torch.autograd.gradcheck(lambda x, residual: fused_add_rms_norm(x, residual), tensors[:2])


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("needs", [(True, False, False), (False, True, False), (False, False, True)])
def test_gradients_of_a_part_of_results_and_inputs(used, needs):
    leaves = [
        tensor.detach().clone().requires_grad_(need)
        for tensor, need in zip(double((3, 8), (3, 8), (8,)), needs, strict=True)
    ]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    if needs[2] and used == (1,):
        assert torch.autograd.grad(fused_add_rms_norm(*leaves)[1].sum(), wanted, allow_unused=True)[0].abs().max() == 0
        return
    found, expected = (
        torch.autograd.grad(sum(function(*leaves)[index].sin().sum() for index in used), wanted)
        for function in (fused_add_rms_norm, plain)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.slow
def test_compilers_see_one_operator_forward_and_backward():
    def function(x, residual, weight):
        y, s = fused_add_rms_norm(x, residual, weight)
        return y.sin() + s.cos()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for rows in (3, 5, 8):
        leaves = [tensor.detach().requires_grad_() for tensor in (torch.randn(rows, 32), torch.randn(rows, 32), WEIGHT)]
        found, expected = (torch.autograd.grad(one(*leaves).sum(), leaves) for one in (compiled, function))
        torch.testing.assert_close(found, expected)


@pytest.mark.slow
def test_a_compiled_call_in_place_changes_its_inputs():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def function(x, residual, weight):
        fused_add_rms_norm(x, residual, weight, in_place=True)
        return x + residual

    x, residual = X.clone(), RESIDUAL.clone()
    y, s = fused_add_rms_norm(X, RESIDUAL, WEIGHT)
    torch.testing.assert_close(function(x, residual, WEIGHT), y + s)
    torch.testing.assert_close((x, residual), (y, s))


@pytest.mark.long
def test_transforms_of_functions():
    stacked = torch.randn(3, 4, 32), torch.randn(3, 4, 32)
    mapped = torch.func.vmap(fused_add_rms_norm, (0, 0, None))(*stacked, WEIGHT)
    torch.testing.assert_close(mapped, fused_add_rms_norm(*stacked, WEIGHT))
    tangent = torch.func.jvp(lambda x: fused_add_rms_norm(x, RESIDUAL, WEIGHT)[0], (X,), (X,))[1]
    torch.testing.assert_close(tangent, torch.func.jvp(lambda x: plain(x, RESIDUAL, WEIGHT)[0], (X,), (X,))[1])


@pytest.mark.slow
def test_the_operators_of_torch_pass_its_own_checks():
    x, residual, weight = (tensor.clone().requires_grad_() for tensor in (X, RESIDUAL, WEIGHT))
    ops = torch.ops.normtune
    torch.library.opcheck(ops.fused_add_rms_norm_forward, (x, residual, weight, 1e-6, 0.0, False, True))
    torch.library.opcheck(ops.fused_add_rms_norm_in_place, (X.clone(), RESIDUAL.clone(), WEIGHT, 1e-6, 0.0, False))


def test_the_module_has_the_state_of_other_norms():
    module = FusedAddRMSNorm(32, offset=1.0, rounding="sum")
    assert module.weight.abs().max() == 0
    module.load_state_dict(torch.nn.RMSNorm(32).state_dict())
    y, s = module(X, RESIDUAL)
    torch.testing.assert_close((y, s), fused_add_rms_norm(X, RESIDUAL, torch.ones(32), offset=1.0, rounding="sum"))
    assert "rounding='sum'" in repr(module)


@pytest.mark.parametrize(
    ("arguments", "named", "error", "text"),
    [
        ((X, RESIDUAL[:3], WEIGHT), {}, ValueError, r"residual has shape \(3, 32\): expected \(4, 32\), as x"),
        ((X, RESIDUAL.half(), WEIGHT), {}, ValueError, "residual is torch.float16: expected torch.float32, as x"),
        ((X, None, WEIGHT), {}, TypeError, "residual is None: expected a tensor"),
        ((X, RESIDUAL, WEIGHT[:3]), {}, ValueError, r"weight has shape \(3,\): expected \(32,\)"),
        ((X, RESIDUAL, WEIGHT), {"rounding": "gemma"}, ValueError, "rounding is 'gemma': expected one of float32, sum"),
        ((X, RESIDUAL, WEIGHT), {"eps": "1"}, TypeError, "eps is '1': expected a number"),
        ((X, X, WEIGHT), {"in_place": True}, ValueError, "x and residual share memory"),
        ((X.clone().requires_grad_(), RESIDUAL, WEIGHT), {"in_place": True}, ValueError, "in place has no gradients"),
    ],
)
def test_wrong_arguments_are_named_and_change_nothing(arguments, named, error, text):
    before = X.clone(), RESIDUAL.clone()
    with pytest.raises(error, match=text):
        fused_add_rms_norm(*arguments, **named)
    assert torch.equal(X, before[0]) and torch.equal(RESIDUAL, before[1])


def test_operators_are_known_and_swept_on_demand():
    from normtune.kernels.operator import operators
    from normtune.tuner.plan.plan import problems

    assert "fused_add_rms_norm_forward" in operators()
    assert {problem.operator for problem in problems([], ["bfloat16"], [(1, 64)])} == {
        "rms_norm_forward",
        "rms_norm_backward",
    }
    assert problems(["fused_add_rms_norm_forward"], ["bfloat16"], [(1, 64)])
    assert normtune.fused_add_rms_norm is fused_add_rms_norm
