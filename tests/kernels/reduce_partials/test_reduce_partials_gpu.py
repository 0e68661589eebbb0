"""The sum of partial sums on a GPU: the gate over its space, and equal bits in every launch."""

import pytest
import torch

from normtune.kernels.call import run
from normtune.kernels.operator import operator
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing.gate import gate

pytestmark = pytest.mark.gpu

SPEC = operator("reduce_partials")
DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("rows", "hidden"), [(1, 1), (16, 1 << 20), (132, 4096), (2112, 64), (1000, 12289)])
def test_the_space_passes_the_gate(rows, hidden, dtype, target):
    problem = SPEC.problem(rows, hidden, dtype)
    kept, _ = candidates(SPEC, SPEC.space("default", problem, target), problem, target)
    assert kept
    for candidate in kept[:: max(1, len(kept) // 6)]:
        gate(SPEC, problem, candidate, target, DEVICE)


def test_every_launch_gives_the_same_bits(target):
    problem = SPEC.problem(264, 4096, "float32")
    partials = torch.randn(264, 4096, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))
    for config in SPEC.space("default", problem, target):
        launch = SPEC.launch(config, problem, target)
        totals = torch.full((2, 4096), float("nan"), device=DEVICE)
        for total in totals:
            run(SPEC.calls(launch, problem, {"partials": partials, "total": total}, None, {}))
        assert torch.equal(*totals)
