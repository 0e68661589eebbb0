"""torch's own test cases of RMSNorm, from its wheel: the inputs of its module and operator tests, on ours."""

import copy
import pickle
from functools import cache, partial
from importlib import import_module

import pytest
import torch

import normtune

pytest.importorskip("expecttest", reason="torch's own test cases import it")

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


@cache
def of_torch(name):
    """A module of torch's tests. Imported by who uses it: that takes 3 seconds, and each process collects all tests."""
    with pytest.MonkeyPatch.context() as patch:
        # Read at import: a test may not wait for what they would look up.
        patch.setenv("PYTORCH_TEST_WITH_SLOW", "0")
        return import_module(f"torch.testing._internal.{name}")


def operators():
    """What torch's tests know of its operators of RMSNorm."""
    return [info for info in of_torch("common_methods_invocations").op_db if "rms_norm" in info.name]


def noncontiguous_like(x):
    return of_torch("common_utils").noncontiguous_like(x)


def modules(device, dtype, requires_grad=False):
    """A module of torch's and one of ours of each of torch's constructor inputs, with equal weights, and the input."""
    info = next(info for info in of_torch("common_modules").module_db if info.module_cls is torch.nn.RMSNorm)
    inputs = info.module_inputs_func(info, device=device, dtype=dtype, requires_grad=requires_grad, training=True)
    for case in inputs:
        arguments, named = case.constructor_input.args, case.constructor_input.kwargs
        pair = [cls(*arguments, **named, device=device, dtype=dtype) for cls in (torch.nn.RMSNorm, normtune.RMSNorm)]
        if pair[0].weight is not None:
            torch.nn.init.normal_(pair[0].weight)
        pair[1].load_state_dict(pair[0].state_dict())
        yield case, *pair, case.forward_input.args[0]


def close(found, wanted):
    unit = 8 * torch.finfo(wanted.dtype).eps
    scale = max(1.0, wanted.abs().max().item()) if wanted.numel() else 1.0  # what cancels was of the order of 1
    torch.testing.assert_close(found, wanted, rtol=unit, atol=unit * scale)


@pytest.mark.slow
@pytest.mark.one_in(5)
@pytest.mark.parametrize("dtype", DTYPES)
def test_module_forward_and_gradients(device, dtype):
    for case, theirs, ours, x in modules(device, dtype, requires_grad=True):
        y = ours(x)
        # torch's reference multiplies float32 with a weight of its own dtype, in place.
        if dtype == torch.float32:
            close(y.detach(), case.reference_fn(theirs, x.detach()).detach())
        dy = torch.randn_like(y)
        results = []
        for module in (ours, theirs):
            leaves = [x, *module.parameters()]
            results.append(torch.autograd.grad(module(x), leaves, dy))
        close(y, theirs(x))
        for found, wanted in zip(*results, strict=True):
            close(found, wanted)


@pytest.mark.slow
def test_module_gradients_by_differences(device):
    for _, _, ours, x in modules(device, torch.float64, requires_grad=True):
        if x.shape[0] > 4:
            continue
        leaves = (x, *ours.parameters())
        call = partial(lambda module, x, *weights: functional(module, x, weights), ours)
        assert torch.autograd.gradcheck(call, leaves) and torch.autograd.gradgradcheck(call, leaves)


def functional(module, x, weights):
    names = dict(zip(("weight",), weights, strict=False))
    return torch.func.functional_call(module, names, (x,))


@pytest.mark.slow  # torch's own cases take seconds to be imported; test_row_layouts.py has strided inputs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_module_takes_inputs_that_are_not_contiguous(device, dtype):
    for _, theirs, ours, x in modules(device, dtype):
        for other in (noncontiguous_like(x), noncontiguous_like(x.transpose(0, -1)).transpose(0, -1)):
            leaf = other.detach().requires_grad_()
            results = []
            for module in (ours, theirs):
                y = module(leaf)
                # A weight that is not contiguous, too.
                dy = noncontiguous_like(torch.ones_like(y))
                results.append((y, *torch.autograd.grad(y, [leaf, *module.parameters()], dy)))
            for found, wanted in zip(*results, strict=True):
                close(found, wanted)


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_module_takes_memory_formats(device, layout):
    for _, theirs, ours, x in modules(device, torch.float32):
        if x.dim() == 4:
            close(ours(x.to(memory_format=layout)), theirs(x))
            moved = copy.deepcopy(ours).to(memory_format=layout)
            close(moved(x.to(memory_format=layout)), theirs(x))


def test_module_hooks_run(device):
    for _, theirs, ours, x in modules(device, torch.float32, requires_grad=True):
        seen = []
        ours.register_forward_pre_hook(lambda module, args, seen=seen: seen.append("before"))
        ours.register_forward_hook(lambda module, args, y, seen=seen: seen.append("after"))
        ours.register_full_backward_pre_hook(lambda module, dy, seen=seen: seen.append("backward"))
        ours.register_full_backward_hook(lambda module, dx, dy, seen=seen: seen.append("gradient"))
        ours(x).sum().backward()
        assert seen == ["before", "after", "backward", "gradient"]
        (wanted,) = torch.autograd.grad(theirs(x).sum(), x)
        close(x.grad, wanted)


def test_module_pickles_copies_and_moves(device):
    for _, theirs, ours, x in modules(device, torch.float32):
        for other in (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours), ours.to(device), ours.cpu().to(device)):
            close(other(x), theirs(x))
            assert repr(other) == repr(theirs)
        assert ours.double()(x.double()).dtype == torch.float64
        factory = normtune.RMSNorm(theirs.normalized_shape, device="meta")
        assert all(parameter.is_meta for parameter in factory.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_operator_samples(device, dtype):
    for info, sample in samples(device, dtype):
        for inputs in (sample, sample.noncontiguous()):
            leaves = [leaf for leaf in (inputs.input, *inputs.args, *inputs.kwargs.values()) if is_leaf(leaf)]
            results = []
            for function in (normtune.rms_norm, info.op):
                y = function(inputs.input, *inputs.args, **inputs.kwargs)
                results.append((y, *torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True)))
            for found, wanted in zip(*results, strict=True):
                # -0.5 for eps may be more than the mean square, and cancellation as bad as one likes.
                if (
                    wanted.isfinite().all()
                    and sample.kwargs.get("eps", 0) is not None
                    and sample.kwargs.get("eps", 0) >= 0
                ):
                    close(found, wanted)
                else:
                    assert torch.equal(found.isfinite(), wanted.isfinite())


def is_leaf(one):
    return isinstance(one, torch.Tensor) and one.requires_grad


def samples(device, dtype):
    """Those that the operators' own tests have in this dtype; where a variant is for some dtypes alone, in those."""
    found = [
        (info, sample)
        for info in operators()
        if dtype in info.dtypes
        for sample in info.sample_inputs(device, dtype, requires_grad=True)
    ]
    assert found
    return found


@pytest.mark.slow
def test_operator_gradients_by_differences(device):
    for _, sample in samples(device, torch.float64):
        if not sample.input.numel() or sample.kwargs.get("eps", 0) < 0:
            continue
        shape, *weights = sample.args

        def call(x, *weights, shape=shape, sample=sample):
            return normtune.rms_norm(x, shape, *weights, **sample.kwargs)

        # Values of up to 1000 ask for wider steps.
        options = {"eps": 1e-3, "atol": 1e-3, "rtol": 1e-3}
        assert torch.autograd.gradcheck(call, (sample.input, *weights), check_forward_ad=True, **options)
        assert torch.autograd.gradgradcheck(call, (sample.input, *weights), **options)


@pytest.mark.slow
def test_operator_refuses_what_torchs_refuses(device):
    info = operators()[0]
    errors = list(info.error_inputs(device))
    assert len(errors) >= 3
    for error in errors:
        sample = error.sample_input
        with pytest.raises(error.error_type):
            info.op(sample.input, *sample.args, **sample.kwargs)
        with pytest.raises(ValueError, match=r"normalized_shape is|weight has shape"):
            normtune.rms_norm(sample.input, *sample.args, **sample.kwargs)
