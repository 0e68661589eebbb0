"""`benchmarks/resources.py`: the committed figures are within the limits, and the compiler still gives them."""

import csv
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from normtune.benchmarks import resources
from normtune.benchmarks.resources import Line, configs_of, lines_of, of_space, of_tables
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec, operator, operators
from normtune.kernels.target import TARGETS, Target
from normtune.tuner.compiling.compiler import Compiled
from normtune.tuner.compiling.pool import compile_all
from normtune.tuner.compiling.resources import Resources
from normtune.tuner.plan.binaries import Job, jobs_of

pytestmark = pytest.mark.slow  # a benchmark, or what documents say of it

# Registers of 4 bytes: of a thread, and those that the threads of one scheduler or compute unit share.
NVIDIA_REGISTERS = 255, 1 << 16
AMD_REGISTERS = 512
# One in so many lines is compiled anew by the slow test.
SAMPLED = 60


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return resources.read()


def test_every_operator_has_lines_on_every_target_where_it_runs(lines: list[Line]) -> None:
    wanted = {
        (target.name, spec.name)
        for target in TARGETS.values()
        for spec in operators().values()
        if next(of_space(spec, target, 2), None)
    }
    assert {line.group for line in lines} == wanted
    assert len(set(lines)) == len(lines) and resources.FILE.stat().st_size < 520_000


def test_every_binary_fits_its_target(lines: list[Line]) -> None:
    for line in lines:
        target = TARGETS[line.target]
        assert 0 <= line.shared_bytes <= target.shared_bytes, line
        assert 0 < line.threads <= target.max_threads and line.threads % target.warp_size == 0, line
        granted = -(-line.registers // 8) * 8  # registers are allocated in groups of eight
        if line.target.startswith("sm_"):
            assert 0 < line.registers <= NVIDIA_REGISTERS[0] and granted * line.threads <= NVIDIA_REGISTERS[1], line
        else:
            waves = -(-line.threads // (4 * target.warp_size))  # of a program, on one of four schedulers
            assert line.registers > 0 and granted * waves <= AMD_REGISTERS, line


def committed(spec: OperatorSpec, target: Target, lines: list[Line]) -> Iterator[tuple[Job, Config, list[Line]]]:
    """Each binary of an operator that the script compiles, with its config and its lines."""
    configs = configs_of(spec, target, resources.MOST)
    by_config = defaultdict(list)
    for line in lines:
        by_config[line[:6]].append(line)
    for job in jobs_of(configs):
        problem, config = job.problem, configs[job.problem, job.launch]
        shape = problem.rows, problem.hidden, str(config)
        yield job, config, by_config[problem.operator, problem.variant, target.name, *shape]


def test_configs_that_the_tables_of_a_target_answer_spill_two_registers_at_most(lines: list[Line]) -> None:
    """At the sizes of the file in bfloat16; others spill more, and none of them won. One won on the H100 alone."""
    target = TARGETS["sm_90"]
    spilled = set()
    for name in ("rms_norm_forward", "rms_norm_backward"):
        spec = operator(name)
        answers = {(problem, one.launch) for problem, one in of_tables(spec, target)}
        found = [of_job for job, _, of_job in committed(spec, target, lines) if answers.intersection(job.serves)]
        assert sum(map(bool, found)) > 10  # a kernel that several binaries share has the lines of the first
        assert max(line.spilled_bytes for of_binary in found for line in of_binary) <= 8
        spilled |= {line.operator for line in lines if line.group == (target.name, name) and line.spilled_bytes}
    assert spilled == {"rms_norm_backward"}


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_the_compiler_still_gives_these_figures(lines: list[Line], target: str, root: Path) -> None:
    if f"triton=={version('triton')}" not in (root / "constraints.txt").read_text().splitlines():
        pytest.skip("another Triton than that of constraints.txt, whose figures these are")
    # A binary that is an earlier one of the operator has its lines there.
    binaries = [one for spec in operators().values() for one in committed(spec, TARGETS[target], lines) if one[2]]
    chosen = {job: (config, found) for job, config, found in binaries[::SAMPLED]}
    assert len(chosen) >= 8
    for compiled in compile_all(list(chosen), target, workers=1, keep_assembly=True):
        config, found = chosen[compiled.job]
        configs = {(compiled.job.problem, compiled.job.launch): config}
        # A kernel that an earlier binary of the operator launches, too, has its line there.
        assert found and set(found) <= set(lines_of([compiled], target, configs)), compiled


def test_the_summary_is_that_of_the_lines(lines: list[Line]) -> None:
    assert resources.FILE.with_suffix(".md").read_text() == resources.markdown(lines)


def test_a_kernel_of_several_binaries_has_one_line_and_what_is_written_is_read(tmp_path: Path) -> None:
    spec, target = operator("rms_norm_backward"), TARGETS["sm_90"]
    configs = configs_of(spec, target, 4)
    first, second = jobs_of(configs)[:2]
    figures = 256, 128, 40
    compiled = [
        Compiled(first, "ok", resources=(Resources("main", "a", *figures, 8), Resources("sums", "b", *figures, 0))),
        Compiled(second, "ok", resources=(Resources("main", "c", *figures, 0), Resources("sums", "b", *figures, 0))),
    ]
    lines = lines_of(compiled, target.name, configs)
    assert [(line.kernel, line.spilled_bytes) for line in lines] == [("main", 8), ("sums", 0), ("main", 0)]
    resources.write(lines, tmp_path / "resources.csv")
    assert resources.read(tmp_path / "resources.csv") == lines
    with (tmp_path / "resources.csv").open() as file:
        assert len(list(csv.reader(file))) == 4
    assert f"| {spec.name} | sm_90 | 3 | 40 | 1 | 8 | 256 | " in (tmp_path / "resources.md").read_text()


def test_a_failed_compile_is_told_and_has_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    spec, target = operator("rms_norm_forward"), TARGETS["sm_90"]
    configs = configs_of(spec, target, 2)
    job = jobs_of(configs)[0]
    assert lines_of([Compiled(job, "compile_error", "it will not")], target.name, configs) == []
    assert "compile_error: it will not" in capsys.readouterr().err
