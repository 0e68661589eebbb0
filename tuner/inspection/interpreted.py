"""The gate in Triton's interpreter, in a separate process, because kernels choose the interpreter when imported.

In: on stdin one JSON object with files and cases. Out: on stdout a JSON list with the failure of each case, empty
without one, and an exit code. `inspect` starts it.
"""

import json
import sys
import warnings
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch

from normtune.errors import NormtuneError
from normtune.kernels.custom_op.absent_gpu import CPU, on_gpu
from normtune.kernels.custom_op.declaration import Declaration
from normtune.kernels.load_file import load
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.spec_faults import OperatorError
from normtune.kernels.target import Target
from normtune.tuner.inspection.casts import cast_by_torch
from normtune.tuner.inspection.interpreter import Watch, complete
from normtune.tuner.timing.gate import LaunchFailedError, WrongResultError, check_launch

# Launches of a case: the second shows results that depend on memory of the first.
_CALLS = 2


def failures(files: list[str], target: Target, cases: list[list[Any]]) -> list[tuple[str, int]]:
    """The failure of each case and its exit code; a case has the columns of a problem, and a config as JSON."""
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # NumPy's warnings are about the kernel's infinities
    complete()
    cast_by_torch()
    watch = Watch()
    watch.install()
    _call_on_gpu(target)
    for file in files:
        load(Path(file))
    return [_failure(watch, target, Problem.of(*columns), config) for columns, config in cases]


def _call_on_gpu(target: Target) -> None:
    """Make functions of operators find a GPU, with tensors in the memory of the CPU."""
    usual = Declaration.call

    def call(declaration: Declaration, given: Mapping[str, Any], *rest: Any) -> object:
        if any(isinstance(one, torch.Tensor) and one.is_meta for one in given.values()):
            return usual(declaration, given, *rest)
        with on_gpu(target, CPU):
            return usual(declaration, given, *rest)

    Declaration.call = call  # type: ignore[method-assign, assignment]


def _failure(watch: Watch, target: Target, problem: Problem, config: str) -> tuple[str, int]:
    spec = operator(problem.operator)
    watch.faults.clear()
    try:
        launch = spec.launch(spec.read_config(config), problem, target)
        check_launch(spec, problem, launch, torch.device("cpu"), _CALLS)
    except (LaunchFailedError, NormtuneError) as error:
        if watch.faults or isinstance(error, WrongResultError):
            return f"wrong result: {watch.faults[0] if watch.faults else error}", 1
        if isinstance(error, OperatorError):
            return str(error), error.exit_code
        return f"fails in Triton's interpreter: {error}", 1
    return "", 0


if __name__ == "__main__":
    given = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):  # on which libraries may print
        told = failures(given["files"], Target(*given["target"]), given["cases"])
    json.dump(told, sys.stdout)
