"""Loss of ways to choose a config from the times of one sweep, at its own shapes and at unseen ones.

    pip install scikit-learn==1.9.1
    python benchmarks/choosers.py

In: shipped recordings, and times of 128 shapes that no table was fitted to; RMSNorm in bfloat16. Out: `choosers.json`
beside the results of each GPU. No GPU, some minutes.

- `exact N`: a fit of normtune with at most N leaves, all shapes of equal weight.
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
from collections.abc import Callable
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import normtune
from normtune.benchmarks.places import folder_of
from normtune.benchmarks.recorded_spaces import load
from normtune.results.evidence import Evidence

GPUS = {"NVIDIA H200": "nvidia-h200", "NVIDIA H100 80GB HBM3": "nvidia-h100-80gb-hbm3"}
OPERATORS = ("rms_norm_forward", "rms_norm_backward")
LEAVES = (8, 16, 32, 64)
DTYPE = "bfloat16"
# An untimed config counts as the slowest of its shape, at least as so much above the best: as in a fit.
UNTIMED = math.log(1.05)
_NOT_KNOBS = {"rows", "hidden", "dtype", "operator", "variant", "status", "reason"}
_NOT_KNOBS |= {"median_us", "best_ratio", "copy_ratio", "gbps", "device"}
Shape = tuple[int, int]
Chooser = Callable[[Shape], int]


def times(data: Evidence, name: str) -> pd.DataFrame:
    """The timed configs of all shapes, a row each; `microseconds` keep the ratios to the best that ran beside them."""
    shown = normtune.show(data, operators=name, dtypes=DTYPE)
    timed = shown[(shown.status == "ok") & (shown.variant == "") & shown.best_ratio.notna()]
    best = (timed.median_us / timed.best_ratio).groupby([timed.rows, timed.hidden]).transform("median")
    return timed.assign(microseconds=best * timed.best_ratio)


def knobs_of(timed: pd.DataFrame) -> list[str]:
    return [column for column in timed.columns if column not in _NOT_KNOBS]


def losses(timed: pd.DataFrame) -> pd.DataFrame:
    """Log-ratios to the best of a shape: a row each (rows, hidden), a column each config; NaN where untimed."""
    config = timed[knobs_of(timed)].astype(str).agg(" ".join, axis=1)
    table = timed.assign(config=config).pivot_table(index=["rows", "hidden"], columns="config", values="best_ratio")
    return np.log(table)


def filled(matrix: pd.DataFrame) -> NDArray[np.float64]:
    """The matrix with a loss for untimed configs."""
    worst = np.maximum(np.nanmax(matrix.to_numpy(), axis=1, keepdims=True), UNTIMED)
    return np.where(matrix.isna(), worst, matrix)


def exact(data: Evidence, matrix: pd.DataFrame, leaves: int) -> Chooser:
    """The table of a fit of one function."""
    table = normtune.fit(data, leaves=leaves, weights="equal")
    (function,) = table.functions
    columns = {column: index for index, column in enumerate(matrix.columns)}
    # One that was never timed beside others has no column.
    return lambda shape: columns.get(" ".join(map(str, table.lookup(function.key.text, DTYPE, *shape))), len(columns))


def greedy(matrix: pd.DataFrame, leaves: int) -> Chooser:
    """Best-first splits; a threshold lies at the geometric mean of two sizes."""
    cost, sizes = filled(matrix), np.log(np.array(matrix.index.tolist(), float))

    def least(members: NDArray[np.intp]) -> float:
        return float(cost[members].sum(axis=0).min())

    def split(members: NDArray[np.intp]) -> tuple[float, int, float]:
        """Gain, axis and threshold of the best cut."""
        best = (0.0, 0, 0.0)
        for axis in range(2 if len(members) > 1 else 0):
            order = members[np.argsort(sizes[members, axis], kind="stable")]
            below = np.cumsum(cost[order], axis=0)
            above = below[-1] - below
            both = below[:-1].min(axis=1) + above[:-1].min(axis=1)
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


def classifier(matrix: pd.DataFrame) -> Chooser:
    """The tree of AutoHeuristic's `train_decision.py`."""
    warnings.filterwarnings("ignore", "The number of unique classes")
    from sklearn.model_selection import train_test_split
    from sklearn.tree import DecisionTreeClassifier

    sizes, names = np.array(matrix.index.tolist()), filled(matrix).argmin(axis=1)
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


def nearest(matrix: pd.DataFrame, count: int) -> Chooser:
    """The config with the least mean of the nearest shapes."""
    cost, sizes = filled(matrix), np.log(np.array(matrix.index.tolist(), float))

    def choose(shape: Shape) -> int:
        distances = np.linalg.norm(sizes - np.log(shape), axis=1)
        places = distances.argsort(kind="stable")[:count]
        weights = 1 / np.maximum(distances[places], 1e-9)
        return int((weights @ cost[places]).argmin())

    return choose


def interpolated(matrix: pd.DataFrame, timed: pd.DataFrame) -> Chooser:
    """The least interpolated time. Sizes beyond the measured ones are moved to these."""
    best = timed.groupby(["rows", "hidden"]).microseconds.min()
    times = matrix.add(np.log(best), axis=0)
    axes = [np.array(sorted({*matrix.index.get_level_values(axis)})) for axis in ("rows", "hidden")]
    fallback = nearest(matrix, 1)

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
        there = [(place, weight) for place, weight in parts if place in times.index]
        if not there:
            return fallback(shape)
        total = sum(weight * times.loc[place].to_numpy() for place, weight in there)
        return fallback(shape) if np.isnan(total).all() else int(np.nanargmin(total))

    return choose


def mean_loss(choose: Chooser, fitted: pd.DataFrame, scored: pd.DataFrame) -> dict[str, float]:
    """Mean and worst loss in percent, and the number of shapes at which the choice was timed."""
    found = []
    for shape, row in scored.iterrows():
        choice = choose(shape)
        name = fitted.columns[choice] if choice < len(fitted.columns) else ""
        if not math.isnan(loss := row.get(name, math.nan)):
            found.append(float(loss))
    return {
        "mean": 100 * math.expm1(float(np.mean(found))),
        "worst": 100 * math.expm1(max(found)),
        "shapes": len(found),
    }


def main() -> None:
    for device, recording in GPUS.items():
        results = []
        for name in OPERATORS:
            data = load(recording).select([name], [DTYPE])
            timed = times(data, name)
            fitted, unseen = losses(timed), losses(times(load(folder_of(device) / "unseen.parquet"), name))
            ways: dict[str, Chooser] = {}
            for leaves in LEAVES:
                ways[f"exact {leaves}"] = exact(data, fitted, leaves)
                ways[f"greedy {leaves}"] = greedy(fitted, leaves)
            ways |= {"classifier": classifier(fitted), "nearest": nearest(fitted, 1)}
            ways |= {"four nearest": nearest(fitted, 4), "interpolated": interpolated(fitted, timed)}
            for way, choose in ways.items():
                cell = {"operator": name, "way": way}
                cell |= {"seen": mean_loss(choose, fitted, fitted), "unseen": mean_loss(choose, fitted, unseen)}
                results.append(cell)
                print(device, cell, flush=True)
        (folder_of(device) / "choosers.json").write_text(
            json.dumps({"device": device, "cells": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
