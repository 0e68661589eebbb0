"""Numbers, masks and row strides of the kernels beside their float64 reference, run by Triton's interpreter."""

import random

import pytest
import torch

from normtune.kernels.alignment import alignment_of
from normtune.kernels.call import run
from normtune.kernels.operator import operator
from normtune.kernels.qk_norm.launch import BACKWARD, FAMILY
from normtune.kernels.qk_norm.operator import qk_norm, qk_norm_backward
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import assert_within, calls_of, nan_outputs, referenced
from normtune.tests.kernels.problems import changed
from normtune.tests.kernels.qk_norm.heads import operator_name
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing.gate import compare

pytestmark = pytest.mark.interpreter

# Three multiprocessors, so that a fixed grid loops over few tokens.
TARGET = TARGETS["sm_80"]._replace(sms=3)
OFF = [*qk_norm.variants, "out_of_place+gptj+in_order", "gptj+whole_tables+rounded_product"]
OFF_BACKWARD = [*qk_norm_backward.variants, "no_dweight+gptj+in_order", "gptj+whole_tables"]
VARIANTS = [(FAMILY, off) for off in OFF] + [(BACKWARD, off) for off in OFF_BACKWARD]
SHAPES = [((3, 1, 5, 128), 1, 1), ((4, 2, 8, 6), 3, 7), ((1, 1, 2, 20), 5, 20), ((2, 1, 3, 16), 9, 48)]


def launched(spec, problem, launch, inputs):
    """The tensors after a launch; outputs were NaN."""
    tensors = {name: tensor.clone() for name, tensor in inputs.items()}
    tensors |= nan_outputs(spec, problem)
    run(calls_of(spec, problem, launch, tensors))
    return tensors


@pytest.mark.one_in(31)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("sizes", "rows", "hidden"), SHAPES)
@pytest.mark.parametrize(("family", "variant"), VARIANTS)
def test_outputs_are_within_rounding(family, variant, sizes, rows, hidden, dtype):
    spec = operator(operator_name(*sizes, family))
    problem = spec.problem(rows, hidden, dtype, variant)
    kept, _ = candidates(spec, spec.space("full", problem, TARGET), problem, TARGET)
    inputs, expected = referenced(spec, problem, rows)
    for config, launch in random.Random(f"{variant}{hidden}").sample(kept, min(3, len(kept))):
        tensors = launched(spec, problem, launch, inputs)
        assert_within({name: tensors[name] for name in expected}, expected, f"{config}")
        assert all(torch.equal(tensors[name], tensor) for name, tensor in inputs.items() if name not in expected)


@pytest.mark.parametrize("mistake", ["weights", "sign", "style", "positions", "offset"])
def test_the_reference_tells_mistakes(mistake):
    spec = operator(operator_name(2, 2, 4, 16))
    problem = spec.problem(5, 16, "float16", "gptj" if mistake == "style" else "")
    inputs, expected = referenced(spec, problem, 1)
    scalars = dict(spec.scalars)
    if mistake == "weights":
        inputs["weight_q"], inputs["weight_k"] = inputs["weight_k"], inputs["weight_q"]
    if mistake == "sign":
        inputs["sin"] = -inputs["sin"]
    if mistake == "positions":
        inputs["positions"] = (inputs["positions"] + 1) % 5
    if mistake == "offset":
        scalars["offset"] = 0.26
    problem = changed(problem, variant="")
    launch = spec.launch(spec.default_config(problem, TARGET), problem, TARGET)
    run(spec.calls(launch, problem, inputs, None, scalars))
    with pytest.raises(RuntimeError, match="times what rounding allows"):
        compare({name: inputs[name] for name in expected}, expected)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", ["weights", "sign", "positions", "dout"])
def test_the_reference_of_gradients_tells_mistakes(mistake):
    spec = operator(operator_name(2, 2, 5, 16, BACKWARD))
    problem = spec.problem(5, 16, "float16")
    inputs, expected = referenced(spec, problem, 1)
    if mistake == "weights":
        inputs["weight_q"], inputs["weight_k"] = inputs["weight_k"], inputs["weight_q"]
    if mistake == "sign":
        inputs["sin"] = -inputs["sin"]
    if mistake == "positions":
        inputs["positions"] = (inputs["positions"] + 1) % 5
    if mistake == "dout":
        inputs["dout"][4, 7] += 0.25
    tensors = launched(spec, problem, spec.launch(spec.default_config(problem, TARGET), problem, TARGET), inputs)
    for name in expected if mistake not in ("weights",) else ("dqkv",):
        with pytest.raises(RuntimeError, match="times what rounding allows"):
            compare({name: tensors[name]}, {name: expected[name]})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "variant"), [(FAMILY, ""), (FAMILY, "out_of_place"), (FAMILY, "gptj+in_order"), (BACKWARD, "no_dweight")]
)
def test_row_strides_are_free(family, variant):
    """Of every matrix, and whatever lies between tokens stays as it was."""
    spec = operator(operator_name(3, 1, 5, 12, family))
    problem = spec.problem(6, 16, "float32", variant)
    inputs, expected = referenced(spec, problem, 1)
    kept, _ = candidates(spec, spec.space("default", problem, TARGET), problem, TARGET)
    for gap in (16, 1, 6):
        for config, _ in random.Random(gap).sample(kept, 3):
            tensors, wide = dict(inputs), {}
            for buffer in spec.buffers(problem):
                if len(buffer.shape) == 2:
                    wide[buffer.name] = torch.full((6, buffer.shape[1] + gap), 7.0)
                    tensors[buffer.name] = wide[buffer.name][:, : buffer.shape[1]]
                    if buffer.name in inputs:
                        tensors[buffer.name].copy_(inputs[buffer.name])
            strides = [tensor.stride(0) for tensor in tensors.values() if tensor.dim() == 2]
            launch = spec.launch(config, problem, TARGET, alignment_of(16, *strides))
            run(spec.calls(launch, problem, tensors, None, spec.scalars))
            compare({name: tensors[name].contiguous() for name in expected}, expected)
            assert all((tensor[:, -gap:] == 7).all() for tensor in wide.values())
