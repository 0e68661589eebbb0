"""What a minute on a GPU without a table gains: `sweep --effort quick`, on GPUs that its configs do not know.

In: the recorded H200, the H100 of `recorded_spaces`, and a folder with T4 files of benchmark_hub. Out:
benchmarks/results/strategies/portfolio.json and .md. No GPU. Each GPU is left out in turn: the portable table and the
portfolio come from the other one. Only the H100 has times of every config; the H200 lacks those of up to nine in 16 of
the portfolio. The H100 was recorded at the shapes of the grid `quick` alone.

    python benchmarks/portfolio.py FOLDER
"""

import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.benchmarks.lib.some_problems import of_problems
from normtune.benchmarks.places import RESULTS, write
from normtune.benchmarks.recorded_spaces import FULL_SPACE, foreign
from normtune.heuristics.fitting.case import Case, FitArguments
from normtune.heuristics.fitting.function import fit_function
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.regret.matrix import LEAST_ASSUMED, TimingMatrix, timing_matrix
from normtune.heuristics.solver.portfolio import portfolio as best_together
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem, Shape
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.tree import Tree, choose, regions
from normtune.kernels.target import Target
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import read_parquet
from normtune.results.exchange.recording import load_recording
from normtune.tuner.plan import grids
from normtune.tuner.plan.portfolio import CONFIGS, Region, nearest

PLACE = RESULTS / "strategies" / "portfolio.json"
FORWARD, BACKWARD = "rms_norm_forward", "rms_norm_backward"
DTYPE = "bfloat16"
H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
# Configs of the hub's that are candidates: so many of the best of each GPU, or mean of two.
_TOP = 200

Candidates = Callable[[Problem], Sequence[Config]]
Answer = Callable[[Shape], Config]


class Part(NamedTuple):
    """The limits of a GPU, and its timing matrix of an operator."""

    target: Target
    matrix: TimingMatrix


def part_of(evidence: Evidence, name: str) -> Part:
    """The recorded GPU's matrix of an operator."""
    data = evidence.current()
    (device,) = data.devices()
    matrix = timing_matrix(data, operator(name), Key.of(name, "", DTYPE), device.as_target())
    assert matrix is not None
    return Part(device.as_target(), matrix)


def case_of(part: Part, matrix: TimingMatrix, options: FitOptions) -> Case:
    """The data of a fit of a matrix of the part's operator."""
    return FitArguments(part.target, options, None, {}).case(operator(matrix.key.operator), matrix)


def measured(part: Part, candidates: Candidates) -> tuple[TimingMatrix, int]:
    """What a sweep of these candidates on the default grid would measure, and the number of configs timed."""
    spec, wanted = operator(part.matrix.key.operator), set(grids.shapes("default"))
    timed = np.zeros_like(part.matrix.usable)
    for index, shape in enumerate(part.matrix.problems):
        if shape in wanted:
            own = {*candidates(Problem(part.matrix.key, *shape))}
            timed[index] = part.matrix.usable[index] & [config in own for config in part.matrix.configs]
    rows, columns = np.flatnonzero(timed.any(axis=1)), np.flatnonzero(timed.any(axis=0))
    known = {part.matrix.configs[column] for column in columns}
    matrix, timed = of_problems(part.matrix, rows.tolist()).of_configs(known), timed[np.ix_(rows, columns)]
    legal = [
        [spec.is_legal(config, Problem(matrix.key, *shape), part.target) for config in matrix.configs]
        for shape in matrix.problems
    ]
    regret = matrix.regret - np.where(timed, matrix.regret, np.iinfo(np.int64).max).min(axis=1)[:, None]
    slowest = np.maximum(np.where(timed, regret, 0).max(axis=1), LEAST_ASSUMED)[:, None]
    untimed = np.array(legal) & ~timed
    regret = np.where(timed, regret, np.where(untimed, slowest, 0))
    matrix = replace(matrix, regret=regret, usable=timed, untimed=untimed, rounds=None, luck=None, weights=None)
    return matrix, int(timed.sum())


def fitted(part: Part, matrix: TimingMatrix) -> Any:
    """The tree that a fit with default options makes of a matrix."""
    return fit_function(case_of(part, matrix, FitOptions())).tree


def losses(part: Part, answer: Answer) -> list[int | None]:
    """The loss at each recorded shape, log_ppm; None where the config has no time."""
    return [part.matrix.loss(index, answer(shape)) for index, shape in enumerate(part.matrix.problems)]


def compare(gpu: str, part: Part, portable: Tree, others: Sequence[Region]) -> dict[str, Any]:
    """One line: an operator on a GPU that is left out, scored where the configs of both tables have times."""
    spec, target, known = operator(part.matrix.key.operator), part.target, {*part.matrix.configs}
    regions_of = [region for region in others if region.config in known]

    def in_use(shape: Shape) -> Config:
        return spec.read_config(choose(portable, shape).to_json())

    def candidates(problem: Problem) -> list[Config]:
        """Of a sweep, which times the answer of the table in use, too."""
        return [*nearest(regions_of, spec, problem, target), in_use(problem.shape)]

    matrix, configs = measured(part, candidates)
    tree = fitted(part, matrix)
    found = {
        "default config": losses(part, lambda shape: spec.default_config(Problem(part.matrix.key, *shape), target)),
        "portable table": losses(part, in_use),
        "portfolio": losses(part, lambda shape: choose(tree, shape)),
    }
    tables = zip(found["portable table"], found["portfolio"], strict=True)
    scored = [index for index, pair in enumerate(tables) if None not in pair]
    line: dict[str, Any] = {"gpu": gpu, "operator": spec.name, "configs": configs, "shapes": len(scored)}
    for name, one in found.items():
        values = [value for index in scored if (value := one[index]) is not None]
        line[name] = [round(100 * math.expm1(value / 1e6), 2) for value in (float(np.mean(values)), max(values))]
    print(line, flush=True)
    return line


def on_gpus() -> list[dict[str, Any]]:
    """The recorded GPUs, each without the other."""
    evidence = {H200: load_recording("nvidia-h200").select([], [DTYPE]), H100: read_parquet(FULL_SPACE)}
    lines = []
    for name in (FORWARD, BACKWARD):
        key = Key.of(name, "", DTYPE)
        parts = {gpu: part_of(data, name) for gpu, data in evidence.items()}
        shipped = locate.load(locate.SHIPPED / "nvidia_h200.py").trees[key]
        of_h200 = _regions(shipped, name)
        portable = locate.load(locate.SHIPPED / "portable.py").trees[key]
        both = parts[H100].matrix.assumed.of_configs({*parts[H200].matrix.configs})
        of_h100 = _regions(
            fitted(parts[H100], replace(parts[H100].matrix.of_configs({*both.configs}), rounds=None)), name
        )
        options = FitOptions(operators=(name,), leaves=24, portable=True)
        without = {one.key: one.tree for one in fit(evidence[H100], options).functions}
        lines.append(compare(H100, parts[H100], portable, of_h200))
        lines.append(compare(H200, parts[H200], without[key], of_h100))
    return lines


def _regions(tree: Any, name: str) -> list[Region]:
    spec = operator(name)
    return [Region(spec.read_config(config.to_json()), box, 132) for config, box in regions(tree, spec.whole)]


def on_hub(folder: Path) -> list[dict[str, Any]]:
    """Each kernel and GPU of the hub: what the portfolio of its other GPUs loses there.

    Recorded at one size, a GPU has one best config. So that 16 are told apart, they are best together on the other GPUs
    and on simulated ones between any two of them, which take the geometric mean of their times.
    """
    of_kernel: dict[str, dict[str, dict[Config, float]]] = defaultdict(dict)
    for space in foreign(folder):
        kernel, gpu = space.name.rsplit("-", 1)
        of_kernel[kernel][gpu] = {config: math.log(one.objective) for config, one in space.timed.items()}
    lines = []
    for kernel, logs in of_kernel.items():
        configs = sorted({config for one in logs.values() for config in one})
        times_of = {gpu: np.array([one.get(config, math.inf) for config in configs]) for gpu, one in logs.items()}
        for gpu, own in times_of.items():
            others = [values for other, values in times_of.items() if other != gpu]
            chosen = _together([*others, *((one + two) / 2 for one, two in itertools.combinations(others, 2))])
            bests = [own[int(np.argmin(values))] for values in others]
            lost = [
                round(100 * math.expm1(value - own.min()), 2) for value in (own[chosen].min(), min(bests), max(bests))
            ]
            lines.append({"kernel": kernel, "gpu": gpu, "portfolio": lost[0], "best of another": lost[1:]})
            print(lines[-1], flush=True)
    return lines


def _together(logs: Sequence[NDArray[np.float64]]) -> list[int]:
    """`CONFIGS` configs that are best together; where fewer suffice, the best without these follow."""
    regret = np.array([one - one.min() for one in logs])
    left = sorted({*np.argsort(regret, axis=1)[:, :_TOP].ravel().tolist()})
    chosen: list[int] = []
    while len(chosen) < CONFIGS:
        part = regret[:, left]
        cost = np.where(np.isfinite(part), np.rint(1e6 * np.minimum(part, 20)), 0).astype(np.int64)
        found = best_together(cost, CONFIGS - len(chosen), ~np.isfinite(part))
        assert found is not None
        chosen += [left[index] for index in found.chosen]
        left = [index for index in left if index not in chosen]
    return chosen


def markdown(document: dict[str, Any]) -> str:
    """The tables."""
    columns = ("default config", "portable table", "portfolio")
    lines = [
        "`python benchmarks/portfolio.py FOLDER`: percent lost on a GPU that is left out, mean and worst over the",
        "shapes at which the configs of both tables have times.",
        "",
        f"| GPU | operator | {' | '.join(columns)} | configs timed | shapes |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in document["gpus"]:
        cells = [f"{one[name][0]:.1f} %, {one[name][1]:.0f} %" for name in columns]
        lines.append(f"| {one['gpu']} | {one['operator']} | {' | '.join(cells)} | {one['configs']} | {one['shapes']} |")
    lines += [
        "",
        f"Kernels of benchmark_hub, {CONFIGS} configs that are best together on the other GPUs and between them:",
        "",
        "| kernel | GPU left out | portfolio loses | the best of one other GPU, at best and worst |",
        "| --- | --- | ---: | ---: |",
    ]
    for one in document["hub"]:
        best, worst = (_percent(value) for value in one["best of another"])
        lines.append(f"| {one['kernel']} | {one['gpu']} | {_percent(one['portfolio'])} | {best}, {worst} |")
    return "\n".join(lines)


def _percent(value: float) -> str:
    return "fails" if math.isinf(value) else f"{value:.1f} %"


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/portfolio.py FOLDER (with T4 files of benchmark_hub)")
    document = {"hub": on_hub(Path(sys.argv[1])), "gpus": on_gpus()}
    write(PLACE, document, markdown(document))
    print(markdown(document))


if __name__ == "__main__":
    main()
