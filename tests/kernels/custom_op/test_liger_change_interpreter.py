"""Liger-Kernel with a fitted change computes what it did, by every launch that the change chooses."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from normtune.examples.liger import change
from normtune.kernels import load_file, operator
from normtune.kernels.calling.triton_inside import launches_given_to
from normtune.kernels.key import Key
from normtune.kernels.tablefile.tree import Leaf, Split, choose
from normtune.tuner.inspection.interpreter_inside import complete

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("operators_forgotten")]
# Found, not imported: that takes two seconds.
(LIGER,) = importlib.util.find_spec("liger_kernel").submodule_search_locations
EXAMPLE = Path(__file__).parents[3] / "examples" / "liger" / "rms_norm.py"
FORWARD, BACKWARD = (operator for operator, *_ in change.PASSES.values())


def tree_of(config, *answers):
    """Four leaves, with both kernels."""
    one, two, three, four = (Leaf(config(*answer)) for answer in answers)
    return Split("hidden", 40, Split("rows", 8, one, two), Split("rows", 16, three, four))


def function(name, answers, dtypes):
    spec = operator.operator(name)
    tree = tree_of(spec.config, *answers)
    return SimpleNamespace(key=Key.of(name, "", dtypes[0]), tree=tree, dtypes=dtypes)


@pytest.fixture(params=["both", "forward", "backward"])
def patched(request, tmp_path, monkeypatch):
    """The changed module, which takes the CPU for the measured GPU, and the functions of the fit."""
    complete()
    load_file.load(EXAMPLE)
    functions = []
    if request.param != "backward":
        functions.append(function(FORWARD, ((4, 1), (16, 4), (0, 8), (8, 2)), ("float32", "bfloat16")))
        functions.append(function(FORWARD, ((0, 1), (0, 2), (2, 4), (0, 4)), ("float16",)))
    if request.param != "forward":
        functions.append(function(BACKWARD, ((4, 1, 2), (0, 4, 3), (0, 8, 1), (8, 2, 4)), ("float32",)))
    device = SimpleNamespace(label="GPU of a test", target="sm_90")
    source = (Path(LIGER) / change.FILE).read_text()
    path = tmp_path / "changed_rms_norm.py"
    path.write_text(change.changed(source, SimpleNamespace(functions=functions, device=device)))
    spec = importlib.util.spec_from_file_location("changed_rms_norm", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "changed_rms_norm", module)
    spec.loader.exec_module(module)
    assert not module._is_fitted(torch.ones(1))
    monkeypatch.setattr(module, "_is_fitted", lambda x: True)
    return module, functions


def launches_of(module, x, weight, row_mode):
    """Forward and backward of a module, checked against float64: grid, rows of a block and warps of each launch."""
    launched = []

    def take(kernel, grid):
        def launch(*arguments, **options):
            launched.append((grid, options.get("BLOCK_ROW"), options["num_warps"]))
            return kernel.run(*arguments, grid=grid, warmup=False, **options)

        return launch

    x, weight = x.requires_grad_(), weight.requires_grad_()
    slope = torch.randn(x.shape).to(x.dtype)
    with launches_given_to(take):
        y = module.LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False, row_mode)
        y.backward(slope)
    exact, gain = (one.detach().double().requires_grad_() for one in (x, weight))
    expected = torch.nn.functional.rms_norm(exact, exact.shape[-1:], gain, 1e-6)
    expected.backward(slope.double())
    limit = 8 * torch.finfo(x.dtype).eps
    for found, wanted in ((y, expected), (x.grad, exact.grad), (weight.grad, gain.grad)):
        torch.testing.assert_close(found.double(), wanted, atol=limit * float(wanted.detach().abs().max()), rtol=limit)
    return launched


def launch_of(function, shape, programs=None):
    """What a function of the fit, or today's rule of short rows, launches at a shape."""
    blocks, warps, *more = choose(function.tree, shape) if function else (0, 4, *[1] * (programs is not None))
    if programs is not None:
        return (more[0],), blocks or None, warps
    return (-(-shape[0] // max(1, blocks)),), blocks or None, warps


@pytest.mark.one_in(5)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_changed_module_computes_what_it_did(patched, dtype):
    module, functions = patched
    forward = {dtype: one for one in functions if one.key.operator == FORWARD for dtype in one.dtypes}
    backward = next((one for one in functions if one.key.operator == BACKWARD), None)
    seen = set()
    for shape in ((3, 24), (9, 40), (5, 41), (17, 70)):
        for row_mode in (None, True):
            x, weight = torch.randn(shape), torch.randn(shape[1])
            found = launches_of(module, x.to(getattr(torch, dtype)), weight.to(getattr(torch, dtype)), row_mode)
            chosen = (None, None) if row_mode else (forward.get(dtype), backward)
            assert found == [launch_of(chosen[0], shape), launch_of(chosen[1], shape, programs=1)], (shape, row_mode)
            seen |= {*found}
    assert len(seen) > 5
