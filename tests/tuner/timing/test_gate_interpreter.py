"""The gate passes right results and stops those that are wrong in one element, one shape or one byte."""

import dataclasses
import itertools

import pytest
import torch

from normtune.kernels.call import KernelCall
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.spec_faults import OperatorError
from normtune.kernels.target import TARGETS
from normtune.kernels.tiles.trial import PASSES
from normtune.tuner.plan.plan import candidates
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.timing.gate import LaunchFailedError, WrongResultError, compare, gate
from normtune.tuner.timing.trial import gate_launch

pytestmark = pytest.mark.interpreter

TARGET = TARGETS["sm_80"]  # without what the interpreter cannot run: dependent launches, rows fetched ahead
CPU = torch.device("cpu")


@pytest.fixture
def few_calls(monkeypatch):
    """The interpreter takes a tenth of a second for each, and has no pipeline to be filled."""
    monkeypatch.setattr("normtune.tuner.timing.gate.CALLS", 3)
    monkeypatch.setattr("normtune.kernels.tiles.trial.PASSES", 2)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["rms_norm_forward", "rms_norm_backward"])
@pytest.mark.parametrize("rows", [1, 5000])
def test_right_kernels_pass(key, rows, few_calls):
    spec = operator(key)
    problem = spec.problem(rows, 96, "float32")
    kept, _ = candidates(spec, spec.space("default", problem, TARGET), problem, TARGET)
    for candidate in kept[:: max(1, len(kept) // 4)]:
        gate(spec, problem, candidate, TARGET, CPU)


@pytest.mark.parametrize("key", ["rms_norm_forward", "rms_norm_backward"])
@pytest.mark.parametrize("rows", [1, 100, 100_000])
def test_the_gate_tries_the_binary_that_is_timed_and_loops_it(key, rows):
    spec = operator(key)
    problem = spec.problem(rows, 192, "bfloat16")
    kept, _ = candidates(spec, spec.space("full", problem, TARGET), problem, TARGET)
    for candidate in kept:
        tried, launch = gate_launch(spec, problem, candidate, TARGET)
        assert launch.binary == candidate.launch.binary
        assert tried.rows % launch.block_row or launch.block_row == 1
        assert tried.rows > 4
        if launch.looped:
            assert tried.rows >= PASSES * launch.grid * launch.block_row
        else:
            slices = -(-192 // launch.slice_col) if launch.slice_col else 0
            assert (launch.grid - slices) * launch.block_row >= tried.rows
            assert tried.rows > 2 * launch.slice_row  # a program of columns walks on, more than once


def test_a_config_that_a_table_has_for_all_rows_is_tried_on_few():
    spec, target = operator("rms_norm_forward"), TARGETS["sm_90"]
    for rows, least, most in ((1, 2, 8), (40, 34, 66), (100, 62, 100), (4096, 67, 300), (1 << 30, 67, 300)):
        problem, config = spec.problem(rows, 16384, "bfloat16"), RMSNormConfig("parts", 1, 16, 1, 1)
        launch = spec.launch(config, problem, target)
        tried, found = gate_launch(spec, problem, Candidate(config, launch), target)
        assert found.binary == launch.binary and least <= tried.rows <= most, rows


def sabotaged(spec, harm):
    """The operator with kernels that run and are then harmed."""
    real = spec.calls_function()

    def calls(launch, problem, tensors, workspace, eps, offset):
        def kernel(*args, **options):
            harm(tensors)

        class Harm:
            def __getitem__(self, grid):
                return kernel

        made = real(launch, problem, tensors, workspace, eps, offset)
        return (*made, KernelCall(Harm(), (1,), (), {}))

    broken = dataclasses.replace(spec)
    object.__setattr__(broken, "calls_function", lambda: calls)
    return broken


def one_value(tensors):
    tensors["y"][0, -1] *= 1 + 1e-5


def unwritten_row(tensors):
    tensors["y"][7] = float("nan")


def beyond_the_end(tensors):
    y = tensors["y"]
    torch.as_strided(y, (1,), (1,), y.storage_offset() + y.numel())[0] = 0.0


def before_the_start(tensors):
    y = tensors["y"]
    torch.as_strided(y, (1,), (1,), y.storage_offset() - 1)[0] = 0.0


def written_input(tensors):
    tensors["x"][0, 0] += 1


def written_weight(tensors):
    tensors["weight"].mul_(2)


def rstd_of_bfloat16(tensors):
    tensors["rstd"].copy_(tensors["rstd"].bfloat16())


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (one_value, "y: error is"),
        (unwritten_row, "y: 48 of 1008 elements are NaN or unwritten"),
        (beyond_the_end, "y: wrote outside"),
        (before_the_start, "y: wrote outside"),
        (rstd_of_bfloat16, "rstd: error is"),
        (written_input, "x: is an input and was written"),
        (written_weight, "weight: is an input and was written"),
    ],
)
def test_wrong_kernels_are_stopped(harm, message, few_calls, monkeypatch):
    spec = operator("rms_norm_forward")
    problem = spec.problem(64, 48, "float32")
    kept, _ = candidates(spec, spec.space("default", problem, TARGET), problem, TARGET)
    gate(sabotaged(spec, lambda tensors: None), problem, kept[0], TARGET, CPU)
    monkeypatch.setattr("normtune.tuner.timing.gate.CALLS", 1)  # what is added to an input shows in the next output
    with pytest.raises(WrongResultError, match=message):
        gate(sabotaged(spec, harm), problem, kept[0], TARGET, CPU)
    gate(spec, problem, kept[0], TARGET, CPU)  # the next one gets inputs as they were


@pytest.mark.slow
@pytest.mark.parametrize("key", ["rms_norm_forward", "rms_norm_backward"])
def test_float32_weights_are_compared_as_such(key, few_calls):
    spec = operator(key)
    problem = spec.problem(64, 96, "float16")
    kept, _ = candidates(spec, spec.space("default", problem, TARGET), problem, TARGET)
    gate(spec, problem, kept[0], TARGET, CPU, wide=True)
    seen = []
    gate(sabotaged(spec, seen.append), problem, kept[0], TARGET, CPU, wide=True)
    assert seen[0]["weight"].dtype == torch.float32 and seen[0]["x"].dtype == torch.float16
    assert not torch.equal(seen[0]["weight"], seen[0]["weight"].half().float())
    if key == "rms_norm_backward":
        assert seen[0]["dweight"].dtype == torch.float32


def test_compare_names_what_is_off():
    value = torch.ones(4, dtype=torch.float64)
    expected = {"y": (value, value * 0.1)}
    compare({"y": torch.tensor([1.0, 1.09, 0.91, 1.0])}, expected)
    with pytest.raises(WrongResultError, match=r"y: error is 2 times what rounding allows"):
        compare({"y": torch.tensor([1.0, 1.2, 1.0, 1.0])}, expected)
    with pytest.raises(WrongResultError, match="inf"):
        compare({"y": torch.tensor([1.0, float("inf"), 1.0, 1.0])}, expected)


@pytest.mark.parametrize(
    ("wrong", "error"), [(3.0, "error is inf times"), (float("nan"), "1 of 4 elements are NaN or unwritten")]
)
def test_an_output_that_must_be_exact_and_is_is_not_named(wrong, error):
    exact = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    expected = {"sum": exact, "q": exact, "y": (exact[0], exact[0] * 0.1)}
    right = {name: torch.ones(4) for name in expected}
    compare(right, expected)
    with pytest.raises(WrongResultError, match=r"y: error is 20 times"):
        compare(right | {"y": torch.full((4,), 3.0)}, expected)
    with pytest.raises(WrongResultError, match=f"q: {error}"):
        compare(right | {"q": torch.tensor([1.0, wrong, 1.0, 1.0])}, expected)


def on_call(numbers, harm):
    """Harm that is done on calls of these numbers only."""
    count = itertools.count(1)
    return lambda tensors: harm(tensors) if next(count) in numbers else None


def other_rounding(tensors):
    tensors["y"][0, -1] *= 1 + 2**-23


@pytest.mark.slow
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (on_call({3, 6, 9}, one_value), "y: error is .* in some calls"),
        (on_call({3, 6, 9}, unwritten_row), "y: .* elements are NaN or unwritten, in some calls"),
        (on_call({3}, one_value), "other bits in one call, which 60 further calls did not repeat"),
    ],
)
def test_a_result_that_is_wrong_now_and_then_is_stopped(harm, message, few_calls):
    spec = operator("rms_norm_forward")
    problem = spec.problem(64, 48, "float32")
    kept, _ = candidates(spec, spec.space("default", problem, TARGET), problem, TARGET)
    with pytest.raises(WrongResultError, match=message):
        gate(sabotaged(spec, harm), problem, kept[0], TARGET, CPU)


def test_a_result_that_rounds_differently_now_and_then_is_right(few_calls):
    spec = operator("rms_norm_forward")
    problem = spec.problem(64, 48, "float32")
    kept, _ = candidates(spec, spec.space("default", problem, TARGET), problem, TARGET)
    gate(sabotaged(spec, on_call(range(0, 1000, 2), other_rounding)), problem, kept[0], TARGET, CPU)


@pytest.mark.parametrize(
    ("early", "kind", "told"),
    [
        (False, LaunchFailedError, r"^ZeroDivisionError: no rows$"),
        # Before there is a kernel to launch.
        (True, OperatorError, r"^operator 'rms_norm_forward': its calls raises ZeroDivisionError: no rows \(test_gate"),
    ],
)
def test_what_a_launch_throws_is_the_fault_of_its_config_and_what_makes_it_throws_is_not(early, kind, told, few_calls):
    def refuse(*_, **scalars):
        raise ZeroDivisionError("no rows\nat all")

    spec = operator("rms_norm_forward")
    problem = spec.problem(64, 48, "float32")
    kept, _ = candidates(spec, spec.space("default", problem, TARGET), problem, TARGET)
    with pytest.raises(kind, match=told) as failed:
        broken = sabotaged(spec, refuse)
        if early:
            object.__setattr__(broken, "calls_function", lambda: refuse)
        gate(broken, problem, kept[0], TARGET, CPU)
    assert early or failed.value.status == "crashed"
