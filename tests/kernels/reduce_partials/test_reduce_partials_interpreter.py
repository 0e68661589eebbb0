"""Numbers and masks of the sum, run by Triton's interpreter in float32 and float16."""

import random

import pytest
import torch

from normtune.kernels.call import run
from normtune.kernels.operator import operator
from normtune.kernels.reduce_partials.spec import ReduceConfig
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import assert_within, referenced
from normtune.tuner.plan.plan import candidates
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.timing import gate as gates

pytestmark = pytest.mark.interpreter

SPEC = operator("reduce_partials")
TARGET = TARGETS["sm_80"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("rows", "hidden"), [(1, 1), (7, 64), (132, 100), (1000, 33), (65, 1025)])
def test_sums_are_within_rounding(rows, hidden, dtype):
    problem = SPEC.problem(rows, hidden, dtype)
    kept, _ = candidates(SPEC, SPEC.space("full", problem, TARGET), problem, TARGET)
    inputs, expected = referenced(SPEC, problem, rows * hidden)
    for config, launch in random.Random(hidden).sample(kept, min(4, len(kept))):
        # What lies behind the last row and the last sum is neither read nor written.
        beyond = torch.full((rows + 1, hidden), float("nan"))
        beyond[:rows] = inputs["partials"]
        total = torch.full((hidden + 1,), 7.0, dtype=getattr(torch, dtype))
        tensors = {"partials": beyond[:rows], "total": total[:hidden]}
        run(SPEC.calls(launch, problem, tensors, None, {}))
        assert total[-1] == 7.0
        assert_within({"total": total[:hidden]}, expected, f"{config}")


def test_the_gate_passes_the_kernel_and_stops_one_that_leaves_out_a_row(monkeypatch):
    monkeypatch.setattr(gates, "CALLS", 2)
    problem = SPEC.problem(132, 48, "float32")
    config = ReduceConfig(64, 16, 4)
    candidate = Candidate(config, SPEC.launch(config, problem, TARGET))
    gates.gate(SPEC, problem, candidate, TARGET, torch.device("cpu"))
    plain = SPEC.kernels().calls

    def fewer(launch, problem, tensors, workspace):
        return plain(launch, problem._replace(rows=problem.rows - 1), tensors, workspace)

    monkeypatch.setattr(SPEC.kernels(), "calls", fewer)
    with pytest.raises(gates.WrongResultError, match="total"):
        gates.gate(SPEC, problem, candidate, TARGET, torch.device("cpu"))
