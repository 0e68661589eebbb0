"""A tree on three sizes beside what libraries ship for products of matrices: tables of the nearest M at exact (N, K).

    python benchmarks/nearest_m.py examples/matmul.py matmul examples/matmul_h200.parquet
    python benchmarks/nearest_m.py examples/matmul.py matmul    # made-up times of an H200: waves of tiles

Each way answers for shapes whose times it did not see: those of one M, or those of one (N, K), in turn. The ways: the
exact tree with as many leaves as a fit chooses; the best config at the nearest M of the same N and K, as vLLM's and
lightllm's JSON files are read, which have no answer at another N and K and then use a default; the best config of the
nearest shape, by the sum of |log ratio|; one config. A loss is the time over that of the best config at the shape;
a config that was not timed there counts as the slowest that was. No GPU.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd

import normtune
from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.solver.bins import solve
from normtune.kernels import load_file
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec, operator
from normtune.kernels.problem import Problem, Shape
from normtune.kernels.tablefile.tree import choose
from normtune.kernels.target import Target, target_for
from normtune.results.elsewhere import Elsewhere
from normtune.results.evidence import Evidence
from normtune.results.exchange.dataframe import evidence_of
from normtune.results.exchange.parquet_csv import read_parquet

Answer = Callable[[Shape], Config | None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="of the operator")
    parser.add_argument("operator")
    parser.add_argument("data", type=Path, nargs="?", help="its measurements, a Parquet file; without it made-up times")
    arguments = parser.parse_args()
    load_file.load(arguments.file)
    spec = operator(arguments.operator)
    evidence = read_parquet(arguments.data).current() if arguments.data else made_up(spec)
    (device,) = evidence.devices()
    fitted = normtune.fit(evidence, operators=arguments.operator, weights="equal")
    (function,) = fitted.functions
    target, key = target_for(device.target, device.sms), function.key
    matrix = timing_matrix(evidence, spec, key, target)
    assert matrix
    print(f"{device.label}, {key}: {len(matrix.problems)} shapes, {len(matrix.configs)} configs, seen or not")
    print("| not seen | way | mean | worst | not timed |\n|---|---|---:|---:|---:|")
    folds = {"one M": lambda shape: shape[0], "one (N, K)": lambda shape: shape[1:]}
    for title, part_of in {"nothing": lambda shape: None, **folds}.items():
        losses: dict[str, list[int | None]] = {}
        for part in sorted({part_of(shape) for shape in matrix.problems}, key=str):
            held_out = np.array([part is not None and part_of(shape) == part for shape in matrix.problems])
            scored = range(len(matrix.problems)) if part is None else np.flatnonzero(held_out).tolist()
            for way, answer in ways(matrix, spec, target, held_out, function.figures.leaves):
                losses.setdefault(way, []).extend(loss_of(matrix, index, answer) for index in scored)
        for way, found in losses.items():
            slowest = [loss if loss is not None else LEAST_UNTIMED for loss in found]
            mean, worst = (100 * math.expm1(value / 1e6) for value in (fmean(slowest), max(slowest)))
            print(f"| {title} | {way} | {mean:.1f} % | {worst:.0f} % | {found.count(None)} of {len(found)} |")


def made_up(spec: OperatorSpec) -> Evidence:
    """Times by a law at all shapes of the operator's axes: waves of tiles, each limited by loads or by arithmetic."""
    h200, random, rows = Elsewhere(name="NVIDIA H200", target="sm_90").device(), np.random.default_rng(0), []
    sizes = [spec.sizes.get(axis) or spec.axes[axis] for axis in spec.axes]
    for m, n, k in product(*sizes):
        problem = spec.problem_at((m, n, k), "bfloat16")
        for config in spec.configs("default", problem, target_for("sm_90", h200.sms)):
            tile = config.BLOCK_M * config.BLOCK_N
            resident = max(1, min(8, 64 // config.num_warps, 227_000 // (192 * (config.BLOCK_M + config.BLOCK_N))))
            waves = math.ceil(math.ceil(m / config.BLOCK_M) * math.ceil(n / config.BLOCK_N) / (h200.sms * resident))
            arithmetic = tile * k / (900 if config.BLOCK_M >= 64 else 400)
            loads = (config.BLOCK_M + config.BLOCK_N) * k * (1.0 + 16 / config.BLOCK_K) / (30 * config.num_stages)
            time = 3000 + waves * max(arithmetic, loads) * resident * (1 + 0.002 * random.normal())
            rows.append((problem.operator, "bfloat16", m, n, config, round(time)))
    return evidence_of(
        pd.DataFrame(rows, columns=["operator", "dtype", "rows", "hidden", "config", "nanoseconds"]), h200
    )


# What a config counts that is neither timed nor assumed, as it failed there: 50 %.
LEAST_UNTIMED = 405_465


def loss_of(matrix: TimingMatrix, index: int, answer: Answer) -> int | None:
    """The loss of an answer at a shape, millionths of a logarithm; None if its config has no time there."""
    config = answer(matrix.problems[index])
    return None if config is None else matrix.assumed.loss(index, config)


def ways(
    matrix: TimingMatrix, spec: OperatorSpec, target: Target, held_out: np.ndarray, leaves: int
) -> Iterator[tuple[str, Answer]]:
    """The ways by name, from the shapes that are not held out."""
    seen = [index for index in range(len(matrix.problems)) if not held_out[index]]
    regret = np.where(matrix.usable, matrix.regret, np.iinfo(np.int64).max)
    best = {matrix.problems[index]: matrix.configs[int(regret[index].argmin())] for index in seen}
    optima = solve(matrix, Legality(spec, target, (matrix.key.dtype,), ("",)), leaves, held_out)
    tree = next(tree for count in range(leaves, 0, -1) if (tree := optima.tree(count)))
    whole = matrix.of_problems(seen).assumed
    everywhere = np.where(whole.usable.all(axis=0), whole.regret.sum(axis=0), np.iinfo(np.int64).max)

    def nearest_m(shape: Shape) -> Config:
        alike = [other for other in best if other[1:] == shape[1:]]
        if alike:
            return best[min(alike, key=lambda other: abs(other[0] - shape[0]))]
        return spec.default_config(Problem.at(matrix.key, shape), target)

    def distance(one: Shape, other: Shape) -> float:
        return sum(abs(math.log(a / b)) for a, b in zip(one, other, strict=True))

    yield f"tree of {leaves} leaves", lambda shape: choose(tree, shape, matrix.axes)
    yield "nearest M of exact (N, K)", nearest_m
    yield "nearest shape", lambda shape: best[min(best, key=lambda other: distance(shape, other))]
    yield "one config", lambda shape: matrix.configs[int(everywhere.argmin())]


if __name__ == "__main__":
    main()
