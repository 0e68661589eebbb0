"""Registers, spills and shared memory of every operator's binaries, as the compiler reports them. No GPU.

In: nothing. Out: benchmarks/results/resources.csv, one line a kernel of a binary, and resources.md, a summary of it.

    python benchmarks/resources.py [--targets sm_90,gfx942] [--operators NAME,...] [--most 8] [--workers N] [--again]
    python benchmarks/resources.py --summary    # only resources.md, from resources.csv

Compiled are plain operators in bfloat16 for 64 and 4096 rows at hidden 256, 4096 and 16384 (heads: 128 and 256): of
the legal configs of the default space `--most` for each shape, evenly spread, the first and the last among them. On the
target of a committed table also what the table answers at these hidden sizes, its variants included, for 1, 2, 4 to
2**18 rows. A kernel that several binaries of an operator launch has one line, with the first of them.

The file is replaced whenever an operator is done on a target; the same command then goes on from there. After a change
of kernels or tables, and with `--most`, `--again` compiles anew what `--targets` and `--operators` name; the committed
file has the figures of the Triton of constraints.txt. All targets take 20 minutes of a
core.
"""

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from normtune.benchmarks.places import RESULTS
from normtune.kernels.call import AnyLaunch
from normtune.kernels.config import Config
from normtune.kernels.config_space import spread
from normtune.kernels.operator import OperatorSpec, operator, operators
from normtune.kernels.problem import Problem
from normtune.kernels.tablefile import locate
from normtune.kernels.target import TARGETS, Target
from normtune.results.atomic import replaced
from normtune.results.parallel.processes import cores
from normtune.tuner.compiling.compiler import Compiled
from normtune.tuner.compiling.pool import CompilePool
from normtune.tuner.plan.binaries import jobs_of
from normtune.tuner.plan.plan import candidates
from normtune.tuner.plan.pool import Candidate

FILE = RESULTS / "resources.csv"
DTYPE = "bfloat16"
HIDDEN = (256, 4096, 16384)
HEADS = (128, 256)
ROWS = (64, 4096)
TABLE_ROWS = tuple(2**power for power in range(19))
MOST = 8


class Line(NamedTuple):
    """One kernel of a binary; the columns of the file.

    Attributes:
        operator, variant, target, rows, hidden: of the problem that it was compiled for, one of those that it serves.
        config: as text, one of those that launch it.
        kernel: its name.
        shared_bytes, threads: of a program.
        registers, spilled_bytes: of a thread.
    """

    operator: str
    variant: str
    target: str
    rows: int
    hidden: int
    config: str
    kernel: str
    shared_bytes: int
    threads: int
    registers: int
    spilled_bytes: int

    @property
    def group(self) -> tuple[str, str]:
        """What is compiled and written together."""
        return self.target, self.operator


class Choice(NamedTuple):
    """A problem with a config, and its launch."""

    problem: Problem
    candidate: Candidate


def of_space(spec: OperatorSpec, target: Target, most: int) -> Iterator[Choice]:
    """The choices of the default space."""
    of_heads = "rotary_dim" in spec.problem(1, 1, DTYPE).sizes
    for hidden in HEADS if of_heads else HIDDEN:
        for rows in ROWS:
            problem = spec.problem(rows, hidden, DTYPE)
            kept, _ = candidates(spec, spec.configs("default", problem, target), problem, target)
            yield from (Choice(problem, one) for one in spread(kept, most))


def of_tables(spec: OperatorSpec, target: Target) -> Iterator[Choice]:
    """What the committed tables of this target answer."""
    for table in map(locate.load, locate.shipped()):
        if table.header.target != target.name:
            continue
        for key in table.trees:
            if (key.operator, key.dtype) != (spec.name, DTYPE):
                continue
            for hidden in HIDDEN:
                for rows in TABLE_ROWS:
                    problem = Problem(key.usual, rows, hidden)
                    config = spec.config(*table.lookup(key.text, key.dtype, rows, hidden))
                    yield Choice(problem, Candidate(config, spec.launch(config, problem, target)))


def configs_of(spec: OperatorSpec, target: Target, most: int) -> dict[tuple[Problem, AnyLaunch], Config]:
    """The config of each problem and launch that are compiled."""
    found: dict[tuple[Problem, AnyLaunch], Config] = {}
    for problem, one in (*of_space(spec, target, most), *of_tables(spec, target)):
        found.setdefault((problem, one.launch), one.config)
    return found


def lines_of(compiled: Iterable[Compiled], target: str, configs: dict[tuple[Problem, AnyLaunch], Config]) -> list[Line]:
    """The lines of an operator on a target, in the order of its binaries; failed compiles go to stderr."""
    lines: dict[str, Line] = {}
    for done in compiled:
        problem, config = done.job.problem, configs[done.job.problem, done.job.launch]
        if done.status != "ok":
            print(f"{target} {problem} {config}: {done.status}: {done.reason}", file=sys.stderr)
        for one in done.resources:
            what = problem.operator, problem.variant, target, problem.rows, problem.hidden, str(config), one.kernel
            figures = one.shared_bytes, one.threads, one.registers, one.spilled_bytes
            lines.setdefault(one.binary, Line(*what, *figures))
    return list(dict.fromkeys(lines.values()))  # a kernel that a launch has twice may take the same each time


def read(path: Path = FILE) -> list[Line]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        kinds = Line.__annotations__
        return [Line(**{name: kinds[name](text) for name, text in row.items()}) for row in csv.DictReader(file)]


def write(lines: Iterable[Line], path: Path = FILE) -> None:
    """Replace a file and the summary beside it; lines by target and operator, in the order of the project."""
    targets, names = list(TARGETS), list(operators())
    ordered = sorted(lines, key=lambda line: (targets.index(line.target), names.index(line.operator)))
    with replaced(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Line._fields)
        writer.writerows(ordered)
    with replaced(path.with_suffix(".md")) as temporary:
        temporary.write_text(markdown(ordered), "utf-8")


def markdown(lines: Sequence[Line]) -> str:
    head = ["operator", "target", "kernels", "registers", "spill", "spilled bytes", "shared bytes", "spills most"]
    rows = [
        "`python benchmarks/resources.py`: the most registers and spilled bytes of a thread, and the most shared",
        "memory of a program, as the compiler reports them (with the Triton of constraints.txt), for bfloat16 at a few",
        "shapes and an even spread of the default space; how many kernels spill, and the hidden size and config of the",
        "one that spills most.",
        "",
        f"| {' | '.join(head)} |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for name in operators():
        of_operator = [line for line in lines if line.operator == name]
        for target, grouped in groupby(of_operator, key=lambda line: line.target):
            group = list(grouped)
            worst = max(group, key=lambda line: line.spilled_bytes)
            figures = (
                *(len(group), max(line.registers for line in group), sum(line.spilled_bytes > 0 for line in group)),
                *(worst.spilled_bytes, max(line.shared_bytes for line in group)),
            )
            which = f"{worst.hidden}: {worst.config}" if worst.spilled_bytes else ""
            rows.append(f"| {' | '.join(map(str, (name, target, *figures, which)))} |")
    return "\n".join(rows) + "\n"


def compile_target(target: Target, names: Sequence[str], most: int, workers: int) -> Iterator[tuple[str, list[Line]]]:
    """Each of these operators with its lines."""
    configs = {name: configs_of(operator(name), target, most) for name in names}
    jobs = {name: jobs_of(found) for name, found in configs.items()}
    pool = CompilePool([job for group in jobs.values() for job in group], target.name, workers, keep_assembly=True)
    try:
        for name in names:
            results = [pool.result(problem, launch) for problem, launch, _ in jobs[name]]
            yield name, lines_of(filter(None, results), target.name, configs[name])
    finally:
        pool.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", default=",".join(TARGETS), help="names of targets")
    parser.add_argument("--operators", default=",".join(operators()), help="names of operators")
    parser.add_argument("--most", type=int, default=MOST, help="configs a shape, at least 2")
    parser.add_argument("--workers", type=int, default=cores(), help="processes that compile")
    parser.add_argument("--again", action="store_true", help="compile anew what the file has")
    parser.add_argument("--summary", action="store_true", help="write the summary and compile nothing")
    options = parser.parse_args()
    targets, names = options.targets.split(","), options.operators.split(",")
    for given, known in ((targets, TARGETS), (names, operators())):
        if unknown := sorted(set(given) - set(known)):
            parser.error(f"unknown {', '.join(unknown)}: expected some of {', '.join(known)}")
    if options.most < 2:
        parser.error(f"--most is {options.most}: expected at least 2")
    lines = read()
    if options.summary:
        return write(lines)
    for target in targets:
        there = set() if options.again else {line.group for line in lines}
        missing = [name for name in names if (target, name) not in there]
        for name, found in compile_target(TARGETS[target], missing, options.most, options.workers):
            lines = [line for line in lines if line.group != (target, name)] + found
            write(lines)
            print(f"{target} {name}: {len(found)} lines, {FILE.stat().st_size >> 10} KB", flush=True)


if __name__ == "__main__":
    main()
