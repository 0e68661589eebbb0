"""Rows over a cluster, run by Triton's interpreter, in which one number a row is exchanged by a plain sum.

It runs no PTX: test_few_rows_gpu.py has the exchange itself.
"""

import random

import pytest
import torch
import triton
import triton.language as tl

from normtune.kernels.call import run
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm import backward_cluster
from normtune.kernels.rms_norm.launch import CLUSTERS
from normtune.kernels.target import TARGETS
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing.gate import compare

pytestmark = pytest.mark.interpreter

NAMES = ("rms_norm_backward", "fused_add_rms_norm_backward")
TARGET = TARGETS["sm_90"]


@triton.jit
def nothing():
    pass


@triton.jit
def plain_sum(b_part, BLOCKS: tl.constexpr):
    return tl.zeros([BLOCKS], tl.float32) + tl.sum(b_part, axis=0)


@pytest.fixture(autouse=True)
def without_ptx(monkeypatch):
    monkeypatch.setattr(backward_cluster, "_arrive", nothing)
    monkeypatch.setattr(backward_cluster, "_wait", nothing)
    monkeypatch.setattr(backward_cluster, "_cluster_sum", plain_sum)


@pytest.mark.parametrize(("rows", "hidden"), [(1, 8192), (3, 5000), (40, 4097), (70, 8200), (2, 33)])
@pytest.mark.parametrize("key", [(name, variant) for name in NAMES for variant in operator(name).variants])
def test_outputs_are_within_rounding(key, rows, hidden):
    spec = operator(key[0])
    draw = random.Random(f"{key}{rows}")
    for dtype in ("float32", "float16"):
        problem = spec.problem(rows, hidden, dtype, key[1])
        kept, _ = candidates(spec, spec.space("full", problem, TARGET), problem, TARGET)
        kept = [candidate for candidate in kept if candidate.config.schedule in CLUSTERS]
        inputs = spec.references().inputs(problem, torch.Generator().manual_seed(hidden), torch.device("cpu"), True)
        expected = spec.references().reference(problem, inputs, 1e-6, 0.5)
        for config, launch in draw.sample(kept, min(2, len(kept))):
            outputs = {
                buffer.name: torch.full(buffer.shape, float("nan"), dtype=getattr(torch, buffer.dtype))
                for buffer in spec.buffers(problem)
                if buffer.role == "output"
            }
            (call,) = spec.kernels().calls(launch, problem, inputs | outputs, None, 1e-6, 0.5)
            assert call.options["num_ctas"] == CLUSTERS[config.schedule]
            run([call._replace(options={**call.options, "num_ctas": 1})])
            compare(outputs, expected)
