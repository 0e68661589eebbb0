"""Plans: legal, without repetition, and honest about what was left out."""

import pytest

from normtune.errors import UsageError
from normtune.kernels.config import Config
from normtune.kernels.operator import operator
from normtune.kernels.target import TARGETS
from normtune.tuner.compiling import compile_class
from normtune.tuner.planning import candidates, plan, problems

TARGET = TARGETS["sm_90"]


def test_each_launch_is_tried_once_and_everything_is_accounted_for():
    spec = operator("rms_norm_backward")
    problem = spec.problem(1, 4096, "bfloat16")
    space = spec.space("full", problem, TARGET)
    kept, pruned = candidates(spec, space, problem, TARGET)
    assert len(kept) + sum(pruned.values()) == len(space)
    assert len({candidate.launch for candidate in kept}) == len(kept)
    # One row makes one program, however many a multiprocessor may hold.
    assert {candidate.config.programs_per_sm for candidate in kept} == {1}
    assert pruned["same launch as another config"] > 0


def test_illegal_configs_are_counted_by_reason():
    spec = operator("rms_norm_forward")
    problem = spec.problem(8, 65536, "float32")
    kept, pruned = candidates(spec, [Config("row", 1, 1), Config("row", 1, 2), Config("split")], problem, TARGET)
    assert kept == []
    assert pruned == {
        "illegal: elements a thread exceed": 2,
        "illegal: schedule 'split' does not exist for rms_norm_forward": 1,
    }


def test_jobs_are_compile_classes():
    wanted = problems(["rms_norm_forward"], ["bfloat16"], [(1, 1024), (64, 1024), (4096, 1024), (64, 1000)])
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
    with pytest.raises(UsageError, match="unknown space 'tiny': expected one of default, full"):
        plan([], "tiny", TARGET)
