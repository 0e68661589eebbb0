"""The gate in Triton's interpreter, in a process of its own, as kernels choose it when they are imported.

In: on stdin one JSON object with files and cases. Out: on stdout a JSON list, for each case the reason why it fails,
empty if it does not, and an exit code. `inspect` starts it.
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

# Launches of a case: the second shows what depends on memory that the first left.
_CALLS = 2


def failures(files: list[str], target: Target, cases: list[list[Any]]) -> list[tuple[str, int]]:
    """The reason why each case fails, and its exit code; cases are columns of a problem, and a config as JSON."""
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # infinities of NumPy are those of the kernel
    complete()
    cast_by_torch()
    watch = Watch()
    watch.install()
    _call_on_gpu(target)
    for file in files:
        load(Path(file))
    return [_failure(watch, target, Problem.of(*columns), config) for columns, config in cases]


def _call_on_gpu(target: Target) -> None:
    """Let functions of operators find a GPU, whose tensors are in the memory of the CPU."""
    usual = Declaration.call

    def call(declaration: Declaration, given: Mapping[str, Any], *rest: Any) -> object:
        if any(isinstance(one, torch.Tensor) and one.is_meta for one in given.values()):
            return usual(declaration, given, *rest)
        with on_gpu(target, CPU):
            return usual(declaration, given, *rest)

    Declaration.call = call  # type: ignore[method-assign, assignment]


def _failure(watch: Watch, target: Target, problem: Problem, config: str) -> tuple[str, int]:
    spec = operator(problem.operator)
    watch.told.clear()
    try:
        launch = spec.launch(spec.read_config(config), problem, target)
        check_launch(spec, problem, launch, torch.device("cpu"), _CALLS)
    except (LaunchFailedError, NormtuneError) as error:
        if watch.told or isinstance(error, WrongResultError):
            return f"wrong result: {watch.told[0] if watch.told else error}", 1
        if isinstance(error, OperatorError):
            return str(error), error.exit_code
        return f"fails in Triton's interpreter: {error}", 1
    return "", 0


if __name__ == "__main__":
    given = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):  # on which libraries may print
        told = failures(given["files"], Target(*given["target"]), given["cases"])
    json.dump(told, sys.stdout)
