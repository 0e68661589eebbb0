"""Losses of two sweeps of the same kind of GPU under each other's tables, beside the noise floor.

    python benchmarks/two_sweeps.py STORE_A STORE_B [--leaves N] [--operator NAME] [--json FILE]

A store is a URL, an SQLite file, a .parquet file from `normtune data export` or `normtune fit --evidence`, or the name
of a shipped recording. A table is fitted to each, and two more to the halves of its blocks. The output is the extra
loss of each sweep's table on the other's times against the other's own table, and the same for the tables of the halves
(the floor). Every loss must be at most 0.3 % above its floor; else the last line names the offender, and the exit code
is 1.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normtune.benchmarks.lib.two_sweeps import Crossed
    from normtune.heuristics.fitting.result import Fit
    from normtune.results.evidence import Evidence

ABOVE_FLOOR = 3_000  # millionths: 0.3 %


def main() -> None:
    from normtune.benchmarks.lib.two_sweeps import crossed, swept
    from normtune.heuristics.fitting.options import FitOptions

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs=2, metavar="STORE", help="where the times are")
    parser.add_argument("--leaves", type=int, help="the most leaves of a function; else by cross-validation")
    parser.add_argument("--operator", action="append", default=[], help="only this operator; may be repeated")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    asked = parser.parse_args()
    options = FitOptions(leaves=asked.leaves, operators=tuple(asked.operator))

    start = time.perf_counter()
    sweeps = [swept(_read(store), options) for store in asked.stores]
    for store, sweep in zip(asked.stores, sweeps, strict=True):
        fit = sweep.table.fit
        print(f"{store}: {fit.device.label}, {fit.data.measurements} measurements, {fit.data.date}")
    losses = crossed(sweeps[0], sweeps[1], options)
    print()
    print(f"{'percent':36}{'A on B':>8}{'B on A':>8}{'floor A':>9}{'floor B':>9}{'above':>8}{'differ':>8}{'shapes':>8}")
    for one in losses:
        print(_line(one))
    print(f"{time.perf_counter() - start:.0f} s on {len(os.sched_getaffinity(0))} cores")
    if asked.json:
        document = {
            "stores": [_facts(sweep.table.fit) for sweep in sweeps],
            "leaves": asked.leaves,
            "above_floor": ABOVE_FLOOR,
            "kinds": [
                {**one._asdict(), "differing": round(one.differing, 4), "loss": one.loss, "floor": one.floor}
                for one in losses
            ],
        }
        asked.json.write_text(json.dumps(document, indent=1) + "\n")
    failed = [f"{one.key} {one.dtype}" for one in losses if one.floor is not None and above(one) > ABOVE_FLOOR]
    if failed:
        raise SystemExit(f"more than {ABOVE_FLOOR / 1e4:.1f} % above the noise floor: {', '.join(failed)}")
    print(f"all at most {ABOVE_FLOOR / 1e4:.1f} % above the noise floor")


def above(one: "Crossed") -> float:
    """Loss above the floor, which counts as 0 if it is negative or missing; millionths."""
    return one.loss - max(0.0, one.floor or 0.0)


def _line(one: "Crossed") -> str:
    values = [*one.losses, *one.floors, above(one)]
    parts = [
        f"{'-' if value is None else f'{value / 1e4:.2f}':>{width}}"
        for value, width in zip(values, (8, 8, 9, 9, 8), strict=True)
    ]
    return f"{f'{one.key} {one.dtype}':36}{''.join(parts)}{100 * one.differing:>8.0f}{min(one.scored):>8}"


def _read(store: str) -> "Evidence":
    """The cold times of the newest kernels in a store, a file or a recording."""
    from normtune.heuristics.fitting.pipeline import used
    from normtune.results.exchange.parquet_csv import read_parquet
    from normtune.results.exchange.recording import recordings
    from normtune.results.source import read_evidence

    if store in recordings():
        evidence = read_evidence(None, store)
    elif store.endswith(".parquet"):
        evidence = read_parquet(Path(store))
    else:
        evidence = read_evidence(store)
    return used(evidence)


def _facts(fit: "Fit") -> dict[str, Any]:
    return {"device": fit.device.label, "date": fit.data.date, "digest": fit.data.digest}


if __name__ == "__main__":
    main()
