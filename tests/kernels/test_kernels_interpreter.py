"""Numbers, masks, strides and offsets of the kernels, run by Triton's interpreter in float32 and float16."""

import random

import pytest
import torch

from normtune.kernels.alignment import alignment_of
from normtune.kernels.call import run
from normtune.kernels.operator import operator, operators
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import assert_within, calls_of, nan_outputs, outputs_of, referenced
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing.gate import compare

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("counted_loops")]

# Three multiprocessors, so that a fixed grid loops over few rows; an architecture without what the interpreter cannot
# run: dependent launches, and rows that are fetched ahead.
TARGET = TARGETS["sm_80"]._replace(sms=3)
NAMES = tuple(name for name in operators() if name.startswith(("rms_norm_forward", "rms_norm_backward", "fused_add")))
SHAPES = [(1, 1), (7, 64), (33, 100), (1, 77), (40, 1000), (19, 1), (130, 5)]


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("rows", "hidden"), SHAPES)
@pytest.mark.parametrize("key", [(name, variant) for name in NAMES for variant in operator(name).variants])
@pytest.mark.slow
def test_outputs_are_within_rounding(key, rows, hidden, dtype, offset):
    spec = operator(key[0])
    problem = spec.problem(rows, hidden, dtype, key[1])
    kept, _ = candidates(spec, spec.space("full", problem, TARGET), problem, TARGET)
    inputs, expected = referenced(spec, problem, rows * hidden, offset=offset)
    for config, launch in random.Random(hidden).sample(kept, min(3, len(kept))):
        assert_within(outputs_of(spec, problem, launch, inputs, offset=offset), expected, f"{config}")


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("hidden", "stride"), [(64, 64), (64, 80), (64, 67), (33, 48), (48, 48)])
def test_row_strides_are_free(name, hidden, stride):
    spec = operator(name)
    problem = spec.problem(13, hidden, "float32")
    inputs, expected = referenced(spec, problem, 1, offset=0.5)
    tensors = inputs | nan_outputs(spec, problem)
    for tensor_name, tensor in tensors.items():
        if tensor.dim() == 2:
            wide = torch.full((13, stride), float("nan"))
            wide[:, :hidden] = tensor
            tensors[tensor_name] = wide[:, :hidden]
    kept, _ = candidates(spec, spec.space("default", problem, TARGET), problem, TARGET)
    for config, _ in kept[:: max(1, len(kept) // 5)]:
        launch = spec.resolve(config, problem, TARGET, alignment_of(hidden, stride))
        for buffer in spec.buffers(problem):
            if buffer.role == "output":
                tensors[buffer.name].fill_(float("nan"))
        run(calls_of(spec, problem, launch, tensors, offset=0.5))
        compare({output: tensors[output] for output in expected}, expected)
