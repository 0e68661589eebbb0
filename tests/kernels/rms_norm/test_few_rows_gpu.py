"""Schedules for few rows on a GPU: a row over several programs, and over the blocks of a cluster."""

import pytest
import torch

from normtune.kernels.call import run
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.tests.kernels.launching import nan_outputs
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing.gate import gate

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda", 0)
FORWARD = ("rms_norm_forward", "fused_add_rms_norm_forward", "rms_norm_gated_forward")
BACKWARD = ("rms_norm_backward", "fused_add_rms_norm_backward")
SCHEDULES = ("parts", "cluster_2", "cluster_4", "cluster_8")


def tensors_of(spec, problem, hostile=True):
    """Inputs, and outputs of NaN."""
    generator = torch.Generator(DEVICE).manual_seed(problem.hidden)
    tensors = spec.references().inputs(problem, generator, DEVICE, hostile)
    return tensors | nan_outputs(spec, problem, DEVICE)


def calls_of(spec, config, problem, tensors, target):
    return spec.calls_function()(spec.launch(config, problem, target), problem, tensors, None, 1e-6, 0.5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("hidden", [1500, 4099, 5120, 8192, 12288, 32768, 65536])
@pytest.mark.parametrize("key", [(name, variant) for name in FORWARD + BACKWARD for variant in operator(name).variants])
def test_they_pass_the_gate(key, hidden, dtype, target):
    spec = operator(key[0])
    for rows in (1, 3, 33, 128):
        problem = spec.problem(rows, hidden, dtype, key[1])
        kept, _ = candidates(spec, spec.space("full", problem, target), problem, target)
        kept = [candidate for candidate in kept if candidate.config.schedule in SCHEDULES]
        for candidate in kept[rows % 5 :: 1 + len(kept) // 2]:
            gate(spec, problem, candidate, target, DEVICE)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("hidden", [1024, 4099, 5120, 16384, 32768])
@pytest.mark.parametrize("name", FORWARD)
def test_parts_have_the_bits_of_whole_rows(name, hidden, dtype, target):
    spec = operator(name)
    for rows in (1, 7, 64):
        problem = spec.problem(rows, hidden, dtype)
        found = []
        for schedule in ("row", "parts"):
            tensors = tensors_of(spec, problem, hostile=False)
            run(calls_of(spec, RMSNormConfig(schedule, 1, 16, 1, 2), problem, tensors, target))
            found.append(tensors)
        assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


@pytest.mark.parametrize("schedule", SCHEDULES[1:])
def test_clusters_have_the_same_bits_in_every_launch(schedule, target):
    spec = operator("rms_norm_backward")
    config = RMSNormConfig(schedule, 1, 8, 1, 0, "columns", 64)
    problem = spec.problem(50, 20000, "bfloat16")
    first, other = (tensors_of(spec, problem, hostile=False) for _ in range(2))
    run(calls_of(spec, config, problem, first, target))
    wanted = {name: first[name].clone() for name in ("dx", "dweight")}
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(500):
        for stream, tensors in zip(streams, (first, other), strict=True):
            with torch.cuda.stream(stream):
                run(calls_of(spec, config, problem, tensors, target))
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        run(calls_of(spec, config, problem, first, target))
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(wanted[name], tensors[name]) for name in wanted for tensors in (first, other))


@pytest.mark.parametrize("schedule", SCHEDULES[1:])
def test_a_kept_launch_of_a_cluster_is_the_public_one(schedule, target):
    from normtune.kernels.calling.launcher import bind_launch

    spec, problem = operator("rms_norm_backward"), operator("rms_norm_backward").problem(9, 8192, "bfloat16")
    launch = spec.launch(RMSNormConfig(schedule, 1, 4, 1, 0, "columns", 32), problem, target)
    tensors = tensors_of(spec, problem, hostile=False)
    kept = bind_launch(spec, launch, problem, tensors, {"eps": 1e-6, "offset": 0.5})
    assert kept.is_fast
    run(spec.calls_function()(launch, problem, tensors, None, 1e-6, 0.5))
    wanted = {name: tensors[name].clone() for name in ("dx", "dweight")}
    for name in wanted:
        tensors[name].fill_(float("nan"))
    kept(*tensors.values())
    assert all(torch.equal(wanted[name], tensors[name]) for name in wanted)
