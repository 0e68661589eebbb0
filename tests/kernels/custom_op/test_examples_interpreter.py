"""Decorated operators are gated and called: the examples, one that writes what it reads, wrong ones."""

import sys
from pathlib import Path
from typing import Annotated

import pytest
import torch
import triton
import triton.language as tl

from normtune.kernels import load_file, operator
from normtune.kernels.call import ImplementationLaunch
from normtune.kernels.config import Config, Implementation
from normtune.kernels.custom_op.decorator import kernel_operator
from normtune.kernels.spec_faults import OperatorError
from normtune.kernels.target import TARGETS
from normtune.tuner.plan.plan import candidates
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.timing import gate as gates
from normtune.tuner.timing import trial as trials
from normtune.tuner.timing.gate import WrongResultError, gate

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("operators_forgotten")]
EXAMPLES = Path(__file__).parents[3] / "examples"
TARGET = TARGETS["sm_90"]
CPU = torch.device("cpu")


class AddConfig(Config):
    """How the addition is launched."""

    block: Annotated[int, "elements a program."] = 64


@triton.jit
def _add_kernel(x_ptr, sum_ptr, count, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    b_sum = tl.load(x_ptr + offsets, mask=mask) * factor + tl.load(sum_ptr + offsets, mask=mask)
    tl.store(sum_ptr + offsets, b_sum, mask=mask)


def add(x, sum, factor, config):
    """Add a multiple of x to what `sum` holds."""
    count = x.numel()
    _add_kernel[lambda meta: (triton.cdiv(count, meta["BLOCK"]),)](x, sum, count, factor, BLOCK=config.block)


def added(x, sum, factor):
    return sum + factor * x


@pytest.fixture(autouse=True)
def door(monkeypatch):
    """Few rows and calls, as interpreted programs run one after another."""
    monkeypatch.setattr(gates, "CALLS", 3)
    monkeypatch.setattr(trials, "TRIAL_ROWS", (13, 16, 1))


def declared(function=add, reference=added, **changes):
    arguments = {
        "config": AddConfig,
        "space": {"block": (64, 256)},
        "buffers": {"x": "input rows,heads,hidden", "sum": "in-out rows,heads,hidden float32"},
        "scalars": {"factor": 0.5},
        "sizes": {"heads": (2, 4)},
        "name": "added",
    }
    return kernel_operator(reference=reference, **(arguments | changes))(function)


def candidates_of(spec, rows=16, hidden=24, dtype="float32"):
    problem = spec.problem(rows, hidden, dtype)
    return problem, candidates(spec, spec.configs("default", problem, TARGET), problem, TARGET)[0]


@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_the_examples_pass_the_gate_and_can_be_called(name):
    load_file.load(EXAMPLES / f"{name}.py")
    spec = operator.operator(name)
    problem, kept = candidates_of(spec, hidden=40, dtype="bfloat16")
    for candidate in (kept[0], kept[len(kept) // 2], kept[-1]):
        gate(spec, problem, candidate, TARGET, CPU)
    if name == "softmax":
        function = sys.modules["normtune_operators_softmax"].softmax
        x = torch.randn(3, 5, 40, dtype=torch.float16)
        y = torch.empty(15, 40, dtype=torch.float16)
        for config in (None, spec.config(2, 1), Implementation("torch")):
            function(x.view(15, 40), y, config=config)
            torch.testing.assert_close(y, torch.softmax(x.float(), 2).half().view(15, 40), rtol=2e-3, atol=1e-4)
        with pytest.raises(TypeError, match="softmax takes x, y: got 1 values"):
            function(x)


def test_what_is_read_and_written_is_restored_between_launches():
    family = declared(implementations={"torch": lambda x, sum, factor: sum.add(x, alpha=factor)})
    for heads in (2, 4):
        spec = operator.operator(f"added.heads={heads}")
        problem, kept = candidates_of(spec)
        assert spec.bytes_moved(problem) == 3 * 4 * 16 * heads * 24
        assert [type(one.launch) is ImplementationLaunch for one in kept] == [False, False, True]
        for candidate in kept:
            gate(spec, problem, candidate, TARGET, CPU)
    x, total = torch.ones(5, 3, 8), torch.full((5, 3, 8), 2.0)
    family(x, total)
    assert (total == 2.5).all()
    family(x, sum=total, factor=2.0, config=AddConfig(256))
    assert (total == 4.5).all()


def test_a_wrong_operator_does_not_pass():
    declared(reference=lambda x, sum, factor: sum + x)
    spec = operator.operator("added.heads=2")
    problem, kept = candidates_of(spec)
    with pytest.raises(WrongResultError, match="sum: error is"):
        gate(spec, problem, kept[0], TARGET, CPU)


def test_a_wrong_implementation_does_not_pass():
    declared(implementations={"wrong": lambda x, sum, factor: x})
    spec = operator.operator("added.heads=2")
    problem, _ = candidates_of(spec)
    launch = spec.launch(Implementation("wrong"), problem, TARGET)
    with pytest.raises(WrongResultError, match="sum: error is"):
        gate(spec, problem, Candidate(Implementation("wrong"), launch), TARGET, CPU)


def test_a_reference_of_another_shape_is_told():
    declared(reference=lambda x, sum, factor: (sum + factor * x)[0])
    spec = operator.operator("added.heads=2")
    problem, kept = candidates_of(spec)
    told = r"operator 'added.heads=2': its reference returns sum of float64 \(2, 24\): expected float64 \(16, 2, 24\)"
    with pytest.raises(OperatorError, match=told):
        gate(spec, problem, kept[0], TARGET, CPU)
