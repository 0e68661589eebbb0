"""Bounds of the gated backward's space, and what the compiler spills on both sides of them."""

import pytest

from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.config import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.tuner.compiling.pool import compile_all
from normtune.tuner.plan.binaries import Job
from normtune.tuner.plan.plan import candidates

BACKWARD = operator("rms_norm_gated_backward")


def elements_of_a_row(launch, target):
    """Per thread, of a row in chunks."""
    return launch.chunks * launch.block_col // (launch.num_warps * target.warp_size)


@pytest.mark.parametrize("name", ["quick", "default"])
@pytest.mark.parametrize("hidden", [2560, 4096, 5120, 8192, 16384, 32768, 65536])
def test_a_thread_holds_at_most_64_elements_of_a_row_in_chunks_and_a_program_a_tile_of_8192(name, hidden):
    for target in TARGETS.values():
        problem = BACKWARD.problem(4096, hidden, "bfloat16")
        kept, _ = candidates(BACKWARD, BACKWARD.space(name, problem, target), problem, target)
        split = [launch for config, launch in kept if config.schedule == "split"]
        assert split
        assert all(launch.block_row * launch.block_col <= 8192 for _, launch in kept if launch not in split)
        assert all(elements_of_a_row(launch, target) <= 64 for launch in split), target.name


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_left_out_stays_legal_and_in_the_full_space(dtype):
    target, problem = TARGETS["sm_90"], BACKWARD.problem(4096, 4096, dtype)
    left_out = RMSNormConfig("split", 1, 1, 1, 1, "dependent", 2048)
    assert elements_of_a_row(BACKWARD.launch(left_out, problem, target), target) == 128
    assert left_out in BACKWARD.space("full", problem, target)
    assert left_out not in BACKWARD.space("default", problem, target)


@pytest.mark.long
@pytest.mark.slow
def test_threads_spill_where_they_hold_more():
    target = TARGETS["sm_90"]
    jobs = {}
    for hidden in (2048, 4096):  # 64 and 128 elements of a row a thread
        problem = BACKWARD.problem(4096, hidden, "bfloat16")
        config = RMSNormConfig("split", 1, 1, 1, 1, "dependent", 1024)
        jobs[hidden] = Job(problem, BACKWARD.launch(config, problem, target))
    spilled = {
        compiled.job.problem.hidden: compiled.resources[0].spilled_bytes
        for compiled in compile_all(list(jobs.values()), "sm_90", workers=1, keep_assembly=True)
    }
    assert spilled[2048] <= 160 and spilled[4096] >= 800, spilled
