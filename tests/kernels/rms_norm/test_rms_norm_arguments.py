"""Every argument of torch's RMSNorm is accepted, and a wrong one is refused by name and value before anything runs."""

import copy
import inspect
import pickle
import re

import numpy
import pytest
import torch

import normtune

F = torch.nn.functional
X, WEIGHT = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)), torch.linspace(0.5, 2.0, 8)
REFUSED = [
    (([1.0, 2.0], WEIGHT), TypeError, "x is [1.0, 2.0]: expected a tensor"),
    ((X, "weight"), TypeError, "normalized_shape is 'weight': expected an integer or a sequence of integers"),
    ((X, WEIGHT, "small"), TypeError, "eps is 'small': expected a number"),
    ((X, WEIGHT, torch.tensor(1e-6)), TypeError, "eps is a tensor with shape (): expected a number"),
    ((X, WEIGHT, [1e-6]), TypeError, "eps is [1e-06]: expected a number"),
    ((X, WEIGHT, 10**400), ValueError, "expected a finite number"),
    ((X, WEIGHT, 1e-6, 0.0, "off"), TypeError, "batch_invariant is 'off': expected True, False or None"),
    ((X, WEIGHT, float("nan")), ValueError, "eps is nan: expected a finite number"),
    ((X, WEIGHT, 1e-6, float("inf")), ValueError, "offset is inf: expected a finite number"),
    ((X.to(torch.int32), WEIGHT), ValueError, "x is torch.int32: expected bfloat16, float16, float32 or float64"),
    ((X.to(torch.complex64), WEIGHT), ValueError, "x is torch.complex64"),
    ((X, WEIGHT.to(torch.int8)), ValueError, "weight is torch.int8"),
    ((X, WEIGHT[:7]), ValueError, "weight has shape (7,): expected (8,), the last dimension of x"),
    ((X, WEIGHT[:, None]), ValueError, "weight has shape (8, 1): expected (8,)"),
    ((torch.zeros(()), WEIGHT), ValueError, "x has no dimension: expected (..., hidden)"),
    ((X, WEIGHT.to("meta")), ValueError, "weight is on meta and x on cpu: expected one device"),
    ((X.to_sparse(), WEIGHT), ValueError, "x has the layout torch.sparse_coo: expected a dense tensor"),
    ((torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), WEIGHT), ValueError, "x is torch.qint8"),
    ((X, (7,), WEIGHT), ValueError, "normalized_shape is (7,) and x has shape (2, 3, 8): expected its last sizes"),
    ((X, (4, 2, 3, 8)), ValueError, "normalized_shape is (4, 2, 3, 8) and x has shape (2, 3, 8)"),
    ((X, (3, 8), WEIGHT), ValueError, "weight has shape (8,): expected (3, 8), as normalized_shape"),
    ((X, ()), ValueError, "normalized_shape is (): expected one size or more, none negative"),
    ((X, (7,), WEIGHT[:7]), ValueError, "normalized_shape is (7,) and x has shape (2, 3, 8): expected its last sizes"),
    ((X, (8.0,), WEIGHT), TypeError, "normalized_shape is (8.0,): expected an integer or a sequence of integers"),
    ((X, (8.0,)), TypeError, "normalized_shape is (8.0,): expected an integer or a sequence of integers"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), REFUSED)
@pytest.mark.parametrize("interpreted", [False, pytest.param(True, marks=pytest.mark.interpreter)])
def test_refused_in_one_line_and_the_next_good_call_works(arguments, error, message, interpreted):
    with pytest.raises(error, match=re.escape(message)) as refused:
        normtune.rms_norm(*arguments)
    assert len(str(refused.value).splitlines()) == 1
    torch.testing.assert_close(normtune.rms_norm(X, WEIGHT), F.rms_norm(X, (8,), WEIGHT, 1e-6))


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_a_nested_tensor_is_refused(layout):
    nested = torch.nested.nested_tensor([X[0], X[1, :2]], layout=layout)
    with pytest.raises(ValueError, match=r"x is a nested tensor: expected a dense one, pass x\.values\(\)"):
        normtune.rms_norm(nested, WEIGHT)


def test_a_wrong_call_names_the_function():
    with pytest.raises(TypeError, match=r"^rms_norm\(\) got an unexpected keyword argument 'gamma'"):
        normtune.rms_norm(X, WEIGHT, gamma=1)
    with pytest.raises(TypeError, match=r"^rms_norm\(\) missing 1 required positional argument: 'x'"):
        normtune.rms_norm()
    with pytest.raises(TypeError, match=r"^rms_norm\(\) got an unexpected keyword argument 'gamma'"):
        normtune.rms_norm(X, (8,), gamma=1)


CALLS = {
    "as torch": lambda f: f(X, (8,), WEIGHT, 1e-5),
    "an integer": lambda f: f(X, [8], WEIGHT, 1e-5),
    "by name": lambda f: f(input=X, normalized_shape=(8,), weight=WEIGHT, eps=1e-5),
    "machine epsilon": lambda f: f(1e-3 * X, (8,), WEIGHT),
    "no weight": lambda f: f(X, (8,)),
    "no weight, by position": lambda f: f(X, (8,), None, 1e-5),
    "two dimensions": lambda f: f(X, (3, 8), WEIGHT.expand(3, 8), 1e-5),
    "all dimensions": lambda f: f(X, torch.Size((2, 3, 8))),
    "strides": lambda f: f(X.transpose(0, 2), (2,), WEIGHT[:2]),
    "weight with strides": lambda f: f(X[..., :4], (4,), WEIGHT[::2]),
    "two dimensions with strides": lambda f: f(X.transpose(1, 2), (8, 3), WEIGHT[:, None].expand(8, 3)),
    "no rows": lambda f: f(X[:0], (8,), WEIGHT),
    "no columns": lambda f: f(X[..., :0], (0,)),
    "one dimension": lambda f: f(X[0, 0], (8,), WEIGHT),
    "negative view": lambda f: f(torch.complex(X, X).conj().imag, (8,), WEIGHT),
    "expanded": lambda f: f(X[:, :1].expand(2, 3, 8), (8,), WEIGHT),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("interpreted", [False, pytest.param(True, marks=pytest.mark.interpreter)])
def test_torchs_calls_give_torchs_results(name, interpreted):
    found, wanted = CALLS[name](normtune.rms_norm), CALLS[name](F.rms_norm)
    assert found.is_contiguous() and (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("interpreted", [False, pytest.param(True, marks=pytest.mark.interpreter)])
def test_ones_own_shorter_call(interpreted):
    wanted = F.rms_norm(X, (8,), WEIGHT + 1.0, 1e-5)
    for found in (
        normtune.rms_norm(X, WEIGHT, 1e-5, 1.0),
        normtune.rms_norm(X, WEIGHT, eps=1e-5, offset=1.0),
        normtune.rms_norm(X, weight=WEIGHT, eps=1e-5, offset=1.0),
        normtune.rms_norm(x=X, weight=WEIGHT, eps=1e-5, offset=1.0, batch_invariant=False),
        normtune.rms_norm(X, 8, WEIGHT, 1e-5, offset=1.0),
    ):
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(normtune.rms_norm(X), F.rms_norm(X, (8,), eps=1e-6))
    # As in other libraries: what would be added to the weight goes with it.
    torch.testing.assert_close(normtune.rms_norm(X, None, 1e-6, 1.0), F.rms_norm(X, (8,), eps=1e-6))
    torch.testing.assert_close(normtune.rms_norm(1e-3 * X, WEIGHT, None), F.rms_norm(1e-3 * X, (8,), WEIGHT))


FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("weight_dtype", FLOATS)
@pytest.mark.parametrize("interpreted", [False, pytest.param(True, marks=pytest.mark.interpreter)])
def test_dtypes_are_promoted_as_torch_does(dtype, weight_dtype, interpreted):
    x, weight = X.to(dtype).requires_grad_(), WEIGHT.to(weight_dtype).requires_grad_()
    results = []
    for function in (normtune.rms_norm, F.rms_norm):
        y = function(x, (8,), weight, 1e-5)
        results.append((y, *torch.autograd.grad(y, (x, weight), torch.ones_like(y))))
    # The interpreter truncates to bfloat16.
    unit = 8 * max(torch.finfo(dtype).eps, torch.finfo(weight_dtype).eps)
    for found, wanted in zip(*results, strict=True):
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=unit, atol=unit * (1 + wanted.abs().max().item()))


MODULES = [
    ((8,), {}),
    ((8, 1e-5), {}),
    (((3, 8), 1e-5, True), {}),
    ((numpy.int64(8),), {"eps": 0.1}),
    (([8], None, False), {}),
    ((8,), {"elementwise_affine": True, "device": "cpu", "dtype": torch.float64}),
]


@pytest.mark.parametrize(("arguments", "named"), MODULES)
def test_the_module_takes_what_torchs_takes_and_shares_its_state(arguments, named):
    ours, theirs = normtune.RMSNorm(*arguments, **named), torch.nn.RMSNorm(*arguments, **named)
    assert isinstance(ours, torch.nn.RMSNorm) and repr(ours) == repr(theirs)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = X.to(named.get("dtype", torch.float32))
    for module in (ours, pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        torch.testing.assert_close(module(x), theirs(x))
    ours.reset_parameters()
    torch.testing.assert_close(ours(x), F.rms_norm(x, ours.normalized_shape, eps=ours.eps))


def test_a_module_of_torchs_becomes_ours():
    theirs = torch.nn.RMSNorm(8, 1e-5)
    torch.nn.init.normal_(theirs.weight)
    wanted = theirs(X)
    theirs.__class__ = normtune.RMSNorm
    torch.testing.assert_close(pickle.loads(pickle.dumps(theirs))(X), wanted)


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_parameters_are_reset_to_plain_rms_norm(offset):
    module = normtune.RMSNorm(8, offset=offset)
    torch.nn.init.normal_(module.weight)
    module.reset_parameters()
    assert torch.equal(module.weight, torch.full((8,), 1.0 - offset))


@pytest.mark.parametrize("size", [1.5, "64", None, (2, "8")])
def test_the_module_refuses_what_is_no_shape(size):
    with pytest.raises(TypeError, match="expected an integer or a sequence of integers"):
        normtune.RMSNorm(size)
    with pytest.raises(ValueError, match="expected one size or more, none negative"):
        normtune.RMSNorm(-1)


def test_help_shows_the_arguments():
    assert list(inspect.signature(normtune.rms_norm).parameters)[:4] == ["x", "weight", "eps", "offset"]


def test_the_batch_invariant_mode_is_refused_where_nothing_promises_equal_bits():
    with pytest.raises(ValueError, match=r"batch.invariant"):
        torch.vmap(lambda x: normtune.rms_norm(x, WEIGHT, batch_invariant=True))(X)
