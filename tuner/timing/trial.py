"""The trial problem of the gate.

In: a candidate. Out: a problem with fewer rows and a launch of the same binary. Needs no torch, so that a machine
without a GPU can compile what the gate will launch.
"""

from normtune.kernels.call import AnyLaunch, ImplementationLaunch
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.spec_faults import reraise
from normtune.kernels.target import Target

# Rows of the trial problem where the operator names none: the first number that gives the same binary is used. They
# make many programs and a partial last tile, for numbers of rows that 16 divides and others.
TRIAL_ROWS = (1031, 1040, 61, 48, 1)


def gate_launch(
    spec: OperatorSpec, problem: Problem, candidate: tuple[Config, AnyLaunch], target: Target
) -> tuple[Problem, AnyLaunch]:
    """Trial problem and launch of a candidate's binary, with other rows and another grid.

    Raises:
        OperatorError: `trial` raises.
    """
    config, launch = candidate
    if spec.trial is not None and not isinstance(launch, ImplementationLaunch):
        try:
            return spec.trial(config, launch, problem, target)
        except Exception as error:
            reraise(spec.name, "trial", error, f"{config} at {problem}")
    for rows in TRIAL_ROWS:
        trial = problem._replace(rows=rows)
        trial_launch = spec.launch_of(config, trial, target)
        if trial_launch is not None and trial_launch.binary == launch.binary:
            return trial, trial_launch
    return problem, launch
