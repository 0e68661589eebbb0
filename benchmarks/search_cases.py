"""Which search for which case, and what the others lose there: a table of docs/results.md.

In: landscapes.json of benchmarks/results/strategies. Out: lines of Markdown.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from normtune.benchmarks import landscapes
from normtune.benchmarks.landscapes import Case
from normtune.benchmarks.lib import kernel_tuner
from normtune.benchmarks.lib.rivals import RIVALS

# The landscape that stands for a case, and the searches to take there.
CASES = (
    ("few configs", Case("rough", 60, 25), "`plane`, or `exhaustive` for the last 0.1 %"),
    ("own kernel, many configs and shapes", Case("rough", 20_000, 60), "`plane`"),
    ("own kernel, few shapes", Case("rough", 5000, 5), "`plane`"),
    ("the same, one bowl", Case("smooth", 5000, 5), "`plane`"),
    ("the same, knobs that depend on each other", Case("rugged", 5000, 5), "`plane`"),
    ("the same, 70 % of the configs fail", Case("failing", 5000, 5), "`plane`"),
    ("one shape", Case("rough", 5000, 1), "`plane`"),
    ("a few fast configs, unlike all others", Case("needle", 5000, 5), "`exhaustive`"),
)
# Columns: a heading, and the searches of which the best is shown.
_COLUMNS: tuple[tuple[str, Sequence[str]], ...] = (
    ("`plane`", ["plane"]),
    ("`optuna:TPESampler`", ["tpe"]),
    ("random draws", ["random"]),
    ("simple", [*RIVALS]),
    *((name.replace("_", " "), [f"kernel_tuner {name}"]) for name in kernel_tuner.STRATEGIES),
)


def by_case() -> list[str]:
    """Mean loss, and that of the worst shape, of each landscape."""
    runs: dict[tuple[Case, str], list[Any]] = {}
    for one in json.loads(landscapes.PLACE.read_text("utf-8"))["runs"]:
        runs.setdefault((Case(one["kind"], one["configs"], one["shapes"]), one["search"]), []).append(one)

    def cell(case: Case, names: Sequence[str]) -> str:
        found = {
            name: float(np.mean([one["mean"] for one in own])) for name in names if (own := runs.get((case, name)))
        }
        if not found:
            return ""
        best = min(found, key=lambda name: found[name])
        return f"{found[best]:.1f} ({max(one['worst'] for one in runs[case, best]):.0f})"

    def timings(case: Case) -> str:
        return f"{np.mean([one['timings'] for one in runs[case, 'plane']]):.0f}"

    rows = [
        [f"{text}: {case}", take, timings(case), *(cell(case, names) for _, names in _COLUMNS)]
        for text, case, take in CASES
    ]
    return _table(["case", "take", "timings of `plane`", *(heading for heading, _ in _COLUMNS)], rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [
        headings,
        ["---" if number == 0 or heading == "take" else "---:" for number, heading in enumerate(headings)],
    ]
    return ["", *(f"| {' | '.join(cells)} |" for cells in (*lines, *rows)), ""]
