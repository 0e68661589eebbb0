"""Ahead-of-time compilation of the gated kernels within the limits of absent GPUs."""

import pytest

from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import compiled_within
from normtune.tuner.compiling.pool import compile_all
from normtune.tuner.plan.plan import plan, problems

pytestmark = pytest.mark.long

MODES = ("", "gate_first", "no_gate")
KEYS = [f"rms_norm_gated_{direction}{mode and ':'}{mode}" for direction in ("forward", "backward") for mode in MODES]
KEYS += ["rms_norm_gated_forward:no_rstd+hugging_face", "rms_norm_gated_backward:no_dweight"]


def widest(jobs):
    """Of each kernel of each operator and variant, the binary whose tile holds most."""
    found = {}
    for job in sorted(jobs, key=lambda job: job.launch.block_row * job.launch.block_col):
        found[job.problem.key, job.launch.looped, job.launch.chunks > 0, job.launch.held] = job
    return sorted(set(found.values()))


@pytest.mark.slow
@pytest.mark.parametrize("choice", [widest, sorted])
@pytest.mark.parametrize(("target", "hidden"), [("sm_90", 128), ("sm_90", 12288), ("gfx942", 100)])
def test_the_default_space_compiles_within_the_limits(target, hidden, choice):
    keys = KEYS if choice is widest else ["rms_norm_gated_forward", "rms_norm_gated_backward"]
    jobs = choice(
        plan(problems(keys, ["bfloat16"], [(64, hidden), (1 << 20, hidden)]), "default", TARGETS[target]).jobs()
    )
    done = compiled_within(target, jobs=jobs)
    assert sorted(compiled.job for compiled in done) == jobs
    for compiled in done:
        names = [name for name, _ in compiled.binaries]
        assert len(names) == (2 if compiled.job.launch.workspace else 1)


@pytest.mark.slow
def test_heads_are_read_in_wide_accesses_whatever_their_strides():
    jobs = [
        job
        for job in plan(
            problems(["rms_norm_gated_forward"], ["bfloat16"], [(1 << 14, 128)]), "default", TARGETS["sm_90"]
        ).jobs()
        if job.launch.block_row * job.launch.block_col == 256 * job.launch.num_warps and not job.launch.looped
    ][:2]
    assert jobs
    for compiled in compile_all(jobs, "sm_90", workers=1, keep_assembly=True):
        text = compiled.binaries[0][1]
        assert "ld.global.v4.b32" in text and "st.global.v4.b32" in text


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
@pytest.mark.parametrize("hidden", [192, 800, 1536])
def test_rows_in_held_chunks_stay_in_registers(target, hidden):
    keys = [key for key in KEYS if "forward" in key]
    planned = plan(problems(keys, ["bfloat16"], [(1 << 14, hidden)]), "default", TARGETS[target]).jobs()
    jobs = widest([job for job in planned if job.launch.held])
    assert len(jobs) == len(keys)
    for compiled in compile_all(jobs, target, workers=1, keep_assembly=True):
        assert compiled.status == "ok", compiled
        assert compiled.resources[0].spilled_bytes == 0, compiled.job
        launch = compiled.job.launch
        if target == "sm_90" and launch.block_row * launch.block_col >= 256 * launch.num_warps:
            text = compiled.binaries[0][1]
            assert "ld.global.v4.b32" in text and "st.global.v4.b32" in text
