"""The gate of operators in a process with Triton's interpreter.

In: files that register operators, cases. Out: the results of the cases, each as soon as it is known.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO, Any, NamedTuple, Self

from normtune.errors import NormtuneError
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target

# The limit of an operator, seconds of CPU time: other processes of a busy machine do not count.
LIMIT_SECONDS = 300


class GateCase(NamedTuple):
    """A launch that the gate checks, and the number of its calls: a second one shows what depends on the first."""

    problem: Problem
    config: Config
    calls: int


class GateResult(NamedTuple):
    """The result of a case.

    Attributes:
        reason: the failure; empty without one.
        exit_code: of the failure: 2 if a function of the operator is at fault, else 1.
        warnings: probable mistakes, a line each.
        is_checked: whether the launch ended before the limit of its operator.
    """

    reason: str = ""
    exit_code: int = 0
    warnings: Sequence[str] = ()
    is_checked: bool = True


class InterpreterGate:
    """A process that interprets kernels; it loads the files while this process does other work.

    Args:
        files: register the operators.
        target: the GPU that functions of operators find.

    Raises:
        NormtuneError: from `result`, if the process ended too early.
    """

    def __init__(self, files: Sequence[str], target: Target) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `__exit__`
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "normtune.tuner.inspection.interpreted"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"TRITON_INTERPRET": "1"},
            text=True,
        )
        self._write({"files": files, "target": target, "limit": LIMIT_SECONDS})

    def begin(self, cases: Sequence[GateCase]) -> None:
        """Start the gate of all cases, in order; those of an operator stand together."""
        self._write([(one.problem.columns, one.config.to_json(), one.calls) for one in cases])

    def result(self) -> GateResult:
        """The result of the next case."""
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").strip().splitlines() or [f"exit code {code}"]
            raise NormtuneError(f"the gate in Triton's interpreter failed: {lines[-1]}")
        values: list[Any] = json.loads(line)
        return GateResult(*values)

    def _write(self, value: Any) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # `result` tells why
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()
