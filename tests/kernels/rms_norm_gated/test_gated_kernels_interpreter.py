"""Numbers, masks, strides and groups of the gated kernels, run by Triton's interpreter."""

import random

import pytest
import torch

from normtune.kernels.call import run
from normtune.kernels.operator import operator
from normtune.kernels.target import TARGETS
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing.gate import compare

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("counted_loops", "rounded_bfloat16")]

# Three multiprocessors, so that a fixed grid loops over few rows; an architecture without dependent launches.
TARGET = TARGETS["sm_80"]._replace(sms=3)
SHAPES = [(1, 1), (7, 64), (33, 100), (1, 77), (19, 1), (6, 1000)]
DTYPES = ("float32", "float16", "bfloat16")
MODES = ("", "gate_first", "no_gate")
KEYS = [
    *(("rms_norm_gated_forward", mode) for mode in MODES),
    ("rms_norm_gated_forward", "no_rstd"),
    *(("rms_norm_gated_forward", f"{mode}+hugging_face".lstrip("+")) for mode in MODES),
    *(("rms_norm_gated_backward", mode) for mode in MODES),
    ("rms_norm_gated_backward", "no_dweight+gate_first"),
]


def outputs_of(spec, problem):
    return {
        buffer.name: torch.full(buffer.shape, float("nan"), dtype=getattr(torch, buffer.dtype))
        for buffer in spec.buffers(problem)
        if buffer.role == "output"
    }


def launches_of(spec, problem):
    """One legal config of each schedule of the full space, with its launch."""
    kept, _ = candidates(spec, spec.space("full", problem, TARGET), problem, TARGET)
    random.Random(problem.hidden).shuffle(kept)
    return {config.schedule: (config, launch) for config, launch in kept}.values()


@pytest.mark.parametrize(
    ("key", "shape", "dtype"),
    [
        (key, shape, DTYPES[(number + other) % 3])  # each mode in each dtype, and each dtype at each shape
        for number, key in enumerate(KEYS)
        for other, shape in enumerate(SHAPES)
    ],
    ids=str,
)
def test_outputs_are_within_rounding(key, shape, dtype):
    rows, hidden = shape
    spec = operator(key[0])
    problem = spec.problem(rows, hidden, dtype, key[1])
    offset = 0.0 if "hugging_face" in key[1] else 0.25
    inputs = spec.references().inputs(problem, torch.Generator().manual_seed(rows), torch.device("cpu"), True)
    expected = spec.references().reference(problem, inputs, 1e-6, offset)
    for config, launch in launches_of(spec, problem):
        outputs = outputs_of(spec, problem)
        workspace = torch.full((max(1, launch.workspace),), float("nan"))
        run(spec.kernels().calls(launch, problem, inputs | outputs, workspace, 1e-6, offset))
        try:
            compare(outputs, expected)
        except RuntimeError as error:
            pytest.fail(f"{config}: {error}")
