"""Nanoseconds per lookup in an emitted table on this machine's CPU.

    python benchmarks/lookup.py [TABLE] [--json FILE]

TABLE is a file that `normtune fit --out` wrote; by default the first shipped table. Each of its functions is looked up
at shapes spread over the usual box; the figure is the least of the repeats, less the cost of an empty loop. Before the
timing, each answer is checked against the tree parsed from the code.
"""

import argparse
import json
import runpy
import timeit
from itertools import product
from pathlib import Path

from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.tree import choose, leaves

ROWS = (1, 100, 4096, 50000, 262144)
HIDDEN = (64, 200, 1024, 4096, 11008, 32768)
NUMBER = 50_000
REPEATS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", type=Path, help="file of a table")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    functions = []
    path = options.table or next(iter(locate.shipped()), None)
    if path is None:
        parser.error("no table ships: name the file of one")
    table, lookup = locate.load(path), runpy.run_path(str(path))["lookup"]
    empty = min(timeit.repeat("pass", number=NUMBER, repeat=REPEATS))
    print(f"{path.name}, {table.header.label}")
    print(f"{'':44} leaves   mean ns   worst ns")
    for key, tree in table.trees.items():
        operator, times = key.text, []
        for shape in product(ROWS, HIDDEN):
            arguments = operator, key.dtype, *shape
            if lookup(*arguments) != choose(tree, shape):
                raise SystemExit(f"{key} at {shape}: the code and its tree differ")
            names = {"lookup": lookup, "arguments": arguments}
            best = min(timeit.repeat("lookup(*arguments)", globals=names, number=NUMBER, repeat=REPEATS))
            times.append((best - empty) / NUMBER * 1e9)
        mean, worst = sum(times) / len(times), max(times)
        print(f"{key!s:44} {leaves(tree):6} {mean:9.0f} {worst:10.0f}")
        figures = {"leaves": leaves(tree), "mean_ns": round(mean), "worst_ns": round(worst)}
        functions.append({"operator": operator, "dtype": key.dtype} | figures)
    if options.json:
        options.json.write_text(json.dumps({"table": path.name, "functions": functions}, indent=1) + "\n")


if __name__ == "__main__":
    main()
