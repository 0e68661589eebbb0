from pathlib import Path

import numpy as np
import pytest

from normtune.heuristics.fitting import in_use
from normtune.heuristics.fitting.baseline import baseline as incumbents
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.fitting.result import Fit
from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.rules import liger
from normtune.heuristics.writing import report
from normtune.heuristics.writing.emit import module_text
from normtune.kernels.config import COPY
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import liger_launches
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import Gpu
from normtune.kernels.tablefile.tree import choose
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.results.records import Device, Measurement, Run
from normtune.tests.heuristics.made_up import as_command
from normtune.tuner.plan.plan import plan, problems

SHAPES = [(rows, hidden) for rows in (1, 4096, 65536) for hidden in (64, 1024, 4096)]


def test_launches_of_the_rule_are_the_two_that_it_switches_between() -> None:
    for name in ("rms_norm_forward", "rms_norm_backward"):
        for rows, hidden in ((1, 64), (1 << 20, 64), (4096, 4096), (1, 65536)):
            both = liger_launches(name, hidden)
            assert liger.choose(name, rows, hidden) in both
            assert [config.block_row for config in both] == [1, 16]
    assert liger_launches("other", 64) == ()


# The widest leaf answers for rows of 65536 as well, which a config tried only at 4096 does not reach.
TRIED = [(rows, hidden) for rows in (1, 4096, 65536) for hidden in (64, 1024, 16384)]


@pytest.fixture
def few() -> Evidence:
    """Of a few configs on a few shapes, in which Liger's is 25 % slower than the best wherever it was measured."""
    target = TARGETS["sm_90"]
    run = Run("r", Device("GPU", "sm_90", 132, 1, 1, "GPU-1", "1"), {}, "2026-01-01T00:00:00", {})
    rounds = np.arange(4, dtype=np.int32)
    cells = []
    wanted = problems(["rms_norm_forward"], ["bfloat16"], TRIED)
    rules = {problem: [liger.choose("rms_norm_forward", problem.rows, problem.hidden)] for problem in wanted}
    for task in plan(wanted, "portfolio", target, rules).tasks:
        rule = liger.choose("rms_norm_forward", task.problem.rows, task.problem.hidden)
        assert rule is not None
        launch = operator("rms_norm_forward").resolve(rule, task.problem, target, None)
        for config, time in [(c.config, 12_500 if c.launch == launch else 10_000) for c in task.candidates] + [
            (COPY, 9)
        ]:
            times = np.full(4, time, np.int32)
            cells.append(Measurement(task.problem, config, "r", "f", "ok", "", rounds, times))
    return Evidence.from_measurements(cells, [run])


def test_the_verdict_compares_with_what_launches_the_kernel_without_the_table(
    few: Evidence, tmp_path, monkeypatch
) -> None:
    def compared(other: str | None = None) -> tuple[str, ...]:
        options = FitOptions(leaves=16, baseline=other)
        lines = list(report.verdict(fit(few, options, incumbents=incumbents(other or "none", tmp_path))))
        assert (
            lines[0] == f"GPU, sm_90, 132 SMs: {len(few.frame)} measurements, 2026-01-01" and max(map(len, lines)) <= 84
        )
        assert lines[2].startswith("rms_norm_forward bfloat16: ") and lines[2].endswith(" of shapes")
        assert lines[4].endswith("; 0.0 % from the best possible")
        assert lines[5].startswith("  worst     0.0 % slower than the best, at ")
        return lines[3].strip(), lines[4].strip().partition(";")[0]

    assert " the table for NVIDIA H100 80GB HBM3" in compared()[0]
    monkeypatch.setattr(locate, "SHIPPED", tmp_path)
    faster = "25 % faster than the rule of Liger-Kernel 0.8.5 (25 % at 65536 x 16384),"
    assert compared() == compared("liger") == (faster, "slower at none of 9 shapes")
    monkeypatch.setattr(in_use, "RULES", {})
    # The portfolio, which is of the shipped tables, has the default's launch at eight of the shapes.
    assert compared() == ("as fast as the default config,", "slower at none of 8 shapes (1 not compared)")


def test_a_table_is_not_compared_with_itself(few: Evidence, tmp_path: Path, monkeypatch) -> None:
    def other(leaves: int) -> str:
        (compared,) = fit(few, FitOptions(leaves=leaves), incumbents=incumbents("none", tmp_path)).compared.values()
        return compared.name

    own = fit(few, FitOptions(leaves=2), incumbents=incumbents("none", tmp_path))
    (tmp_path / "gpu.py").write_text(module_text(own, as_command("normtune fit")))
    monkeypatch.setenv("NORMTUNE_TABLE", str(tmp_path / "gpu.py"))
    assert (other(1), other(2)) == ("the table for GPU", "the rule of Liger-Kernel 0.8.5")


def test_the_verdict_names_the_worst_shape_and_what_is_shared(measure, penalty, run) -> None:
    cells = [cell for dtype in ("bfloat16", "float16") for cell in measure(penalty, SHAPES, dtype=dtype)]
    fitted = fit(Evidence.from_measurements(cells, [run]), FitOptions(leaves=1))
    lines = list(report.verdict(fitted))
    (function,) = fitted.functions
    worst = max((loss, shape) for shape, loss in loss_at(fitted, cells).items())
    assert lines[2] == "toy bfloat16: 1 region of shapes"
    rows, hidden = worst[1]
    assert (
        lines[5] == f"  worst     {percent(function.figures.loss.worst, 1)} slower than the best, at {rows} x {hidden}"
    )
    assert lines[-2:] == ["  shared, at a cost, with", "    float16 (0.0 %)"]


def test_the_verdict_says_where_a_function_answers_and_for_which_dtypes_unmeasured(evidence: Evidence) -> None:
    lines = list(report.verdict(fit(evidence, FitOptions(leaves=1))))
    at = next(number for number, line in enumerate(lines) if line.startswith("  answers "))
    assert lines[at : at + 3] == [
        "  answers   at rows 1 to 131072, hidden 32 to 8192;",
        "            the next table elsewhere, or the default config",
        "  unmeasured: float16, float32 use it where no other table measured them",
    ]


def loss_at(fitted: Fit, cells: list[Measurement]) -> dict[tuple[int, int], float]:
    """Time of a table over the best one of each shape, of measurements without noise."""
    (function,) = fitted.functions
    times = {(cell.problem.shape, cell.config): float(cell.samples.mean()) for cell in cells if cell.config != COPY}
    of_table = {shape: times[shape, choose(function.tree, shape)] for shape in SHAPES}
    return {
        shape: time / min(t for (other, _), t in times.items() if other == shape) for shape, time in of_table.items()
    }


def test_figures_fit_80_columns_and_name_what_is_shared(measure, penalty, run) -> None:
    cells = [cell for dtype in ("bfloat16", "float16") for cell in measure(penalty, SHAPES, dtype=dtype)]
    fitted = fit(Evidence.from_measurements(cells, [run]), FitOptions(leaves=3))
    lines = list(report.figures(fitted))
    assert max(map(len, lines)) <= 84
    (place,) = (number for number, line in enumerate(lines) if line == "toy")
    own, shared = lines[place + 1].split(), lines[place + 2].split()
    assert (own[:2], shared[:2]) == (["bfloat16", "3"], ["float16", "shared"])
    assert len(own) == len(shared) == len(lines[place - 1].split())


def test_the_path_of_a_table_is_quoted_for_the_shell(evidence: Evidence, tmp_path) -> None:
    ways = list(report.ways(Gpu("NVIDIA A", "sm_90", 132), tmp_path / "a table.py"))
    assert f"  NORMTUNE_TABLE='{tmp_path}/a table.py': one process uses it" in ways
    assert f"  normtune table install '{tmp_path}/a table.py': kernels on NVIDIA A use it, for this user" in ways


def test_a_file_that_begins_with_a_dash_is_printed_as_no_option() -> None:
    ways = list(report.ways(Gpu("NVIDIA A", "sm_90", 132), Path("-table.py")))
    assert "  normtune table install ./-table.py: kernels on NVIDIA A use it, for this user" in ways
