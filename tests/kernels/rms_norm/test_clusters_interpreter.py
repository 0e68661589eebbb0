"""Rows over a cluster and in eight parts, run by Triton's interpreter, in which one number is exchanged by a plain sum.

It runs no PTX: test_few_rows_gpu.py has the exchange itself.
"""

import random

import pytest
import torch
import triton
import triton.language as tl

from normtune.kernels.call import run
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm import kernels as backward_cluster
from normtune.kernels.rms_norm.launch import CLUSTERS
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import calls_of, nan_outputs, referenced
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing.gate import compare

pytestmark = pytest.mark.interpreter

NAMES = ("rms_norm_backward", "fused_add_rms_norm_backward")
TARGET = TARGETS["sm_90"]


@triton.jit
def nothing():
    pass


@triton.jit
def plain_sum(b_part, parity, BLOCKS: tl.constexpr, IN_HALVES: tl.constexpr):
    return tl.zeros([BLOCKS], tl.float32) + tl.sum(b_part, axis=0)


@pytest.fixture(autouse=True)
def without_ptx(monkeypatch):
    monkeypatch.setattr(backward_cluster, "_arrive", nothing)
    monkeypatch.setattr(backward_cluster, "_wait", nothing)
    monkeypatch.setattr(backward_cluster, "_cluster_sum", plain_sum)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "hidden"), [(1, 8192), (3, 5000), (40, 4097), (70, 8200), (2, 33)])
@pytest.mark.parametrize("key", [(name, variant) for name in NAMES for variant in operator(name).variants])
def test_outputs_are_within_rounding(key, rows, hidden):
    spec = operator(key[0])
    draw = random.Random(f"{key}{rows}")
    for dtype in ("float32", "float16"):
        problem = spec.problem(rows, hidden, dtype, key[1])
        kept, _ = candidates(spec, spec.space("full", problem, TARGET), problem, TARGET)
        kept = [one for one in kept if one.config.schedule in CLUSTERS and not one.launch.looped]
        inputs, expected = referenced(spec, problem, hidden, offset=0.5)
        for config, launch in draw.sample(kept, min(2, len(kept))):
            outputs = nan_outputs(spec, problem)
            (call,) = calls_of(spec, problem, launch, inputs | outputs, offset=0.5)
            assert call.options["num_ctas"] == CLUSTERS[config.schedule]
            run([call._replace(options={**call.options, "num_ctas": 1})])
            compare(outputs, expected)


def assert_the_same_bits(spec, problem, launches):
    """Both launches are right, sum a row in one order and give dx the same bits."""
    inputs, expected = referenced(spec, problem, problem.hidden, offset=0.5)
    found = []
    for launch in launches:
        outputs = nan_outputs(spec, problem)
        calls = calls_of(spec, problem, launch, inputs | outputs, offset=0.5)
        run([call._replace(options={**call.options, "num_ctas": 1}) for call in calls])
        compare(outputs, expected)
        found.append(outputs["dx"])
    assert launches[0].row_sum == launches[1].row_sum
    assert torch.equal(*found)


@pytest.mark.slow
@pytest.mark.usefixtures("counted_loops")
@pytest.mark.parametrize("schedule", ["cluster_2", "cluster_4"])
@pytest.mark.parametrize(("rows", "hidden"), [(1, 8192), (9, 5000), (12, 4097), (2, 700)])
@pytest.mark.parametrize("key", [(name, variant) for name in NAMES for variant in operator(name).variants])
def test_clusters_of_few_rows_and_a_fixed_grid_of_them_have_the_same_bits(key, rows, hidden, schedule):
    spec, target = operator(key[0]), TARGET._replace(sms=16)  # fewer clusters than rows
    for dtype in ("float32", "float16"):
        problem = spec.problem(rows, hidden, dtype, key[1])
        configs = (
            RMSNormConfig(schedule, 1, 8, 1, 0, "columns", 64),
            RMSNormConfig(schedule, 1, 8, 1, 1, "reduce"),
        )
        launches = [spec.launch(config, problem, target) for config in configs]
        assert all(launch.parts == CLUSTERS[schedule] for launch in launches)
        assert_the_same_bits(spec, problem, launches)


@pytest.mark.slow
@pytest.mark.usefixtures("counted_loops")
@pytest.mark.parametrize(("rows", "hidden"), [(1, 16384), (9, 9000), (12, 8201)])
@pytest.mark.parametrize("key", [(name, variant) for name in NAMES for variant in operator(name).variants])
def test_one_program_adds_eight_parts_as_a_cluster_does(key, rows, hidden):
    spec, target = operator(key[0]), TARGET._replace(sms=4)  # fewer programs than rows
    for dtype, chunk in (("float32", 4096), ("float16", 8192)):
        problem = spec.problem(rows, hidden, dtype, key[1])
        configs = (
            RMSNormConfig("cluster_halves", 1, 4, 1, 0, "columns", 64),
            RMSNormConfig("split_8", 1, 16, 1, 1, "reduce", chunk),
        )
        assert_the_same_bits(spec, problem, [spec.launch(config, problem, target) for config in configs])
