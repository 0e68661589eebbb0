"""The gate in Triton's interpreter, in a process of its own, as kernels choose it when they are imported.

In: on stdin one JSON object with files and cases. Out: on stdout a JSON list, for each case the reason why it fails,
empty if it does not. `inspect` starts it.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from normtune.errors import NormtuneError
from normtune.kernels.load_file import load
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.tuner.inspection.interpreter import Watch, complete
from normtune.tuner.timing.gate import LaunchFailedError, check_launch

# Launches of a case: the second shows what depends on memory that the first left.
_CALLS = 2


def failures(files: list[str], target: Target, cases: list[list[Any]]) -> list[str]:
    """The reason why each case fails: columns of a problem, and a config as JSON."""
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # infinities of NumPy are those of the kernel
    complete()
    watch = Watch()
    watch.install()
    for file in files:
        load(Path(file))
    return [_failure(watch, target, Problem.of(*columns), config) for columns, config in cases]


def _failure(watch: Watch, target: Target, problem: Problem, config: str) -> str:
    spec = operator(problem.operator)
    watch.told.clear()
    try:
        launch = spec.launch(spec.read_config(config), problem, target)
        check_launch(spec, problem, launch, torch.device("cpu"), _CALLS)
    except (LaunchFailedError, NormtuneError) as error:
        return watch.told[0] if watch.told else str(error)
    return ""


if __name__ == "__main__":
    given = json.load(sys.stdin)
    told = failures(given["files"], Target(*given["target"]), given["cases"])
    json.dump(told, sys.stdout)
