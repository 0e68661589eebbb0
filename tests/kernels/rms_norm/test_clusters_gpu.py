"""Rows in halves on a GPU: by clusters of few and of many rows, and by one program."""

import pytest
import torch

from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.rms_norm.launch import cluster_chunk
from normtune.tests.kernels.launching import outputs_of
from normtune.tuner.timing.gate import compare

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)
NAMES = ("rms_norm_backward", "fused_add_rms_norm_backward")
WARPS = 16


def launches(spec, problem, target):
    chunk = cluster_chunk(problem.hidden, 2, WARPS * target.warp_size)
    configs = [RMSNormConfig("cluster_2", 1, WARPS, 1, 0, "columns", columns) for columns in (32, 1024)]
    for stages, finish in ((1, "reduce"), (2, "dependent")):
        configs.append(RMSNormConfig("cluster_2", 1, WARPS, stages, 1, finish))
        configs.append(RMSNormConfig("split_2", 1, WARPS, stages, 1, finish, chunk))
    return [launch for config in configs if (launch := spec.launch_of(config, problem, target))]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("hidden", [9000, 12288, 16384, 20481, 32768])
@pytest.mark.parametrize("rows", [5, 300])
@pytest.mark.parametrize("key", [(name, variant) for name in NAMES for variant in operator(name).variants])
def test_a_row_in_halves_has_the_same_bits_by_every_launch_and_in_every_run(key, rows, hidden, dtype, target):
    if not target.has_clusters:
        pytest.skip("this GPU has no clusters")
    spec = operator(key[0])
    problem = spec.problem(rows, hidden, dtype, key[1])
    inputs = spec.references().inputs(problem, torch.Generator(DEVICE).manual_seed(hidden), DEVICE, False)
    inputs = {name: strided(tensor) if tensor.ndim == 2 else tensor for name, tensor in inputs.items()}
    expected = spec.references().reference(problem, inputs, 1e-6, 0.5)
    first = None
    for launch in launches(spec, problem, target):
        kept = None
        for _ in range(20):
            outputs = outputs_of(spec, problem, launch, inputs, offset=0.5)
            kept = outputs if kept is None else kept
            assert all(torch.equal(tensor, outputs[name]) for name, tensor in kept.items()), launch
        compare(kept, expected)
        first = kept["dx"] if first is None else first
        assert torch.equal(first, kept["dx"]), launch


def strided(tensor):
    """The same values, 16 elements between rows."""
    wide = torch.empty(tensor.shape[0], tensor.shape[1] + 16, dtype=tensor.dtype, device=tensor.device)
    wide[:, : tensor.shape[1]] = tensor
    return wide[:, : tensor.shape[1]]
