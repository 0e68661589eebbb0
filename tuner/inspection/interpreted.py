"""The gate in Triton's interpreter, in a separate process, because kernels choose the interpreter when imported.

In: on stdin a line of JSON with the files, a line with the cases. Out: on stdout a line for each case: a `GateResult`.
`gate.InterpreterGate` starts it.
"""

import json
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
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
from normtune.tuner.inspection.accesses import Watch
from normtune.tuner.inspection.gate import GateCase, GateResult
from normtune.tuner.inspection.interpreter_inside import cast_by_torch, complete
from normtune.tuner.timing.gate import LaunchFailedError, WrongResultError, check_launch


class _LimitReached(BaseException):
    """The CPU time of an operator is spent; no `except Exception` of a launch takes it."""


def prepared(files: Sequence[str], target: Target) -> Watch:
    """The watch of this process, which from now on interprets the kernels of these files."""
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # NumPy's warnings are about the kernel's infinities
    complete()
    cast_by_torch()
    watch = Watch()
    watch.install()
    _call_on_gpu(target)
    for file in files:
        load(Path(file))
    return watch


def results(watch: Watch, target: Target, cases: Sequence[GateCase], limit: float) -> Iterator[GateResult]:
    """The result of each case; `limit` is the CPU time of an operator, seconds."""
    signal.signal(signal.SIGPROF, _stop)
    name, remaining = "", limit
    for case in cases:
        if case.problem.operator != name:
            name, remaining = case.problem.operator, limit
        try:
            if remaining <= 0:
                raise _LimitReached
            signal.setitimer(signal.ITIMER_PROF, remaining, 1)  # again, as an exception in a finalizer is dropped
            reason, code = _failure(watch, target, case)
            remaining, _ = signal.setitimer(signal.ITIMER_PROF, 0)
        except _LimitReached:
            signal.setitimer(signal.ITIMER_PROF, 0)
            remaining = 0
            yield GateResult(is_checked=False)
        else:
            yield GateResult(reason, code, watch.repeats)


def _stop(*_: object) -> None:
    raise _LimitReached


def _call_on_gpu(target: Target) -> None:
    """Make functions of operators find a GPU, with tensors in the memory of the CPU."""
    usual = Declaration.call

    def call(declaration: Declaration, arguments: Mapping[str, Any], *rest: Any) -> object:
        if any(isinstance(one, torch.Tensor) and one.is_meta for one in arguments.values()):
            return usual(declaration, arguments, *rest)
        with on_gpu(target, CPU):
            return usual(declaration, arguments, *rest)

    Declaration.call = call  # type: ignore[method-assign, assignment]


def _failure(watch: Watch, target: Target, case: GateCase) -> tuple[str, int]:
    spec, problem = operator(case.problem.operator), case.problem
    watch.faults.clear()
    watch.repeats.clear()
    try:
        check_launch(spec, problem, spec.launch(case.config, problem, target), torch.device("cpu"), case.calls)
    except (LaunchFailedError, NormtuneError) as error:
        if watch.faults or isinstance(error, WrongResultError):
            return f"wrong result: {watch.faults[0] if watch.faults else error}", 1
        if isinstance(error, OperatorError):
            return str(error), error.exit_code
        return f"fails in Triton's interpreter: {error}", 1
    return "", 0


def main() -> None:
    """Answer the requests on stdin."""
    answers = sys.stdout
    with redirect_stdout(sys.stderr):  # on which libraries may print
        request = json.loads(sys.stdin.readline())
        target = Target(*request["target"])
        watch = prepared(request["files"], target)
        cases = []
        for columns, config, calls in json.loads(sys.stdin.readline()):
            problem = Problem.of(*columns)
            cases.append(GateCase(problem, operator(problem.operator).read_config(config), calls))
        for result in results(watch, target, cases, request["limit"]):
            answers.write(json.dumps(result) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
