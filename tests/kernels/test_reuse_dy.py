"""The option `reuse_dy` of functions and modules: dx in the memory of dy where that is sound, and nowhere else."""

import pytest
import torch

from normtune import FusedAddRMSNorm, RMSNorm, RMSNormGated, fused_add_rms_norm, rms_norm, rms_norm_gated, use_table
from normtune.kernels.calling import dispatch
from normtune.kernels.rms_norm.operator import RMSNormConfig

ROWS, HIDDEN = 9, 520


@pytest.fixture(
    params=[pytest.param("cpu", marks=pytest.mark.interpreter), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def device(request):
    """With the default configs, whose launches may all reuse dy at this hidden size."""
    use_table(None)
    yield request.param
    use_table()


def made(device, seed, *shape, dtype=torch.float16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def rows(device, seed, dtype=torch.float16):
    return made(device, seed, ROWS, HIDDEN, dtype=dtype)


def leaves_of(device, count):
    """`count` tensors with rows, and a weight."""
    tensors = [*(rows(device, seed) for seed in range(count)), made(device, 8, HIDDEN)]
    return [tensor.requires_grad_() for tensor in tensors]


def fused(x, residual, weight=None, **options):
    """The first result alone, so that the gradient of the sum is zeros."""
    return fused_add_rms_norm(x, residual, weight, **options)[0]


def gated(x, z, weight, **options):
    return rms_norm_gated(x, weight, z, **options)


# The function of its leaves, tensors with rows among them, and options.
CASES = {
    "rms_norm": (rms_norm, 1, {}),
    "rms_norm of llama": (rms_norm, 1, {"casting": "llama"}),
    "rms_norm, batch-invariant": (rms_norm, 1, {"batch_invariant": True}),
    "fused": (fused, 2, {}),
    "gated": (gated, 2, {}),
    "gate first": (gated, 2, {"norm_before_gate": False}),
    "groups": (gated, 2, {"group_size": HIDDEN // 2, "offset": 0.5}),
    "no gate": (lambda x, weight, **options: rms_norm_gated(x, weight, **options), 1, {}),
    "no gate, groups": (lambda x, weight, **options: rms_norm_gated(x, weight, **options), 1, {"group_size": 260}),
}


def is_kept(call, dy, wanted, leaves):
    """Whether the gradients of a call are the wanted ones, and dy, whatever it is a view of, as it was."""
    whole = dy if dy._base is None else dy._base
    before = whole.detach().clone()
    found = torch.autograd.grad(call, leaves, dy)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    return torch.equal(whole, before) and found[0].data_ptr() != dy.data_ptr()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_dx_is_in_the_memory_of_dy_with_the_same_bits(device, case):
    function, count, options = CASES[case]
    leaves, dy = leaves_of(device, count), rows(device, 9)
    wanted = torch.autograd.grad(function(*leaves, **options), leaves, dy)
    for _ in range(3):  # new, and kept
        given = dy.clone()
        found = torch.autograd.grad(function(*leaves, reuse_dy=True, **options), leaves, given)
        assert found[0].data_ptr() == given.data_ptr()
        assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
        given = dy.clone()
        found = torch.autograd.grad(function(*leaves, **options), leaves, given)
        assert torch.equal(given, dy) and all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["rms_norm", "fused", "gated"])
def test_frozen_weights_and_missing_ones(device, case):
    function, count, options = CASES[case]
    *leaves, weight = leaves_of(device, count)
    for frozen in (weight.detach(), *([] if case == "gated" else [None])):
        dy = rows(device, 9)
        wanted = torch.autograd.grad(function(*leaves, frozen, **options), leaves, dy)
        for _ in range(2):
            given = dy.clone()
            found = torch.autograd.grad(function(*leaves, frozen, reuse_dy=True, **options), leaves, given)
            assert found[0].data_ptr() == given.data_ptr()
            assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", ["rms_norm", "fused", "gated", "groups"])
def test_a_gradient_that_no_new_tensor_looks_like_is_kept(device, case):
    function, count, options = CASES[case]
    leaves, wide = leaves_of(device, count), made(device, 9, ROWS, HIDDEN + 8)
    one = made(device, 9, 1, HIDDEN)
    unaligned = made(device, 9, ROWS * HIDDEN + 1)[1:].view(ROWS, HIDDEN)
    turned = made(device, 9, HIDDEN, ROWS).t()
    expanded = one.expand(ROWS, HIDDEN)
    negated = torch._neg_view(rows(device, 9))
    for dy in (wide[:, :HIDDEN], wide[:, 8:], expanded, turned, unaligned, negated):
        wanted = torch.autograd.grad(function(*leaves, **options), leaves, dy)
        for _ in range(2):
            assert is_kept(function(*leaves, reuse_dy=True, **options), dy, wanted, leaves)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["rms_norm", "fused", "gated"])
def test_a_gradient_that_is_a_saved_tensor_is_kept(device, case):
    function, count, options = CASES[case]
    leaves = leaves_of(device, count)
    for dy in {rms_norm: leaves[:1]}.get(function, leaves[:count]):
        dy = dy.detach()
        before = dy.clone()
        wanted = torch.autograd.grad(function(*leaves, **options), leaves, dy)
        if function is fused:  # which saves the sum, and not its terms
            continue
        for _ in range(2):
            found = torch.autograd.grad(function(*leaves, reuse_dy=True, **options), leaves, dy)
            assert torch.equal(dy, before)
            assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.slow
def test_one_gradient_for_both_results_is_kept(device):
    leaves, dy = leaves_of(device, 2), rows(device, 9)
    before = dy.clone()
    wanted = torch.autograd.grad(fused_add_rms_norm(*leaves), leaves, (dy, dy))
    for _ in range(2):
        found = torch.autograd.grad(fused_add_rms_norm(*leaves, reuse_dy=True), leaves, (dy, dy))
        assert torch.equal(dy, before) and all(
            torch.equal(one, other) for one, other in zip(found, wanted, strict=True)
        )


def test_a_gradient_of_another_dtype_than_dx_is_kept(device):
    x, residual, weight = (
        rows(device, 0).requires_grad_(),
        rows(device, 1, torch.float32).requires_grad_(),
        made(device, 8, HIDDEN),
    )
    dy = rows(device, 9)
    wanted = torch.autograd.grad(fused(x, residual, weight), (x, residual), dy)
    for _ in range(2):
        assert is_kept(fused(x, residual, weight, reuse_dy=True), dy, wanted, (x, residual))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["rms_norm", "fused", "gated"])
def test_a_gradient_that_is_differentiated_again_is_kept(device, case):
    function, count, options = CASES[case]
    leaves, dy = leaves_of(device, count), rows(device, 9)
    before = dy.clone()

    def second(**more):
        given = dy.requires_grad_()
        first = torch.autograd.grad(function(*leaves, **options, **more), leaves, given, create_graph=True)
        return torch.autograd.grad(sum(one.float().square().sum() for one in first), [*leaves, given])

    wanted, found = second(), second(reuse_dy=True)
    assert torch.equal(dy, before) and all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    given = dy.detach().requires_grad_()  # no graph, but the caller's leaf
    torch.autograd.grad(function(*leaves, reuse_dy=True, **options), leaves, given)
    assert torch.equal(given, before)


@pytest.mark.slow
def test_a_gradient_that_only_the_weight_needs_is_kept(device):
    x, weight, dy = rows(device, 0), made(device, 8, HIDDEN).requires_grad_(), rows(device, 9)
    before = dy.clone()
    for _ in range(2):
        torch.autograd.grad(rms_norm(x, weight, reuse_dy=True), weight, dy)
        assert torch.equal(dy, before)


def test_what_saved_the_gradient_is_told(device):
    (x, weight), dy = leaves_of(device, 1), rows(device, 9)
    factor = torch.ones_like(dy).requires_grad_()
    saved = (factor * dy).sum()
    torch.autograd.grad(rms_norm(x, weight, reuse_dy=True), (x, weight), dy)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()


@pytest.mark.slow
def test_a_launch_whose_programs_share_dy_keeps_it(device, monkeypatch):
    config = RMSNormConfig("row", 1, 4, 1, 0, "columns", 64)
    real = dispatch.config_for
    monkeypatch.setattr(
        dispatch, "config_for", lambda spec, *rest: config if "backward" in spec.name else real(spec, *rest)
    )
    use_table(None)
    leaves, dy = leaves_of(device, 1), rows(device, 9)
    wanted = torch.autograd.grad(rms_norm(*leaves), leaves, dy)
    for _ in range(2):
        assert is_kept(rms_norm(*leaves, reuse_dy=True), dy, wanted, leaves)
    dx = torch.autograd.grad(rms_norm(leaves[0], leaves[1].detach(), reuse_dy=True), leaves[0], dy)[0]
    assert dx.data_ptr() == dy.data_ptr() and torch.equal(dx, wanted[0])  # without programs of columns
    monkeypatch.undo()
    use_table(None)
    dy = rows(device, 9)
    dx = torch.autograd.grad(rms_norm(*leaves, reuse_dy=True), leaves, dy)[0]
    assert dx.data_ptr() == dy.data_ptr()


@pytest.mark.slow
@pytest.mark.parametrize("module", [RMSNorm, FusedAddRMSNorm, RMSNormGated])
def test_modules_have_the_option(device, module):
    plain, reusing = (module(HIDDEN, dtype=torch.float16, device=device, **more) for more in ({}, {"reuse_dy": True}))
    assert repr(reusing).replace(", reuse_dy=True", "") == repr(plain) != repr(reusing)
    inputs = [rows(device, seed).requires_grad_() for seed in range(1 if module is RMSNorm else 2)]
    found = []
    for one in (plain, reusing):
        y = one(*inputs)
        dy = rows(device, 9)
        found.append(torch.autograd.grad(y[0] if isinstance(y, tuple) else y, (*inputs, one.weight), dy))
        assert (found[-1][0].data_ptr() == dy.data_ptr()) == (one is reusing)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


class TestWithoutKernels:
    """On a CPU, in compilers and in transforms the option does nothing."""

    @pytest.mark.parametrize("case", CASES)
    def test_formulas_keep_it(self, case):
        function, count, options = CASES[case]
        if options.pop("batch_invariant", False):
            return
        leaves, dy = leaves_of("cpu", count), rows("cpu", 9)
        wanted = torch.autograd.grad(function(*leaves, **options), leaves, dy)
        assert is_kept(function(*leaves, reuse_dy=True, **options), dy, wanted, leaves)

    @pytest.mark.slow
    @pytest.mark.parametrize("case", ["rms_norm", "fused", "groups"])
    def test_compilers_and_transforms_keep_it(self, case):
        function, count, options = CASES[case]
        leaves, dy = leaves_of("cpu", count), rows("cpu", 9)
        wanted = torch.autograd.grad(function(*leaves, **options), leaves, dy)
        compiled = torch.compile(
            lambda *tensors: function(*tensors, reuse_dy=True, **options), fullgraph=True, backend="aot_eager"
        )
        assert is_kept(compiled(*leaves), dy, wanted, leaves)
        before = dy.clone()
        _, pull = torch.func.vjp(lambda *tensors: function(*tensors, reuse_dy=True, **options), *leaves)
        torch.testing.assert_close(pull(dy), wanted, rtol=2e-2, atol=2e-2)
        assert torch.equal(dy, before)

    @pytest.mark.parametrize("case", ["rms_norm", "fused", "gated"])
    def test_anything_but_a_bool_is_refused(self, case):
        function, count, _ = CASES[case]
        with pytest.raises(TypeError, match="reuse_dy is 1: expected True or False"):
            function(*leaves_of("cpu", count), reuse_dy=1)
