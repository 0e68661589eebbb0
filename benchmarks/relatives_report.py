"""The table of `benchmarks/relatives.py`: normtune beside a copy of as many bytes, and the fastest of its peers.

    python benchmarks/relatives_report.py benchmarks/results/nvidia_h200/relatives.jsonl > relatives.md

Microseconds of kernel time, medians. `ratio` is normtune over the fastest peer; above 1 normtune loses, which is
marked. The last column is normtune over a plain copy of as many bytes; the first table has its mean from 64 MB.
"""

import sys
from pathlib import Path
from typing import Any

from normtune.benchmarks.peers_report import COPY, MB, OURS, bytes_moved, mean, read, table, versions

LARGE = 64 * MB


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(report(Path(sys.argv[1])))


def report(path: Path) -> str:
    cells = read(path)
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in sorted(cells, key=lambda cell: (cell["hidden"], cell["rows"])):
        parts.setdefault((cell["pass"], cell["dtype"]), []).append(cell)
    lines = [f"{cells[-1]['device']}; " + ", ".join(f"{side} {told}" for side, told in versions(cells).items())]
    lines += ["", "| case | over the copy, from 64 MB | worst | shapes |", "|---|---:|---:|---:|"]
    for (name, dtype), found in sorted(parts.items()):
        times = [{side: told.get("median_us") for side, told in cell["sides"].items()} for cell in found]
        over = [of[OURS] / of[COPY] for of, cell in zip(times, found, strict=True) if bytes_moved(cell) >= LARGE]
        told = f"{mean(over):.3f} | {max(over):.3f}" if over else "- | -"
        lines.append(f"| {name}, {dtype} | {told} | {len(over)} |")
    for (name, dtype), found in sorted(parts.items()):
        lines += ["", f"**{name}, {dtype}**", "", *table(found)]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
