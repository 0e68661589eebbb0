"""The tables of `benchmarks/peers.py`: normtune against the fastest of its peers at each shape.

    python benchmarks/peers_report.py benchmarks/results/nvidia_h200/peers.jsonl > peers.md

Microseconds of kernel time, medians. `ratio` is normtune over the fastest peer; above 1 normtune loses, which is
marked. The last column is normtune over a plain copy of as many bytes. The first table has normtune's targets: to lose
nowhere by more than `LOST`, and to come close to the copy, by groups of shapes.
"""

import json
import sys
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

OURS, COPY = "normtune", "copy"
PASSES = ("forward", "backward")
MB = 1 << 20
# A loss takes longer than this many times the fastest peer, and longer than it by this many microseconds.
LOST = {"forward": (1.03, 0.1), "backward": (1.0, 0.1)}
WORST = 3

Key = tuple[str, str, int, int]


class Timed(NamedTuple):
    """Normtune at one shape.

    Attributes:
        rows, hidden: the shape.
        ours, fastest, copy: microseconds of normtune, of its fastest peer, of a plain copy.
        nbytes: bytes that a perfect kernel moves.
    """

    rows: int
    hidden: int
    ours: float
    fastest: float
    copy: float
    nbytes: int

    @property
    def ratio(self) -> float:
        return self.ours / self.fastest

    @property
    def shape(self) -> str:
        return f"{self.rows} x {self.hidden}"


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(report(Path(sys.argv[1])))


def read(path: Path) -> list[dict[str, Any]]:
    """All cells of a file, the newest of each problem, without a line that a kill cut off."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            cell = json.loads(line)
        except ValueError:
            continue
        found[key_of(cell)] = cell
    return list(found.values())


def key_of(cell: dict[str, Any]) -> Key:
    return cell["pass"], cell["dtype"], cell["rows"], cell["hidden"]


def report(path: Path) -> str:
    cells = read(path)
    parts = by_part(cells)
    lines = [f"{cells[-1]['device']}; " + ", ".join(f"{side} {told}" for side, told in versions(cells).items())]
    lines += ["", *targets({part: timed(found) for part, found in parts.items()})]
    for (name, dtype), found in parts.items():
        lines += ["", f"**{name}, {dtype}**", "", *table(found)]
    return "\n".join(lines)


def by_part(cells: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Cells by pass and dtype, forward first, sorted by hidden and rows."""
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in sorted(
        cells, key=lambda cell: (PASSES.index(cell["pass"]), cell["dtype"], cell["hidden"], cell["rows"])
    ):
        parts.setdefault((cell["pass"], cell["dtype"]), []).append(cell)
    return parts


def versions(cells: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The version of each side, of the newest cell that has it."""
    return {side: found["version"] for cell in cells for side, found in cell["sides"].items() if "version" in found}


def timed(cells: Sequence[dict[str, Any]]) -> list[Timed]:
    """Normtune at each cell that has a peer's time."""
    found = []
    for cell in cells:
        medians = {side: told["median_us"] for side, told in cell["sides"].items() if "median_us" in told}
        peers = [time for side, time in medians.items() if side not in (OURS, COPY)]
        if OURS in medians and peers:
            times = medians[OURS], min(peers), medians[COPY]
            found.append(Timed(cell["rows"], cell["hidden"], *times, bytes_moved(cell)))
    return found


def bytes_moved(cell: dict[str, Any]) -> int:
    """Bytes that a perfect kernel moves for a cell's problem."""
    if "bytes" in cell:
        return int(cell["bytes"])
    from normtune.kernels.operator import operator

    spec = operator(f"rms_norm_{cell['pass']}")
    variant = "no_rstd" if cell["pass"] == "forward" else ""
    return spec.bytes_moved(spec.problem(cell["rows"], cell["hidden"], cell["dtype"], variant))


def targets(parts: dict[tuple[str, str], list[Timed]]) -> list[str]:
    """The lines of the first table: a column for each pass and dtype, a row for each target."""
    lines = ["| | " + " | ".join(", ".join(part) for part in parts) + " |", "|---|" + "---:|" * len(parts)]
    for question, answer in QUESTIONS.items():
        cells = [answer(name, found) for (name, _), found in parts.items()]
        lines.append(f"| {question} | " + " | ".join(cells) + " |")
    return lines


def _mean_over_peer(name: str, found: list[Timed]) -> str:
    return f"{mean([one.ratio for one in found]):.2f}" if found else "-"


def _lost(name: str, found: list[Timed]) -> str:
    factor, more = LOST[name]
    lost = sum(one.ours > max(factor * one.fastest, one.fastest + more) for one in found)
    return f"{lost} of {len(found)}"


def _worst(name: str, found: list[Timed]) -> str:
    worst = sorted(found, key=lambda one: -one.ratio)[:WORST]
    return ", ".join(f"{one.shape} ({one.ratio:.2f})" for one in worst) or "-"


def _over_copy(least: int, below: float, narrow: int, wide: int, passes: Sequence[str] = PASSES) -> Any:
    """The mean over the copy for least <= bytes < below and narrow <= hidden <= wide, with the number of shapes."""

    def answer(name: str, found: list[Timed]) -> str:
        group = [one for one in found if least <= one.nbytes < below and narrow <= one.hidden <= wide]
        if name not in passes or not group:
            return "-"
        return f"{mean([one.ours / one.copy for one in group]):.3f} ({len(group)})"

    return answer


def _microseconds_over_copy(name: str, found: list[Timed]) -> str:
    over = [one.ours - one.copy for one in found if one.rows <= 1024 and one.nbytes <= 16 * MB]
    if name != "backward" or not over:
        return "-"
    return f"{fmean(over):.2f}, at most {max(over):.2f} ({len(over)})"


_ANY, _BACKWARD = 1 << 30, ("backward",)
QUESTIONS: dict[str, Callable[[str, list[Timed]], str]] = {
    "over the fastest peer": _mean_over_peer,
    "lost: above 1.03 times (backward 1.00) and 0.1 us more": _lost,
    "worst": _worst,
    "over the copy, from 64 MB (shapes)": _over_copy(64 * MB, float("inf"), 1, _ANY),
    "- 64 to 256 MB, hidden to 8192": _over_copy(64 * MB, 256 * MB, 1, 8192, _BACKWARD),
    "- from 256 MB, hidden to 8192": _over_copy(256 * MB, float("inf"), 1, 8192, _BACKWARD),
    "- from 256 MB, hidden 8193 to 16384": _over_copy(256 * MB, float("inf"), 8193, 16384, _BACKWARD),
    "- from 256 MB, hidden 16385 to 32768": _over_copy(256 * MB, float("inf"), 16385, 32768, _BACKWARD),
    "us over the copy, to 1024 rows and 16 MB": _microseconds_over_copy,
}


def table(cells: list[dict[str, Any]]) -> list[str]:
    """The lines of one pass and dtype."""
    peers = list(dict.fromkeys(side for cell in cells for side in cell["sides"] if side not in (OURS, COPY)))
    lines = [
        f"| rows x hidden | {' | '.join([COPY, OURS, *peers])} | ratio | of the copy |",
        "|---" + "|---:" * (4 + len(peers)) + "|",
    ]
    ratios, over_copy = [], []
    for cell in cells:
        medians = {side: found.get("median_us") for side, found in cell["sides"].items()}
        copied = medians[OURS] / medians[COPY]
        over_copy.append(copied)
        found = timed([cell])
        marked = "-"
        if found:
            ratios.append(found[0].ratio)
            marked = f"**{found[0].ratio:.2f}**" if found[0].ratio > 1 else f"{found[0].ratio:.2f}"
        shown = [f"{medians[side]:.2f}" if medians.get(side) else "-" for side in (COPY, OURS, *peers)]
        lines.append(f"| {cell['rows']} x {cell['hidden']} | {' | '.join(shown)} | {marked} | {copied:.2f} |")
    blanks = " | ".join("" for _ in range(2 + len(peers)))
    means = f"{mean(ratios):.2f} | {mean(over_copy):.2f}" if ratios else f"- | {mean(over_copy):.2f}"
    lost = sum(ratio > 1 for ratio in ratios)
    lines.append(f"| geometric mean; {lost} of {len(ratios)} lost | {blanks} | {means} |")
    return lines


def mean(values: list[float]) -> float:
    return exp(fmean(map(log, values)))


if __name__ == "__main__":
    main()
