"""Launches of an operator's kernels on tensors of the CPU or a GPU, and the limits of what is compiled for one."""

import pytest
import torch

from normtune.kernels.call import run
from normtune.kernels.target import TARGETS
from normtune.tuner.compiling.pool import compile_all
from normtune.tuner.plan.binaries import jobs_of
from normtune.tuner.timing.gate import compare


def referenced(spec, problem, seed=0, hostile=True, device="cpu", **scalars):
    """Inputs, and the outputs that the reference gives for them; scalars other than the spec's."""
    device = torch.device(device)
    inputs = spec.references().inputs(problem, torch.Generator(device).manual_seed(seed), device, hostile)
    return inputs, spec.references().reference(problem, inputs, **{**spec.scalars, **scalars})


def nan_outputs(spec, problem, device="cpu"):
    """The outputs of a launch before it."""
    return {
        buffer.name: torch.full(buffer.shape, float("nan"), device=device).to(getattr(torch, buffer.dtype))
        for buffer in spec.buffers(problem)
        if buffer.role == "output"
    }


def calls_of(spec, problem, launch, tensors, **scalars):
    """The calls of a launch, its workspace full of NaN; scalars other than the spec's."""
    device = next(iter(tensors.values())).device
    workspace = torch.full((max(1, launch.workspace),), float("nan"), device=device)
    return spec.calls(launch, problem, tensors, workspace, {**spec.scalars, **scalars})


def outputs_of(spec, problem, launch, inputs, **scalars):
    """What a launch writes, on the device of its inputs; scalars other than the spec's."""
    outputs = nan_outputs(spec, problem, next(iter(inputs.values())).device)
    outputs |= {one.name: inputs[one.name].clone() for one in spec.buffers(problem) if one.role == "in-out"}
    run(calls_of(spec, problem, launch, {**inputs, **outputs}, **scalars))
    return outputs


def assert_within(outputs, expected, told):
    """Outputs are as near to the reference as rounding allows; else the test fails and says of what."""
    try:
        compare(outputs, expected)
    except RuntimeError as error:
        pytest.fail(f"{told}: {error}")


def compiled_within(target, pairs=None, jobs=None):
    """Compile (problem, launch) pairs, or jobs, ahead of time; what came of each is within the limits of the target."""
    found = list(compile_all(jobs_of(pairs) if jobs is None else jobs, target, workers=1, keep_assembly=True))
    assert found
    for one in found:
        assert one.status == "ok", one
        assert 0 <= one.shared_bytes <= TARGETS[target].shared_bytes
        assert 0 < one.threads <= TARGETS[target].max_threads
    return found
