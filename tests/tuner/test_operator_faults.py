"""Faults of normtune and of an operator's functions end a sweep in a line, and are stored as no config's failure."""

import re
from pathlib import Path

import pytest

from normtune.errors import NormtuneError
from normtune.kernels import load_file, operator
from normtune.kernels.spec_faults import OperatorError
from normtune.kernels.target import TARGETS
from normtune.results.database.store import Store
from normtune.tests.commands import one_line
from normtune.tests.tuner.benches import sweep
from normtune.tuner.device.bench import Bench
from normtune.tuner.plan.plan import plan
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.sweep.report import end_lines

SOFTMAX = (Path(__file__).parents[2] / "examples" / "softmax.py").read_text()

# An engine whose times are made up, and which runs an operator's functions as that of a GPU does, but on a CPU.
ENGINE = """
import torch
from normtune.tests.tuner.compiling_engine import CompilingEngine
from normtune.kernels.operator import operator
from normtune.kernels.target import TARGETS
from normtune.tuner.timing import gate

class Engine(CompilingEngine):
    def prove(self, problem, candidate):
        gate.prove(operator(problem.operator), problem, candidate, TARGETS["sm_90"], torch.device("cpu"))

    def make_calls(self, problem, candidates):
        launches = [candidate.launch for candidate in candidates]
        gate.make_calls(operator(problem.operator), problem, launches, torch.device("cpu"))
"""

# What a Triton does in which a private interface is gone, and whose cache has binaries alone.
OTHER_TRITON = """
from normtune.tuner.compiling import compiler

def _gone(*arguments):
    raise AttributeError("module 'ir' has no attribute 'context'")

compiler.Assembler.of_call = _gone
compiler.digest_of_compiled = lambda kernel: b""
"""

pytestmark = pytest.mark.long


@pytest.fixture
def swept(monkeypatch, tmp_path, operators_forgotten):
    """Sweeps softmax, after a change of its file, beside an operator of normtune's; gives the summary and the store."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    (tmp_path / "proving_engine.py").write_text(ENGINE)
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:

        def run(changed):
            (tmp_path / "softmax.py").write_text(changed)
            load_file.load(tmp_path / "softmax.py")
            problems = [
                operator.operator(name).problem(64, 256, "bfloat16") for name in ("rms_norm_forward", "softmax")
            ]
            chosen = plan(problems, "portfolio", TARGETS["sm_90"])
            chosen = chosen._replace(
                tasks=tuple(
                    task._replace(candidates=(*task.candidates[:2], task.candidates[-1])) for task in chosen.tasks
                )
            )
            bench = Bench(("proving_engine", "Engine", ((), str(tmp_path))))
            return sweep(bench, store, chosen, Adaptive)

        yield run, store


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "reference=lambda x: torch.softmax(x, dim=1)",
            "reference=lambda x: torch.softmax(x, dim=7)",
            "reference raises IndexError",
        ),
        (
            "reference=lambda x: torch.softmax(x, dim=1)",
            "reference=lambda x: x[:1]",
            "reference returns y of float64 (1, 256)",
        ),
        ("    max_hidden=32768,", "    inputs=lambda *_: {},", "inputs returns the tensors none: expected x"),
        (
            '{"torch": lambda x: torch.softmax(x, dim=1)}',
            '{"torch": "nowhere:softmax"}',
            "calls raises ModuleNotFoundError",
        ),
        (
            "    rows, hidden = x.shape\n",
            "    rows, hidden = x.shape\n    x.sum() if hasattr(x, 'sum') and x.sums else 0\n",
            "function softmax raises AttributeError",
        ),
    ],
)
def test_a_function_that_raises_is_one_line_before_anything_is_measured(swept, old, new, told):
    run, store = swept
    assert old in SOFTMAX
    with one_line(OperatorError, "^operator 'softmax': its " + re.escape(told)):
        run(SOFTMAX.replace(old, new))
    assert store.runs() == []


@pytest.mark.slow
def test_a_reference_that_costs_the_process_is_told(swept):
    run, store = swept
    changed = SOFTMAX.replace("reference=lambda x: torch.softmax(x, dim=1)", "reference=lambda x: os._exit(3)")
    with pytest.raises(NormtuneError, match=r"^operator 'softmax': its inputs or reference for .*exit code 3\)"):
        run(f"import os\n{changed}")
    assert store.runs() == []


@pytest.mark.slow
def test_without_digests_of_code_everything_is_measured_and_the_end_says_so(swept):
    run, store = swept
    summary = run(SOFTMAX + OTHER_TRITON)
    assert (summary.problems, sum(summary.failures.values())) == (2, 0)
    stored = list(store.load().measurements())
    assert {item.status for item in stored} == {"ok"}
    codes = [item.code for item in stored if item.code]  # the copy and torch's softmax have none
    assert len(codes) == 5 and all(code.launch and code.assembly == b"" for code in codes)
    (line,) = [line for line in end_lines(summary, None) if "no digest" in line]
    assert "(Triton's cache has binaries without assembly)" in line
    assert "without assembly" in store.runs()[0].protocol["undigested"]
    again = run(SOFTMAX + OTHER_TRITON)
    assert (again.problems, again.known) == (0, 2)


@pytest.mark.slow
def test_a_kernel_that_cannot_be_compiled_is_still_an_outcome(swept):
    run, store = swept
    run(SOFTMAX.replace("b_exp = tl.exp(", "b_exp = tl.no_such_function(") + OTHER_TRITON)
    failed = {item.reason for item in store.load().measurements() if item.status == "compile_error"}
    assert failed and all("no_such_function" in reason for reason in failed)
