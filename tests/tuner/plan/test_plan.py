"""Plans: legal, without repetition, with the number of omissions by reason."""

import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.tuner.plan.binaries import compile_class
from normtune.tuner.plan.grids import shapes
from normtune.tuner.plan.plan import candidates, fitting, peak_bytes, plan, problems

TARGET = TARGETS["sm_90"]


def test_each_launch_is_tried_once_and_everything_is_accounted_for():
    spec = operator("rms_norm_backward")
    problem = spec.problem(1, 4096, "bfloat16")
    space = spec.space("full", problem, TARGET)
    kept, pruned = candidates(spec, space, problem, TARGET)
    assert len(kept) + sum(pruned.values()) == len(space)
    assert len({candidate.launch for candidate in kept}) == len(kept)
    # One row makes one program, however many a multiprocessor may hold, beside those that follow the rows.
    assert {candidate.config.programs_per_sm for candidate in kept} == {0, 1}
    assert all((candidate.config.finish == "columns") != candidate.launch.looped for candidate in kept)
    assert pruned["same launch as another config"] > 0


def test_illegal_configs_are_counted_by_reason():
    spec = operator("rms_norm_forward")
    problem = spec.problem(8, 65536, "float32")
    configs = [RMSNormConfig("row", 1, 1), RMSNormConfig("row", 1, 2), RMSNormConfig("split"), RMSNormConfig("cluster")]
    kept, pruned = candidates(spec, configs, problem, TARGET)
    assert kept == []
    assert pruned == {
        "illegal: elements a thread exceed": 2,
        "illegal: split with block_col": 1,
        "illegal: schedule 'cluster' does not exist for rms_norm_forward": 1,
    }


def test_jobs_are_compile_classes():
    wanted = problems(["rms_norm_forward"], ["bfloat16"], [(140, 1024), (200, 1024), (4096, 1024), (200, 1000)])
    chosen = plan(wanted, "default", TARGET)
    jobs = chosen.jobs()
    classes = {compile_class(job.problem, job.launch) for job in jobs}
    assert len(classes) == len(jobs)
    for task in chosen.tasks:
        for candidate in task.candidates:
            assert compile_class(task.problem, candidate.launch) in classes
    # 1000 is masked and less aligned: other binaries than 1024, which its three row counts share.
    assert len(jobs) == len(plan(wanted[2:3], "default", TARGET).jobs()) + len(
        plan(wanted[3:], "default", TARGET).jobs()
    )


def test_problems_of_keys_and_dtypes():
    found = problems(["rms_norm_forward:no_rstd"], ["bfloat16", "float32"], [(1, 64)])
    assert [str(problem) for problem in found] == [
        "rms_norm_forward:no_rstd bfloat16 1 x 64",
        "rms_norm_forward:no_rstd float32 1 x 64",
    ]
    assert {problem.operator for problem in problems([], ["bfloat16"], [(1, 64)])} >= {
        "rms_norm_forward",
        "rms_norm_backward",
    }


@pytest.mark.parametrize(
    ("keys", "dtype", "message"),
    [
        (["layer_norm"], "bfloat16", "unknown operator 'layer_norm'"),
        (["rms_norm_forward:no_x"], "bfloat16", "unknown variant 'no_x'"),
        ([], "int8", "unknown dtype 'int8'"),
    ],
)
def test_unknown_names_are_usage_errors(keys, dtype, message):
    with pytest.raises(UsageError, match=message):
        problems(keys, [dtype], [(1, 64)])


def test_unknown_space():
    with pytest.raises(UsageError, match="unknown space 'tiny': expected one of default, full, portfolio"):
        plan([], "tiny", TARGET)


@pytest.mark.long
def test_what_does_not_fit_into_the_free_memory_is_left_out_and_kept_track_of():
    whole = plan(problems([], ["bfloat16"], shapes("default", [64, 65536], [1024, 32768])), "portfolio", TARGET)
    assert fitting(whole, None) is whole
    few = fitting(whole, 5 << 30)
    assert len(few.tasks) + len(few.oversized) == len(whole.tasks) and few.oversized
    assert max(peak_bytes(task.problem) for task in few.tasks) <= 5 << 30
    assert {task.problem for task in few.tasks}.isdisjoint(few.oversized)
    assert max(peak_bytes(task.problem) for task in few.tasks) < min(map(peak_bytes, few.oversized))


def test_memory_is_foretold_of_the_largest_tensor():
    plain, heads = operator("rms_norm_forward"), operator("qk_norm.heads_q=32.heads_k=8.heads=48.rotary_dim=128")
    alone = peak_bytes(plain.problem(65536, 48 * 128, "bfloat16"))
    assert 0.8 * alone <= peak_bytes(heads.problem(65536, 128, "bfloat16")) <= 2 * alone


def test_a_device_without_room_for_anything_is_an_error_that_says_how_much_it_takes():
    whole = plan(problems([], ["bfloat16"], [(1, 64), (65536, 4096)]), "portfolio", TARGET)
    with pytest.raises(
        NormtuneError, match=r"0\.5 GiB of device memory are free, the smallest problem takes 1\.\d GiB"
    ):
        fitting(whole, 1 << 29)
