"""Rows in parts on a GPU: in halves by clusters of few and of many rows, in eight by clusters and by one program."""

import pytest
import torch

from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.tests.kernels.launching import outputs_of
from normtune.tuner.timing.gate import compare

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)
NAMES = ("rms_norm_backward", "fused_add_rms_norm_backward")
FINISHES = ((1, "reduce"), (2, "dependent"))


def orders(itemsize):
    """Two lists of configs, each with one order of a row's sum: of eight parts, and of halves."""
    chunk = 16 // itemsize * 128 * 8
    eighths = [RMSNormConfig("cluster_halves", 1, 4, 1, 0, "columns", columns) for columns in (32, 64)]
    eighths += [
        RMSNormConfig("split_8", 1, warps, stages, 1, finish, chunk)
        for warps in (16, 32)
        for stages, finish in FINISHES
    ]
    halves = [RMSNormConfig("cluster_2", 1, 16, 1, 0, "columns", columns) for columns in (32, 1024)]
    halves += [RMSNormConfig("cluster_2", 1, 16, stages, 1, finish) for stages, finish in FINISHES]
    return eighths, halves


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("hidden", [9000, 12288, 16384, 20481, 32768])
@pytest.mark.parametrize("rows", [5, 300])
@pytest.mark.parametrize("key", [(name, variant) for name in NAMES for variant in operator(name).variants])
def test_a_row_in_parts_has_the_same_bits_by_every_launch_and_in_every_run(key, rows, hidden, dtype, target):
    if not target.has_clusters:
        pytest.skip("this GPU has no clusters")
    spec = operator(key[0])
    problem = spec.problem(rows, hidden, str(dtype).removeprefix("torch."), key[1])
    inputs = spec.references().inputs(problem, torch.Generator(DEVICE).manual_seed(hidden), DEVICE, False)
    inputs = {name: strided(tensor) if tensor.ndim == 2 else tensor for name, tensor in inputs.items()}
    expected = spec.references().reference(problem, inputs, 1e-6, 0.5)
    for configs in orders(dtype.itemsize):
        launches = [spec.launch(config, problem, target) for config in configs]
        assert len({launch.row_sum for launch in launches}) == 1
        first = None
        for launch in launches:
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
