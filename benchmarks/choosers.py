"""Loss of ways to choose a config from the times of one sweep, at its own shapes and at unseen ones.

    pip install scikit-learn==1.9.1
    python benchmarks/choosers.py

In: shipped recordings, and times of 128 shapes that no table was fitted to; RMSNorm in bfloat16. Out: `choosers.json`
beside the results of each GPU. No GPU, some minutes.

- `exact N`: a fit of normtune with at most N leaves, all shapes of equal weight.
- `on bins N`: the best tree with the thresholds of the grid of measured shapes.
- `interpolated rows N`: the same with an interpolated shape between two rows.
- `crossing N`: the first, whose thresholds of rows then move to where times cross, as in a fit.
- `lattice N`: `crossing N` of the grid of a default sweep, a sixth of the shapes; `13 x 16 N`: of all combinations of
  13 rows and 16 hidden sizes.
- `greedy N`: splits by the greatest gain of the same mean loss, one after the other.
- `classifier`: PyTorch AutoHeuristic's way: scikit-learn's tree of the best configs' names, its grid of settings and
  its shares of training and validation; most correct names on the latter. Its answer "unsure" is left out.
- `nearest`: the best config of the nearest shape, by logarithms of sizes.
- `four nearest`: the least mean log-time of the four nearest ones, weighted by the inverse of their distances.
- `interpolated`: the least time by bilinear interpolation of log-times in log-sizes, of configs timed at all corners.

A loss is the log-ratio to the best timed config of a shape; means are over shapes at which the choice was timed.
"""

import json
import math
import warnings
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normtune.benchmarks.lib.some_problems import of_problems
from normtune.benchmarks.places import folder_of
from normtune.benchmarks.portfolio import Part, case_of, part_of
from normtune.benchmarks.recorded_spaces import load
from normtune.heuristics.fitting.function import fit_function
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.regret.fixed_log import MILLION
from normtune.heuristics.regret.matrix import LEAST_ASSUMED, TimingMatrix
from normtune.heuristics.solver.bins import bins
from normtune.heuristics.solver.crossing import at_crossings
from normtune.kernels.operator import operator
from normtune.kernels.problem import Shape
from normtune.kernels.tablefile.tree import choose as answer
from normtune.tuner.plan.grids import GRIDS, USUAL_HIDDEN, USUAL_ROWS

GPUS = {"NVIDIA H200": "nvidia-h200", "NVIDIA H100 80GB HBM3": "nvidia-h100-80gb-hbm3"}
OPERATORS = ("rms_norm_forward", "rms_norm_backward")
LEAVES = (8, 16, 32, 64)
LEAVES_BETWEEN = (40, 64, 96)
# Returns the column of a config in the matrix.
Chooser = Callable[[Shape], int]


def logs_of(part: Part) -> NDArray[np.float64]:
    """(shapes, 2): logarithms of rows and hidden."""
    return np.log(np.array(part.matrix.problems, float))


def cost_of(part: Part) -> NDArray[np.float64]:
    """(shapes, configs): log-ratios to the best; of an untimed config what a fit assumes, infinite if it is illegal."""
    matrix = part.matrix.assumed
    return np.where(matrix.usable, matrix.regret / MILLION, np.inf)


def exact(part: Part, leaves: int) -> Chooser:
    """The tree of a fit of one function."""
    return of_tree(part, fit_function(case_of(part, part.matrix, FitOptions(leaves=leaves))).tree)


def of_tree(part: Part, tree: Any) -> Chooser:
    """The answers of a tree."""
    spec, columns = operator(part.matrix.key.operator), part.matrix.columns
    return lambda shape: columns[spec.read_config(answer(tree, shape).to_json())]


def on_bins(part: Part, matrix: TimingMatrix) -> Iterator[tuple[Chooser, Chooser]]:
    """For each of `LEAVES_BETWEEN` the best tree of a matrix on its grid, and it with moved thresholds of rows."""
    case = case_of(part, matrix, FitOptions())
    optima = case.solver.optima(bins(matrix, case.legality), max(LEAVES_BETWEEN))
    for tree in map(optima.tree, LEAVES_BETWEEN):
        assert tree is not None
        yield of_tree(part, tree), of_tree(part, at_crossings(matrix, case.legality, tree))


def log_times(matrix: TimingMatrix) -> NDArray[np.float64]:
    """(shapes, configs): log-times, infinite without one."""
    assert matrix.times is not None
    return np.where(matrix.usable, matrix.regret / MILLION, np.inf) + np.log(matrix.times.best)[:, None]


def of_shapes(matrix: TimingMatrix, shapes: Collection[Shape]) -> TimingMatrix:
    """The matrix of these shapes only."""
    return of_problems(matrix, [index for index, shape in enumerate(matrix.problems) if shape in {*shapes}])


def with_rows(matrix: TimingMatrix) -> TimingMatrix:
    """The matrix with a shape midway between the rows of neighbours, its log-times their means."""
    found = dict(zip(matrix.problems, log_times(matrix), strict=True))
    for (hidden, rows), (other, more) in pairwise(sorted((hidden, rows) for rows, hidden in matrix.problems)):
        middle = round(math.sqrt(rows * more))
        if hidden == other and middle not in (rows, more):
            found[middle, hidden] = (found[rows, hidden] + found[more, hidden]) / 2
    shapes = sorted(found)
    times = np.array([found[shape] for shape in shapes])
    usable = np.isfinite(times)
    regret = np.rint((times - times.min(axis=1, keepdims=True)) * MILLION)
    slowest = np.maximum(regret.max(axis=1, keepdims=True, where=usable, initial=0), LEAST_ASSUMED)
    return TimingMatrix(
        matrix.key,
        tuple(shapes),
        matrix.configs,
        np.where(usable, regret, slowest).astype(np.int64),
        usable,
        untimed=~usable,
    )


def greedy(part: Part, leaves: int) -> Chooser:
    """Best-first splits; a threshold lies at the geometric mean of two sizes."""
    cost, sizes = cost_of(part), logs_of(part)

    def least(members: NDArray[np.intp]) -> float:
        return float(cost[members].sum(axis=0).min())

    def split(members: NDArray[np.intp]) -> tuple[float, int, float]:
        """Gain, axis and threshold of the best cut."""
        best = (0.0, 0, 0.0)
        for axis in range(2 if len(members) > 1 else 0):
            order = members[np.argsort(sizes[members, axis], kind="stable")]
            below = np.cumsum(cost[order], axis=0)
            above = np.cumsum(cost[order[::-1]], axis=0)[::-1]
            both = below[:-1].min(axis=1) + above[1:].min(axis=1)
            values = sizes[order, axis]
            both[values[1:] == values[:-1]] = np.inf
            place = int(both.argmin())
            if (gain := least(members) - float(both[place])) > best[0]:
                best = gain, axis, float(values[place] + values[place + 1]) / 2
        return best

    every = np.arange(len(cost))
    # Members, best cut, and the limits (axis, threshold, is_low) of each region.
    regions: list[tuple[NDArray[np.intp], tuple[float, int, float], list[tuple[int, float, bool]]]]
    regions = [(every, split(every), [])]
    while len(regions) < leaves:
        members, (gain, axis, threshold), limits = regions.pop(
            max(range(len(regions)), key=lambda one: regions[one][1][0])
        )
        is_low = sizes[members, axis] <= threshold
        for is_side in (True, False):
            side = members[is_low == is_side]
            regions.append((side, split(side), [*limits, (axis, threshold, is_side)]))
        if gain <= 0:
            raise ValueError(f"no split gains anything at {len(regions)} leaves: expected at most so many")
    found = [(int(cost[members].sum(axis=0).argmin()), limits) for members, _, limits in regions]

    def choose(shape: Shape) -> int:
        logs = np.log(shape)
        return next(
            config
            for config, limits in found
            if all((logs[axis] <= threshold) == is_low for axis, threshold, is_low in limits)
        )

    return choose


def classifier(part: Part) -> Chooser:
    """The tree of AutoHeuristic's `train_decision.py`."""
    warnings.filterwarnings("ignore", "The number of unique classes")
    from sklearn.model_selection import train_test_split
    from sklearn.tree import DecisionTreeClassifier

    sizes, names = np.array(part.matrix.problems), cost_of(part).argmin(axis=1)
    rest, _, of_rest, _ = train_test_split(sizes, names, test_size=0.15, random_state=42)
    trained, validated, of_trained, of_validated = train_test_split(
        rest, of_rest, test_size=0.15 / 0.85, random_state=42
    )
    trees = [
        DecisionTreeClassifier(max_depth=depth, min_samples_leaf=least, criterion=criterion, random_state=42)
        for depth, least, criterion in product((5, 6, 7), (1, 5, 10, 0.01, 0.05, 0.02), ("gini", "entropy"))
    ]
    best = max(trees, key=lambda tree: tree.fit(trained, of_trained).score(validated, of_validated))
    return lambda shape: int(best.predict([shape])[0])


def nearest(part: Part, count: int) -> Chooser:
    """The config with the least mean of the nearest shapes."""
    cost, sizes = cost_of(part), logs_of(part)

    def choose(shape: Shape) -> int:
        distances = np.linalg.norm(sizes - np.log(shape), axis=1)
        places = distances.argsort(kind="stable")[:count]
        weights = 1 / np.maximum(distances[places], 1e-9)
        return int((weights @ cost[places]).argmin())

    return choose


def interpolated(part: Part) -> Chooser:
    """The least interpolated time. Sizes beyond the measured ones are moved to these."""
    matrix = part.matrix
    times = log_times(matrix)
    places = {shape: index for index, shape in enumerate(matrix.problems)}
    axes = [np.array(sorted({shape[axis] for shape in matrix.problems})) for axis in range(2)]
    fallback = nearest(part, 1)

    def corners(axis: NDArray[np.int64], size: int) -> list[tuple[int, float]]:
        size = min(max(size, int(axis[0])), int(axis[-1]))
        high = int(np.searchsorted(axis, size))
        if axis[high] == size:
            return [(int(axis[high]), 1.0)]
        low, up = int(axis[high - 1]), int(axis[high])
        share = math.log(size / low) / math.log(up / low)
        return [(low, 1 - share), (up, share)]

    def choose(shape: Shape) -> int:
        parts = [
            ((rows, hidden), one * two)
            for rows, one in corners(axes[0], shape[0])
            for hidden, two in corners(axes[1], shape[1])
        ]
        there = [(places[corner], weight) for corner, weight in parts if corner in places]
        total = sum((weight * times[place] for place, weight in there), np.zeros(times.shape[1]))
        return int(total.argmin()) if there and np.isfinite(total.min()) else fallback(shape)

    return choose


def mean_loss(choose: Chooser, part: Part, scored: Part) -> dict[str, float]:
    """Mean and worst loss in percent, and the number of shapes at which the choice was timed."""
    chosen = (part.matrix.configs[choose(shape)] for shape in scored.matrix.problems)
    losses = [scored.matrix.loss(index, config) for index, config in enumerate(chosen)]
    found = [loss / MILLION for loss in losses if loss is not None]
    mean, worst = (round(100 * math.expm1(one), 3) for one in (float(np.mean(found)), max(found)))
    return {"mean": mean, "worst": worst, "shapes": len(found)}


def main() -> None:
    for device, recording in GPUS.items():
        results: list[dict[str, Any]] = []
        folder = folder_of(device)
        recorded, held_out = load(recording), load(folder / "used.parquet")
        for name in OPERATORS:
            part, unseen = part_of(recorded, name), part_of(held_out, name)
            ways = {f"exact {leaves}": exact(part, leaves) for leaves in LEAVES}
            ways |= {f"greedy {leaves}": greedy(part, leaves) for leaves in LEAVES}
            ways |= {"classifier": classifier(part), "nearest": nearest(part, 1), "four nearest": nearest(part, 4)}
            ways["interpolated"] = interpolated(part)
            grids = GRIDS["default"], tuple(product(USUAL_ROWS, USUAL_HIDDEN))
            matrices = (part.matrix, with_rows(part.matrix), *(of_shapes(part.matrix, grid) for grid in grids))
            kinds = (on_bins(part, matrix) for matrix in matrices)
            for leaves, (still, moved), (dense, _), (_, lattice), (_, every) in zip(
                LEAVES_BETWEEN, *kinds, strict=True
            ):
                ways |= {f"on bins {leaves}": still, f"interpolated rows {leaves}": dense, f"crossing {leaves}": moved}
                ways |= {f"lattice {leaves}": lattice, f"13 x 16 {leaves}": every}
            for way, choose in ways.items():
                seen, new = mean_loss(choose, part, part), mean_loss(choose, part, unseen)
                results.append({"operator": name, "way": way, "seen": seen, "unseen": new})
                print(device, results[-1], flush=True)
        document = {"device": device, "cells": results}
        (folder / "choosers.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
