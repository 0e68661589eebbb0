"""How often the choices of a table stay if the times are resampled.

    python examples/stability.py DATA [--operator NAME ...] [--leaves N] [--draws N] [--seed N]

DATA is a store or a Parquet file of measurements. Blocks of rounds are drawn with replacement for each problem, the
same ones for all its configs (Efron 1979). The same fit is repeated on each draw. A config stays at a shape if the
draw's table answers with the same config. A threshold of rows or hidden stays if the draw's function divides the same
axis between the same measured sizes. "Loses more" compares both tables on the measured times. Draws cannot vary what
all blocks share: the GPU, its day, the binaries.
"""

import argparse
import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import normtune

ROUNDS_PER_BLOCK = 2  # rounds 2 n and 2 n + 1 were measured together, so they share their noise
PROBLEM = ["operator", "variant", "dtype", "rows", "hidden", "run"]
SHAPE = ["operator", "dtype", "rows", "hidden"]


def drawn(evidence: Any, generator: np.random.Generator) -> Any:
    """Evidence with as many blocks of each problem, drawn with replacement; configs without a drawn round go."""
    frame = evidence.frame.copy()
    for _, problem in evidence.frame[evidence.frame["status"] == "ok"].groupby(PROBLEM):
        blocks = np.unique(np.concatenate(problem["rounds"].tolist()) // ROUNDS_PER_BLOCK)
        chosen = generator.choice(blocks, len(blocks))
        for row in problem.index:
            rounds, samples = frame.at[row, "rounds"], frame.at[row, "samples"]
            parts = [np.flatnonzero(rounds // ROUNDS_PER_BLOCK == block) for block in chosen]
            labels = [ROUNDS_PER_BLOCK * place + rounds[part] % ROUNDS_PER_BLOCK for place, part in enumerate(parts)]
            frame.at[row, "rounds"] = np.concatenate(labels).astype(np.int32)
            frame.at[row, "samples"] = samples[np.concatenate(parts)]
    is_timed = (frame["status"] != "ok") | (frame["samples"].map(len) > 0)
    return dataclasses.replace(evidence, frame=frame[is_timed].reset_index(drop=True))


def choices(table: normtune.Table, evidence: Any) -> pd.DataFrame:
    """The config of each measured shape and its loss on these measurements, a row for each shape."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.py"
        table.save(path)
        return normtune.show_map(evidence, table=path).set_index(SHAPE)[["config", "loss"]]


def splits(tree: Any, frame: pd.DataFrame) -> Iterator[tuple[str, int, int]]:
    """Axis, threshold and number of measured sizes below it of each split on a column of `frame`, root first."""
    if hasattr(tree, "threshold"):
        if tree.axis in frame:
            yield tree.axis, tree.threshold, int((frame[tree.axis].drop_duplicates() < tree.first).sum())
        yield from splits(tree.low, frame)
        yield from splits(tree.high, frame)


def threshold_shares(table: normtune.Table, draws: Sequence[normtune.Table]) -> Iterator[tuple[str, str, int, float]]:
    """Function, axis, threshold and the share of the draws that have it, from the root of each tree down."""
    for function in table.functions:
        frame = table.evidence.frame.query("operator == @function.key.operator")
        trees = [one.tree for draw in draws for one in draw.functions if one.key == function.key]
        places = [{(axis, below) for axis, _, below in splits(tree, frame)} for tree in trees]
        for axis, threshold, below in splits(function.tree, frame):
            yield str(function.key), axis, threshold, sum((axis, below) in each for each in places) / len(draws)


def main() -> None:
    """Fit, draw, fit again and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", help="store, Parquet file or recording; default: the default store")
    parser.add_argument("--operator", action="append", default=[], help="only this operator; may be repeated")
    parser.add_argument("--leaves", type=int, default=16, help="at most so many leaves per function [16]")
    parser.add_argument("--draws", type=int, default=20, help="number of tables fitted to resampled times [20]")
    parser.add_argument("--seed", type=int, default=0, help="of the draws [0]")
    options = parser.parse_args()
    if options.draws < 1:
        parser.error(f"--draws is {options.draws}: expected at least 1")
    try:
        table = normtune.fit(options.data, operators=options.operator, leaves=options.leaves)
    except normtune.NormtuneError as error:
        raise SystemExit(f"{parser.prog}: {error}") from None
    if table.fit.data.unpaired:
        raise SystemExit(f"{parser.prog}: the times are of another program, without rounds to resample")
    generator = np.random.default_rng(options.seed)
    draws = [normtune.fit(drawn(table.evidence, generator), leaves=options.leaves) for _ in range(options.draws)]

    chosen = choices(table, table.evidence)
    others = [choices(draw, table.evidence).reindex(chosen.index) for draw in draws]
    chosen["stays"] = np.mean([other["config"] == chosen["config"] for other in others], axis=0)
    chosen["loses more"] = np.mean([other["loss"] - chosen["loss"] for other in others], axis=0)
    for (operator, dtype), part in chosen.groupby(level=SHAPE[:2]):
        often, more = 100 * part["stays"].mean(), 100 * part["loses more"].mean()
        print(f"{operator} {dtype}: the config stays at {often:.0f} % of {len(part)} shapes, loses {more:.2f} % more")
        for (_, _, rows, hidden), stays in part["stays"].nsmallest(3).items():
            print(f"  at {rows} rows of {hidden} in {100 * stays:.0f} % of {options.draws} draws")
    for name, axis, threshold, share in threshold_shares(table, draws):
        print(f"{name}: {axis} {'<=' if axis == 'hidden' else '>='} {threshold} in {100 * share:.0f} % of the draws")


if __name__ == "__main__":
    main()
