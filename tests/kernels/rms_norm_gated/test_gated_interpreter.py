"""The function and the module, with gradients, run by Triton's interpreter."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import silu

import normtune

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("counted_loops", "rounded_bfloat16")]


def exact(x, weight, z, eps, offset, norm_before_gate, group_size):
    """The definition, in torch's operations."""
    u = x if z is None or norm_before_gate else x * silu(z)
    groups = u.unflatten(-1, (-1, group_size or x.shape[-1]))
    y = (groups / torch.sqrt(groups.square().mean(-1, keepdim=True) + eps)).flatten(-2) * (weight + offset)
    return y * silu(z) if z is not None and norm_before_gate else y


def check(x, weight, z, norm_before_gate=True, group_size=None):
    """Values and gradients against those of float64 autograd."""
    leaves = {"x": x, "weight": weight} | ({} if z is None else {"z": z})
    narrow = {name: tensor.detach().requires_grad_() for name, tensor in leaves.items()}
    wide = {name: tensor.detach().double().requires_grad_() for name, tensor in leaves.items()}
    mode = {"norm_before_gate": norm_before_gate, "group_size": group_size}
    y = normtune.rms_norm_gated(**narrow, eps=1e-5, offset=0.5, **mode)
    expected = exact(**({"z": None} | wide), eps=1e-5, offset=0.5, **mode)
    assert y.shape == x.shape and y.dtype == x.dtype and y.is_contiguous()
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    dy = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    found = torch.autograd.grad(y, list(narrow.values()), dy)
    for name, one, wanted in zip(
        leaves, found, torch.autograd.grad(expected, list(wide.values()), dy.double()), strict=True
    ):
        torch.testing.assert_close(one.double(), wanted, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("norm_before_gate", [True, False])
@pytest.mark.parametrize(
    ("shape", "group_size"),
    [((5, 64), None), ((3, 4, 48), 16), ((2, 3, 2, 30), 10), ((60,), 15), ((7, 8), 1), ((0, 16), 4), ((3, 40), 40)],
)
@pytest.mark.slow
def test_values_and_gradients_are_those_of_float64(shape, group_size, norm_before_gate):
    generator = torch.Generator().manual_seed(0)
    x, z = (torch.randn(shape, generator=generator) for _ in range(2))
    weight = torch.randn(shape[-1], generator=generator)
    check(x, weight, z, norm_before_gate, group_size)
    check(x, weight, None, norm_before_gate, group_size)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(
    extents=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    group_size=st.integers(1, 40),
    groups=st.integers(1, 4),
    gaps=st.tuples(*[st.integers(0, 9)] * 4),
    order=st.booleans(),
    norm_before_gate=st.booleans(),
)
def test_shapes_and_strides_are_free(extents, group_size, groups, gaps, order, norm_before_gate):
    hidden = group_size * groups
    generator = torch.Generator().manual_seed(hidden)

    def strided(first, second):
        wide = torch.randn(*extents[:-1], extents[-1] + first, hidden + second, generator=generator)
        view = wide[..., : extents[-1], second:]
        return view.transpose(0, -2).contiguous().transpose(0, -2) if order else view

    check(
        strided(*gaps[:2]), torch.randn(hidden, generator=generator), strided(*gaps[2:]), norm_before_gate, group_size
    )


@pytest.mark.parametrize("norm_before_gate", [True, False])
def test_nan_and_infinities_are_those_of_float64(norm_before_gate):
    infinity, nan = float("inf"), float("nan")
    x = torch.tensor([[1.0, -2.0, 0.0, 3.0]]).repeat(9, 1)
    z = torch.ones(9, 4)
    x[1, 0], x[2, 0], x[3, 0], z[4, 1], z[5, 1], z[6, 1], z[7, 1] = (
        infinity,
        -infinity,
        nan,
        infinity,
        -infinity,
        nan,
        -200,
    )
    x[8] = 0.0
    weight = torch.tensor([1.0, -1.0, 2.0, 0.5])
    for z_given in (z, None):
        narrow = [tensor if tensor is None else tensor.clone().requires_grad_() for tensor in (x, weight, z_given)]
        wide = [tensor if tensor is None else tensor.double().requires_grad_() for tensor in (x, weight, z_given)]
        y = normtune.rms_norm_gated(*narrow, eps=0.0, norm_before_gate=norm_before_gate)
        expected = exact(*wide, 0.0, 0.0, norm_before_gate, None)
        torch.testing.assert_close(y.double(), expected, equal_nan=True, rtol=1e-5, atol=1e-30)
        assert torch.equal(y.isnan(), expected.isnan())
        leaves = [[tensor for tensor in tensors if tensor is not None] for tensors in (narrow, wide)]
        for one, wanted in zip(
            torch.autograd.grad(y[:8].sum(), leaves[0]), torch.autograd.grad(expected[:8].sum(), leaves[1]), strict=True
        ):
            assert torch.equal(one.isfinite(), wanted.isfinite())


def hugging_face(x, weight, z, eps, norm_before_gate, group_size):
    """The roundings of transformers' classes: normalized values to x's dtype, then their product with the weight."""
    wide = x.float() if z is None or norm_before_gate else x.float() * silu(z.float())
    groups = wide.unflatten(-1, (-1, group_size or x.shape[-1]))
    xhat = (groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + eps)).flatten(-2)
    y = weight * xhat.to(x.dtype)
    return (y * silu(z.float()) if z is not None and norm_before_gate else y).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("norm_before_gate", [True, False])
@pytest.mark.parametrize("weight_dtype", [None, torch.float32])
@pytest.mark.slow
def test_hugging_faces_roundings_are_met_bit_by_bit(dtype, norm_before_gate, weight_dtype):
    generator = torch.Generator().manual_seed(1)
    x, z = (torch.randn(4, 4, 96, generator=generator).to(dtype) for _ in range(2))
    weight = torch.randn(96, generator=generator).to(weight_dtype or dtype)
    for group_size in (None, 32):
        arguments = x, weight, z, 1e-6
        mode = {"norm_before_gate": norm_before_gate, "group_size": group_size}
        y = normtune.rms_norm_gated(*arguments, rounding="hugging_face", **mode)
        differing = (y != hugging_face(*arguments, **mode)).float().mean().item()
        assert differing < 1e-3  # where the last bit of float32's sums or exponentials decides a rounding
        other = normtune.rms_norm_gated(*arguments, **mode)
        assert (y != other).float().mean().item() > 0.05


def test_transformers_own_classes():
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    mamba = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    generator = torch.Generator().manual_seed(1)
    x, z = (torch.randn(6, 8, 128, generator=generator).bfloat16() for _ in range(2))
    theirs = qwen.Qwen3NextRMSNormGated(128).bfloat16()
    torch.nn.init.normal_(theirs.weight, generator=generator)
    ours = normtune.RMSNormGated(128, dtype=torch.bfloat16, rounding="hugging_face")
    ours.load_state_dict(theirs.state_dict())
    assert (ours(x, z) != theirs(x, z)).float().mean().item() < 1e-3
    theirs = mamba.MambaRMSNormGated(128, group_size=32).bfloat16()
    torch.nn.init.normal_(theirs.weight, generator=generator)
    ours = normtune.RMSNormGated(
        128, dtype=torch.bfloat16, rounding="hugging_face", norm_before_gate=False, group_size=32
    )
    ours.load_state_dict(theirs.state_dict())
    assert (ours(x, z) != theirs(x, z)).float().mean().item() < 1e-3


@pytest.mark.parametrize("hidden", [64, 128, 192])
@pytest.mark.parametrize(
    "case", ["heads", "no gate", "groups", "gate first", "strided x", "strided z", "two dimensions"]
)
def test_what_atom_sends_to_its_fallback_is_launched(monkeypatch, hidden, case):
    """ATOM #697 takes contiguous x and z (tokens, heads, 128), gated after the norm of whole rows."""
    generator = torch.Generator().manual_seed(hidden)
    projection = torch.randn(3, 4, 3 * hidden, generator=generator).bfloat16()
    x, z = projection[..., :hidden].contiguous(), projection[..., hidden : 2 * hidden].contiguous()
    weight, options = torch.rand(hidden, generator=generator).bfloat16(), {}
    if case == "no gate":
        z, options = None, {"rounding": "hugging_face"}
    if case == "groups":
        options = {"group_size": 32}
    if case == "gate first":
        options = {"norm_before_gate": False}
    if case == "strided x":
        x = projection[..., :hidden]
    if case == "strided z":
        z = projection[..., hidden : 2 * hidden]
    if case == "two dimensions":
        x, z = x[0], z[0]
    from normtune.kernels.rms_norm_gated.function import GatedDecomposition

    monkeypatch.setattr(GatedDecomposition, "forward", lambda *_: pytest.fail("computed without a kernel"))
    y = normtune.rms_norm_gated(x, weight, z, **options)
    mode = {"norm_before_gate": True, "group_size": None} | {key: options[key] for key in options if key != "rounding"}
    expected = exact(x.double(), weight.double(), None if z is None else z.double(), 1e-6, 0.0, **mode)
    torch.testing.assert_close(y.double(), expected, rtol=2**-7, atol=1e-3)


def test_a_frozen_weight_and_gates_of_another_dtype():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 32, generator=generator).half().requires_grad_()
    z = torch.randn(6, 32, generator=generator).requires_grad_()
    y = normtune.rms_norm_gated(x, torch.ones(32).half(), z)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == torch.float16 and z.grad.dtype == torch.float32
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, z)]
    exact(wide[0], 1.0, wide[1], 1e-6, 0.0, True, None).sum().backward()
    torch.testing.assert_close(z.grad.double(), wide[1].grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(x.grad.double(), wide[0].grad, rtol=1e-2, atol=1e-2)


@pytest.mark.slow
def test_batch_invariant_rows_have_the_same_bits():
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(9, 3, 101, generator=generator)
    x, z, weight = wide[..., :48], wide[..., 48:96], torch.randn(48, generator=generator)
    whole = normtune.rms_norm_gated(x, weight, z, group_size=16, batch_invariant=True)
    part = normtune.rms_norm_gated(x[4:5].clone(), weight, z[4:5].clone(), group_size=16, batch_invariant=True)
    assert torch.equal(whole[4:5], part)


@pytest.mark.slow
def test_rows_that_divide_in_another_way_are_another_launch():
    memory = torch.randn(4000, generator=torch.Generator().manual_seed(0))
    weight = torch.ones(16)
    for outer, inner in ((2, 6), (3, 4), (4, 3), (6, 2)):
        x = memory.as_strided((outer, inner, 16), (300, 20, 1))
        z = memory.as_strided((outer, inner, 16), (200, 16, 1), 7)
        check(x, weight, z)
