"""Compilers, exporters, modes, subclasses and function transforms intercept the call; on a CPU."""

import gc
import weakref
from typing import ClassVar

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import normtune
import normtune.kernels.rms_norm.function
from normtune.tests.commands import printed_by

F = torch.nn.functional
FORWARD, BACKWARD = torch.ops.normtune.rms_norm_forward.default, torch.ops.normtune.rms_norm_backward.default


@pytest.fixture
def leaves():
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(size, generator=generator).requires_grad_() for size in ((4, 8), (8,)))


def plain(x, weight):
    return F.rms_norm(x, x.shape[-1:], weight, 1e-6)


def results(function, x, weight):
    y = function(x, weight)
    return (y, *torch.autograd.grad(y.sin().sum(), (x, weight)))


def assert_all_close(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("needs", [(True, True), (False, False)])
@pytest.mark.parametrize("has_weight", [True, False])
def test_the_operators_keep_torchs_rules(leaves, needs, has_weight):
    x, weight = (leaf.detach().requires_grad_(need) for leaf, need in zip(leaves, needs, strict=True))
    weight = weight if has_weight else None
    opcheck(FORWARD, (x, weight, 1e-6, 0.5, None, True))
    y, rstd = FORWARD(x.detach(), weight, 1e-6, 0.5, None, True)
    opcheck(BACKWARD, (torch.ones_like(y), x, weight, rstd.detach(), 1e-6, 0.5, None, True, has_weight))
    opcheck(FORWARD, (x.detach(), None if weight is None else weight.detach(), 1e-6, 0.5, False, False))


def test_what_was_traced_without_gradients_may_be_called_with_them(leaves):
    with torch.no_grad():
        exported = torch.export.export(module := normtune.RMSNorm(8), (leaves[0].detach(),)).module()
    found, wanted = (torch.autograd.grad(f(leaves[0]).sin().sum(), leaves[0])[0] for f in (exported, module))
    torch.testing.assert_close(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [True, False])
def test_compiled_without_a_break_and_once_for_all_numbers_of_rows(leaves, dynamic):
    graphs = []

    def backend(module, inputs):
        graphs.append(module)
        return module

    weight = leaves[1]
    compiled = torch.compile(lambda x, w: 2 * normtune.rms_norm(x, (8,), w), backend=backend, fullgraph=True)
    torch._dynamo.reset()
    for rows in (4, 6, 9, 17):
        x = torch.randn(rows, 8).requires_grad_()
        if dynamic:
            torch._dynamo.mark_dynamic(x, 0)
        assert torch.equal(compiled(x, weight), 2 * normtune.rms_norm(x, (8,), weight))
    assert len(graphs) == (1 if dynamic else 2)  # the first is for four rows alone until others come


def test_compiled_gradients_are_those_of_eager_calls(leaves):
    compiled = torch.compile(normtune.rms_norm, backend="aot_eager", fullgraph=True)
    expected = results(normtune.rms_norm, *leaves)
    torch.testing.assert_close(results(compiled, *leaves), expected)  # of the formula
    normtune.use(compiled="kernel")
    try:
        for found, wanted in zip(results(compiled, *leaves), expected, strict=True):
            assert torch.equal(found, wanted)
    finally:
        normtune.use()
    module = normtune.RMSNorm((2, 4))
    assert torch.equal(torch.compile(module, backend="aot_eager", fullgraph=True)(x := torch.randn(3, 2, 4)), module(x))


def test_compiled_refuses_what_eager_refuses(leaves):
    with pytest.raises(Exception, match=r"weight has shape "):
        torch.compile(normtune.rms_norm, backend="eager", fullgraph=True)(leaves[0], torch.ones(7))


@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False])
def test_exported_for_any_number_of_rows(strict, tmp_path):
    module, rows = normtune.RMSNorm(8, eps=1e-5), torch.export.Dim("rows", min=2, max=4096)
    with torch.no_grad():
        module.weight.normal_()
    exported = torch.export.export(module, (torch.randn(4, 8),), dynamic_shapes=[{0: rows}], strict=strict)
    assert [node.target for node in exported.graph.nodes if "normtune" in str(node.target)] == [FORWARD]
    torch.export.save(exported, tmp_path / "module.pt2")
    x = torch.randn(33, 8)
    assert torch.equal(torch.export.load(tmp_path / "module.pt2").module()(x), module(x))


def test_traced_graphs_hold_the_call(leaves):
    x, weight = (leaf.detach() for leaf in leaves)
    module = normtune.RMSNorm(8)
    functions = [
        torch.jit.trace(lambda x: normtune.rms_norm(x, weight), x),
        torch.jit.trace(module, x),
        make_fx(lambda x: normtune.rms_norm(x, weight))(x),
        torch.fx.symbolic_trace(lambda x: normtune.rms_norm(x, weight)),
        torch.fx.symbolic_trace(lambda x: normtune.rms_norm(x, (8,), weight=weight)),
        torch.fx.symbolic_trace(lambda x: normtune.rms_norm(x)),
        torch.fx.symbolic_trace(module),
    ]
    weights = [weight, module.weight.detach(), *[weight] * 3, None, module.weight.detach()]
    eps = [1e-6, None, 1e-6, 1e-6, None, 1e-6, None]
    for function, of_weight, of_eps in zip(functions, weights, eps, strict=True):
        assert torch.equal(function(2 * x + 1), normtune.rms_norm(2 * x + 1, of_weight, of_eps))
    assert "rms_norm" in functions[-1].code


def test_tensors_without_memory_get_shapes(leaves):
    x, weight = (leaf.detach() for leaf in leaves)
    y = normtune.rms_norm(x.to("meta"), weight.to("meta"))
    assert (y.device.type, y.shape, y.dtype) == ("meta", x.shape, x.dtype)
    assert normtune.rms_norm(x.to("meta"), batch_invariant=True).shape == x.shape
    with FakeTensorMode() as mode:
        fake = normtune.rms_norm(mode.from_tensor(x), mode.from_tensor(weight))
        with pytest.raises(ValueError, match="weight has shape"):
            normtune.rms_norm(mode.from_tensor(x), mode.from_tensor(weight)[:7])
    assert type(fake).__name__ == "FakeTensor" and fake.shape == x.shape


class Seeing(TorchDispatchMode):
    def __init__(self):
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


def test_modes_see_forward_and_backward(leaves):
    with Seeing() as mode:
        found = results(normtune.rms_norm, *leaves)
    assert mode.seen.count(FORWARD) == mode.seen.count(BACKWARD) == 1
    assert_all_close(found, results(plain, *leaves))
    with FlopCounterMode(display=False):
        normtune.rms_norm(*leaves)


class Wrapper(torch.Tensor):
    """A tensor that has its memory in another one."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        inner = [arg.inner if isinstance(arg, cls) else arg for arg in args]
        found = function(*inner, **(kwargs or {}))
        return tuple(cls(one) if isinstance(one, torch.Tensor) else one for one in found)


class Asking(Wrapper):
    """One that notes what operators it is given to."""

    asked: ClassVar[list] = []

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        cls.asked.append((function, args))
        if function is torch.ops.aten.detach.default:
            return cls(args[0].inner)
        return super().__torch_dispatch__(function, types, args, kwargs)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_backward_of_copies_has_the_mode_of_its_forward(leaves, enabled):
    x, weight = (Asking(leaf.detach()).requires_grad_() for leaf in leaves)
    copied = saved_tensors_hooks(lambda one: one.inner.clone(), Asking)
    with normtune.batch_invariant(enabled), copied:
        y = normtune.rms_norm(x, weight)
    torch.autograd.grad(y, (x, weight), Asking(torch.ones(y.shape)))
    ((*_, batch_invariant, _, _),) = (args for function, args in Asking.asked if function is BACKWARD)
    Asking.asked.clear()
    assert batch_invariant is enabled


class Deaf(Wrapper):
    """One that knows no operator of ours."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return NotImplemented


class Named(torch.Tensor):
    """A tensor that is nothing but its memory."""


class Overriding(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return (
            "overridden" if function is normtune.rms_norm else super().__torch_function__(function, types, args, kwargs)
        )


def test_subclasses_of_tensors(leaves):
    x, weight = (leaf.detach() for leaf in leaves)
    wanted = normtune.rms_norm(x, weight)
    found = normtune.rms_norm(Wrapper(x), Wrapper(weight))
    assert type(found) is Wrapper and torch.equal(found.inner, wanted)
    with pytest.raises(TypeError, match="normtune"):
        normtune.rms_norm(Deaf(x), weight)
    named = normtune.rms_norm(x.as_subclass(Named), weight)
    assert type(named) is Named and torch.equal(named.as_subclass(torch.Tensor), wanted)
    assert normtune.rms_norm(x.as_subclass(Overriding), weight) == "overridden"
    buffer = torch.nn.Buffer(weight)
    assert torch.equal(normtune.rms_norm(x, buffer), wanted)


def test_a_default_device_changes_nothing(leaves):
    with torch.device("cpu"):
        assert_all_close(results(normtune.rms_norm, *leaves), results(plain, *leaves))


@pytest.mark.long
def test_transforms_of_functions(leaves):
    x, weight = (leaf.detach() for leaf in leaves)
    functions = [lambda x, w, f=f: f(x, w).sin().sum() for f in (normtune.rms_norm, plain)]
    for transform in (
        lambda f: torch.func.grad(f, (0, 1))(x, weight),
        lambda f: torch.func.vmap(torch.func.grad(f), (0, None))(x, weight),
        lambda f: torch.func.jvp(f, (x, weight), (2 * x, weight)),
        lambda f: (torch.func.hessian(f)(x, weight),),
        lambda f: torch.func.functional_call(normtune.RMSNorm(8), {"weight": weight}, (x,)),
    ):
        assert_all_close(*map(transform, functions))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap of grad"])
def test_transforms_inside_of_compiled_functions(leaves, transform):
    x, weight = (leaf.detach() for leaf in leaves)

    def call(function):
        def summed(x, weight):
            return function(x, weight).sin().sum()

        if transform == "jvp":
            return torch.func.jvp(function, (x, weight), (2 * x, weight))[1]
        if transform == "grad":
            return torch.func.grad(summed)(x, weight)
        return torch.func.vmap(torch.func.grad(summed), (0, None))(x, weight)

    compiled = torch.compile(lambda: call(normtune.rms_norm), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(), call(plain))


def test_forward_mode_derivatives(leaves):
    x, weight = (leaf.detach() for leaf in leaves)
    tangents = []
    for function in (normtune.rms_norm, plain):
        with forward_ad.dual_level():
            y = function(forward_ad.make_dual(x, x.cos()), forward_ad.make_dual(weight, weight.sin()))
            tangents.append(forward_ad.unpack_dual(y).tangent)
    torch.testing.assert_close(*tangents)


@pytest.mark.interpreter
@pytest.mark.parametrize("interpreted", [True])
def test_batched_gradients_of_a_launch(leaves, interpreted):
    dy = torch.randn(3, 4, 8)
    found, wanted = (
        torch.autograd.grad(f(*leaves), leaves, dy, is_grads_batched=True) for f in (normtune.rms_norm, plain)
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_derivatives_of_any_order_in_float64(leaves):
    x, weight = (leaf.detach().double().requires_grad_() for leaf in leaves)
    for call in (
        lambda x, weight: normtune.rms_norm(x, weight, 1e-5, 0.5),
        lambda x, weight: FORWARD(x, weight, 1e-5, 0.5, None, True)[0],
    ):
        options = {"check_forward_ad": True} if call.__code__.co_names[0] == "normtune" else {}
        assert torch.autograd.gradcheck(call, (x, weight), check_batched_grad=True, **options)
        assert torch.autograd.gradgradcheck(call, (x, weight))


@pytest.mark.slow
def test_import_does_not_load_the_compiler():
    code = "import sys, torch; before = set(sys.modules); import normtune; normtune.rms_norm; normtune.RMSNorm;"
    code += "print(sorted(name for name in set(sys.modules) - before if name.startswith('torch._dynamo')))"
    assert printed_by(code) == "[]\n"


@pytest.mark.interpreter
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.slow
def test_nothing_that_is_kept_holds_a_tensor_of_a_call(batch_invariant):
    def call(rows):
        x, weight, dy = torch.randn(rows, 8), torch.randn(8), torch.randn(rows, 8)
        with torch.no_grad():
            y = [normtune.rms_norm(x, weight, batch_invariant=batch_invariant)]
        leaves = x.requires_grad_(), weight.requires_grad_()
        y.append(normtune.rms_norm(*leaves, batch_invariant=batch_invariant))
        gradients = torch.autograd.grad(y[1], leaves, dy, create_graph=True)
        gradients += torch.autograd.grad(sum(one.sum() for one in gradients), leaves)
        strided = normtune.rms_norm(torch.randn(rows, 16)[:, :8], weight, batch_invariant=batch_invariant)
        return [weakref.ref(tensor.untyped_storage()) for tensor in (x, weight, dy, *y, *gradients, strided)]

    def floats():
        gc.collect()
        return sum(isinstance(one, torch.Tensor) for one in gc.get_objects())

    call(3)
    before = floats()
    for _ in range(2):
        for rows in (3, 4, 5):
            alive = [reference for reference in call(rows) if reference() is not None]
            gc.collect()
            assert not [reference for reference in alive if reference() is not None]
    assert floats() == before
