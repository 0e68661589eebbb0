"""The trial problem of the gate.

In: a candidate. Out: problem and launch of the same binary, with rows and grid of the gate's own. Needs no torch: who
compiles for a GPU elsewhere compiles what the gate will launch.
"""

from normtune.kernels.config import Config
from normtune.kernels.operator import AnyLaunch, ImplementationLaunch, OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.spec_faults import reraise
from normtune.kernels.target import Target

# Rows of the trial problem where the operator names none: the first number that gives the same binary. They make many
# programs and a cut last tile, with and without a number of rows that 16 divides.
_TRIAL_ROWS = (1031, 1040, 61, 48, 1)


def gate_launch(
    spec: OperatorSpec, problem: Problem, candidate: tuple[Config, AnyLaunch], target: Target
) -> tuple[Problem, AnyLaunch]:
    """Trial problem and launch for a candidate's binary: same binary, with rows and grid of the gate's own.

    Raises:
        OperatorError: `trial` raises.
    """
    config, launch = candidate
    if spec.trial is not None and not isinstance(launch, ImplementationLaunch):
        try:
            return spec.trial(config, launch, problem, target)
        except Exception as error:
            reraise(spec.name, "trial", error, f"{config} at {problem}")
    for rows in _TRIAL_ROWS:
        tried = problem._replace(rows=rows)
        made = spec.launch_of(config, tried, target)
        if made is not None and made.binary == launch.binary:
            return tried, made
    return problem, launch
