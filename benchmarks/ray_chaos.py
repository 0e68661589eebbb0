"""Sweeps on a cluster of several nodes of this machine, each disturbed at a random moment: counts of runs and faults.

    python benchmarks/ray_chaos.py --runs 50 [--kinds worker,actor,node,driver,interrupt] [--first SEED]

A run kills a worker's process, an actor, a node (another one joins) or the driver, or interrupts the driver, which is
then started again. A fault is a measurement that is missing, doubled or not as without a cluster, a process that is
left, or a sweep that fails. The kinds take turns; the counts go to `benchmarks/results/ray_chaos.csv` after each run.
"""

import argparse
import csv
import tempfile
from collections import Counter
from pathlib import Path

from normtune.tests.tuner.cluster.disturbed import KINDS, Machines, begin, calm, disturb

RESULTS = Path(__file__).parent / "results" / "ray_chaos.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50, help="of each kind")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    kinds, runs, struck, faulty = options.kinds.split(","), Counter(), Counter(), Counter()
    if unknown := {*kinds} - {*KINDS}:
        parser.error(f"unknown kinds {', '.join(sorted(unknown))}: expected some of {', '.join(KINDS)}")
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "whole.db")
        undisturbed = begin("none", whole)
        _, errors = undisturbed.communicate()
        if undisturbed.returncode:
            raise SystemExit(errors)
        machines = Machines()
        try:
            seconds = calm(machines, Path(folder))
            for seed in range(options.first, options.first + options.runs):
                for kind in kinds:
                    done = disturb(machines, kind, seed, Path(folder), whole, seconds)
                    runs[kind] += 1
                    struck[kind] += done.struck
                    faulty[kind] += bool(done.faults)
                    print(kind, seed, "struck" if done.struck else "was over", *done.faults, flush=True)
                    with options.out.open("w", newline="") as file:
                        table = csv.writer(file, lineterminator="\n")
                        table.writerow(["kind", "runs", "struck", "faulty"])
                        table.writerows([name, runs[name], struck[name], faulty[name]] for name in kinds)
        finally:
            machines.close()


if __name__ == "__main__":
    main()
