"""The table of `benchmarks/peers.py`: normtune against the fastest of its peers at each shape.

    python benchmarks/peers_report.py benchmarks/results/nvidia_h200/peers.jsonl

Microseconds of kernel time, medians. `ratio` is normtune over the fastest peer; where it is above 1 normtune loses,
which is marked. The last column is normtune over a plain copy of as many bytes.
"""

import json
import sys
from collections import defaultdict
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

OURS, COPY = "normtune", "copy"


def main() -> None:
    """Read and print."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(report(Path(sys.argv[1])))


def report(path: Path) -> str:
    """The tables of a file, as Markdown."""
    cells = {}
    for line in path.read_text().splitlines():
        cell = json.loads(line)
        cells[cell["pass"], cell["dtype"], cell["rows"], cell["hidden"]] = cell
    parts = defaultdict(list)
    for key in sorted(cells, key=lambda key: (PASSES.index(key[0]), key[1], key[3], key[2])):
        parts[key[:2]].append(cells[key])
    newest = list(cells.values())[-1]
    versions = {side: found["version"] for side, found in newest["sides"].items() if "version" in found}
    lines = [f"{newest['device']}; " + ", ".join(f"{side} {version}" for side, version in versions.items())]
    for (name, dtype), found in parts.items():
        lines += ["", f"**{name}, {dtype}**", "", *table(found)]
    return "\n".join(lines)


PASSES = ("forward", "backward")


def table(cells: list[dict[str, Any]]) -> list[str]:
    """The lines of one pass and dtype."""
    peers = [side for side in cells[0]["sides"] if side not in (OURS, COPY)]
    lines = [
        f"| rows x hidden | {' | '.join([COPY, OURS, *peers])} | ratio | of the copy |",
        "|---" + "|---:" * (4 + len(peers)) + "|",
    ]
    ratios, over_copy = [], []
    for cell in cells:
        medians = {side: found.get("median_us") for side, found in cell["sides"].items()}
        fastest = min(time for side, time in medians.items() if side in peers and time)
        ratio, copied = medians[OURS] / fastest, medians[OURS] / medians[COPY]
        ratios.append(ratio)
        over_copy.append(copied)
        shown = [f"{medians[side]:.2f}" if medians.get(side) else "-" for side in (COPY, OURS, *peers)]
        marked = f"**{ratio:.2f}**" if ratio > 1 else f"{ratio:.2f}"
        lines.append(f"| {cell['rows']} x {cell['hidden']} | {' | '.join(shown)} | {marked} | {copied:.2f} |")
    blanks = " | ".join("" for _ in range(2 + len(peers)))
    means = f"{mean(ratios):.2f} | {mean(over_copy):.2f}"
    lost = sum(ratio > 1 for ratio in ratios)
    lines.append(f"| geometric mean; {lost} of {len(ratios)} lost | {blanks} | {means} |")
    return lines


def mean(values: list[float]) -> float:
    """The geometric mean."""
    return exp(fmean(map(log, values)))


if __name__ == "__main__":
    main()
