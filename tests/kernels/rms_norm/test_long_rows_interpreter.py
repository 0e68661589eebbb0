"""Rows of several programs in float32 and float16, run by Triton's interpreter, against float64."""

import pytest
import torch

import normtune
from normtune.kernels.alignment import alignment_of
from normtune.kernels.call import run
from normtune.kernels.calling import fallback
from normtune.kernels.operator import operator, operators
from normtune.kernels.rms_norm.function import CALLS
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import calls_of, nan_outputs, referenced
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing.gate import compare

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("counted_loops")]

# Few multiprocessors, so that a program of the weight gradient has several rows.
TARGET = TARGETS["sm_80"]._replace(sms=33)
NAMES = tuple(name for name in operators() if name.startswith(("rms_norm_forward", "rms_norm_backward", "fused_add")))
EVERY = [(name, variant) for name in NAMES for variant in operator(name).variants]


def check(key, rows, hidden, dtype, config=None, padding=0, offset=0.25):
    """Run a launch with gaps of NaN between rows; None for a third of the default space."""
    spec = operator(key[0])
    problem = spec.problem(rows, hidden, dtype, key[1])
    inputs, expected = referenced(spec, problem, rows + hidden, offset=offset)
    kept, _ = candidates(spec, spec.space("default", problem, TARGET), problem, TARGET)
    configs = [config] if config else [one for one, _ in kept][::3]
    assert configs
    for one in configs:
        outputs = nan_outputs(spec, problem)
        tensors = inputs | outputs
        for name, tensor in tensors.items():
            if tensor.dim() == 2:
                apart = torch.full((rows, hidden + padding), float("nan"), dtype=tensor.dtype)
                apart[:, :hidden] = tensor
                tensors[name] = apart[:, :hidden]
        launch = spec.resolve(one, problem, TARGET, alignment_of(hidden, hidden + padding))
        run(calls_of(spec, problem, launch, tensors, offset=offset))
        compare({name: tensors[name] for name in outputs}, expected)


@pytest.mark.slow
@pytest.mark.parametrize("key", EVERY, ids=":".join)
@pytest.mark.parametrize(("rows", "hidden", "dtype"), [(1, 65537, "float32"), (3, 70000, "float16")])
def test_every_variant_is_within_rounding(key, rows, hidden, dtype):
    spec = operator(key[0])
    check(key, rows, hidden, dtype, spec.default_config(spec.problem(rows, hidden, dtype, key[1]), TARGET))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_configs_are_within_rounding(name):
    check((name, ""), 2, 131073, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_row_strides_are_free(name):
    check((name, ""), 3, 66000, "float32", padding=24)


@pytest.mark.slow
def test_the_longest_row_is_within_rounding():
    for name in ("rms_norm_forward", "rms_norm_backward"):
        spec = operator(name)
        hidden = spec.max_hidden
        check((name, ""), 1, hidden, "float32", spec.default_config(spec.problem(1, hidden, "float32"), TARGET))


@pytest.mark.slow
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("has_weight", [True, False])
def test_values_and_gradients_of_the_function_come_from_kernels(has_weight, batch_invariant, monkeypatch):
    monkeypatch.setattr(fallback, "forward", None)
    monkeypatch.setattr(fallback, "backward", None)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 65600, generator=generator).requires_grad_()
    weight = torch.randn(65600, generator=generator).requires_grad_() if has_weight else None
    leaves = [x, weight] if has_weight else [x]
    dy = torch.randn(x.shape, generator=generator)
    y = normtune.rms_norm(x, weight, 1e-5, 1.0 if has_weight else 0.0, batch_invariant)
    scale = weight.double() + 1.0 if has_weight else None
    expected = torch.nn.functional.rms_norm(x.double(), (65600,), scale, 1e-5)
    torch.testing.assert_close(y, expected.float())
    found = torch.autograd.grad(y, leaves, dy)
    for one, wanted in zip(found, torch.autograd.grad(expected, leaves, dy.double()), strict=True):
        torch.testing.assert_close(one, wanted.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("casting", ["gemma", "llama", "none"])
def test_each_casting_mode_rounds_what_its_formula_rounds(casting):
    # The square of this number is off by 2 % in float16, below its least normal one.
    x = torch.full((2, 65537), 1.05e-3).half()
    x[1] = torch.randn(65537, generator=torch.Generator().manual_seed(0)).half()
    weight = torch.randn(65537, generator=torch.Generator().manual_seed(1)).half()
    found = normtune.rms_norm(x, weight, casting=casting)
    expected, _ = CALLS[casting].operation.formula.forward(x, weight, 1e-6, 0.0)
    assert (found != expected).float().mean() < 1e-3
    others = [CALLS[name].operation.formula.forward(x, weight, 1e-6, 0.0)[0] for name in CALLS if name != casting]
    assert all((found != other).float().mean() > 1e-2 for other in others)


@pytest.mark.slow
def test_a_frozen_input_gets_the_weight_gradient():
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(3, 65537, generator=generator) for _ in range(2))
    weight = torch.ones(65537, requires_grad=True)
    found = torch.autograd.grad(normtune.rms_norm(x, weight), weight, dy)[0]
    expected = torch.nn.functional.rms_norm(x.double(), (65537,), weight.double(), 1e-6)
    wanted = torch.autograd.grad(expected, weight, dy.double())[0]
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5, check_dtype=False)


def test_the_sum_takes_the_memory_of_the_residual():
    generator = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(2, 70000, generator=generator) for _ in range(2))
    weight = torch.randn(70000, generator=generator)
    expected = normtune.fused_add_rms_norm(x, residual, weight)
    found = normtune.fused_add_rms_norm(x, residual, weight, in_place=True)
    assert found[0].data_ptr() == x.data_ptr() and found[1].data_ptr() == residual.data_ptr()
    assert all(map(torch.equal, found, expected))


@pytest.mark.slow
def test_rows_beyond_the_kernels_are_composed(monkeypatch):
    taken = []
    plain = fallback.forward
    monkeypatch.setattr(fallback, "forward", lambda *arguments: taken.append(1) or plain(*arguments))
    hidden = operator("rms_norm_forward").max_hidden
    assert hidden == 1 << 20
    for length, composed in ((hidden, 0), (hidden + 1, 1)):
        x = torch.randn(1, length)
        torch.testing.assert_close(normtune.rms_norm(x), torch.nn.functional.rms_norm(x, (length,), eps=1e-6))
        assert len(taken) == composed
