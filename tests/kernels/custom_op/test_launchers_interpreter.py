"""Functions that allocate their outputs, or call torch, are gated and called as a whole; advice on roundings."""

import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from normtune.kernels import load_file, operator
from normtune.kernels.config import Config, Implementation
from normtune.kernels.custom_op.decorator import kernel_operator
from normtune.kernels.target import TARGETS
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing import gate as gates
from normtune.tuner.timing import trial as trials
from normtune.tuner.timing.gate import WrongResultError, gate

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("operators_forgotten")]
TARGET = TARGETS["sm_90"]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def door(monkeypatch):
    """Few rows and calls, as interpreted programs run one after another."""
    monkeypatch.setattr(gates, "CALLS", 3)
    monkeypatch.setattr(trials, "TRIAL_ROWS", (13, 16, 1))


def gated(spec, dtype="float16", rows=16, hidden=40):
    """The candidates of a problem, each through the gate."""
    problem = spec.problem(rows, hidden, dtype)
    kept, _ = candidates(spec, spec.configs("default", problem, TARGET), problem, TARGET)
    for candidate in kept:
        gate(spec, problem, candidate, TARGET, CPU)
    return kept


def test_a_launcher_passes_the_gate_and_returns_what_it_returns():
    load_file.load(Path(__file__).with_name("launchers.py"))
    assert len(gated(operator.operator("doubled"), "float32")) == 5
    function = sys.modules["normtune_operators_launchers"].doubled
    x = torch.randn(3, 5, 40)
    for config in (None, function.spec.config(64, 1), Implementation("torch")):
        y, total = function(x.view(15, 40), config=config)
        torch.testing.assert_close(y, 2 * x.view(15, 40))
        torch.testing.assert_close(total, 2 * x.view(15, 40).sum(0))
    with pytest.raises(TypeError, match="doubled takes x: got 0 values"):
        function()


class WarpConfig(Config):
    """One knob."""

    num_warps: int = 4


@triton.jit
def _scaled_kernel(x_ptr, w_ptr, y_ptr, hidden, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < hidden
    b_x = tl.load(x_ptr + tl.program_id(0) * hidden + offsets, mask=mask).to(tl.float32)
    b_w = tl.load(w_ptr + offsets, mask=mask).to(tl.float32)
    b_first = (b_x * 0.3).to(x_ptr.dtype.element_ty).to(tl.float32)  # rounds on the way, twice
    b_first = (b_first * 1.1).to(x_ptr.dtype.element_ty).to(tl.float32)
    tl.store(y_ptr + tl.program_id(0) * hidden + offsets, b_first * b_w, mask=mask)


@triton.jit
def _gather_kernel(x_ptr, index_ptr, y_ptr, hidden, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < hidden
    row = tl.load(index_ptr + tl.program_id(0))
    tl.store(y_ptr + tl.program_id(0) * hidden + offsets, tl.load(x_ptr + row * hidden + offsets, mask=mask), mask=mask)


def scaled(x, w, y):
    _scaled_kernel[(x.shape[0],)](x, w, y, x.shape[1], BLOCK=64)


def declared(function=scaled, **changes):
    arguments = {
        "config": WarpConfig,
        "space": {"num_warps": (4,)},
        "buffers": {"x": "input", "w": "weight", "y": "output"},
        "reference": lambda x, w: x * 0.3 * 1.1 * w,
        "name": "scaled",
    }
    return kernel_operator(**(arguments | changes))(function).spec


def test_a_kernel_that_rounds_on_the_way_is_told_what_allows_it():
    with pytest.raises(
        WrongResultError, match=r"1\.\d+ units in the last place, tolerance=\{'y': 2\} allows it if the"
    ):
        gated(declared())
    gated(declared(tolerance={"y": 2.5}, name="tolerant"))
    rounding = {"reference": lambda x, w, dtype: ((x * 0.3).to(dtype).double() * 1.1).to(dtype).double() * w}
    gated(declared(**rounding, name="rounding"))


def test_an_error_that_roundings_do_not_explain_is_said_to_be_so():
    with pytest.raises(
        WrongResultError, match=r"y: error is .* times what rounding allows: more than roundings explain"
    ):
        gated(declared(reference=lambda x, w: x * 0.4 * w))


def test_an_error_of_cancelling_roundings_asks_for_a_reference_that_rounds():
    @triton.jit
    def kernel(x_ptr, w_ptr, y_ptr, hidden, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        mask = offsets < hidden
        b_x = tl.load(x_ptr + tl.program_id(0) * hidden + offsets, mask=mask).to(tl.float32)
        b_y = (b_x * 3.3).to(x_ptr.dtype.element_ty).to(tl.float32) - tl.where(offsets == 0, 0.0, b_x * 3.29)
        tl.store(y_ptr + tl.program_id(0) * hidden + offsets, b_y, mask=mask)

    def function(x, w, y):
        kernel[(x.shape[0],)](x, w, y, x.shape[1], BLOCK=64)

    def positive(problem, generator, device):
        x = 1 + torch.rand(problem.rows, problem.hidden, generator=generator, device=device)
        return {"x": x.half(), "w": x[0].half()}

    def reference(x, w):
        first = torch.arange(x.shape[1], device=x.device) == 0
        return x * 3.3 - torch.where(first, 0.0, x * 3.29)

    with pytest.raises(WrongResultError, match="a reference may take `dtype` and round to it where the kernel does"):
        gated(declared(function, reference=reference, inputs=positive))


def test_integers_come_from_the_operators_inputs_and_have_to_be_equal():
    def inputs(problem, generator, device):
        shape = (problem.rows, problem.hidden)
        x = torch.randn(shape, generator=generator, device=device).to(getattr(torch, problem.dtype))
        return {"x": x, "index": torch.randint(problem.rows, (problem.rows,), generator=generator, device=device)}

    def function(x, index, y):
        _gather_kernel[(x.shape[0],)](x, index, y, x.shape[1], BLOCK=64)

    changes = {"buffers": {"x": "input", "index": "input rows int64", "y": "output"}, "inputs": inputs}
    gated(declared(function, **changes, reference=lambda x, index: x[index]))

    def copied(x, index, y):
        _gather_kernel[(x.shape[0],)](index.view(-1, 1), index, y, 1, BLOCK=1)

    of_integers = {"buffers": {"x": "input", "index": "input rows int64", "y": "output rows int64"}, "inputs": inputs}
    gated(declared(copied, **of_integers, reference=lambda x, index: index[index], name="copied"))
    with pytest.raises(
        WrongResultError, match=r"inf times what rounding allows: (\d+) of \1 integers differ: a reference"
    ):
        gated(declared(copied, **of_integers, reference=lambda x, index: index[index] + 1, name="wrong"))
