"""Which search for which case, and what the others lose there: the tables of docs/results.md.

In: landscapes.json and strategies.json of benchmarks/results/strategies. Out: lines of Markdown.
"""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from normtune.benchmarks import landscapes, strategies
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
_KERNEL_TUNER = tuple(f"kernel_tuner {name}" for name in kernel_tuner.STRATEGIES)
# Columns: a heading, and the searches of which the best is shown.
_OWN = (("`plane`", ["plane"]), ("`tpe`", ["tpe"]), ("random draws", ["random"]), ("Optuna's GP", ["gp"]))
_LOSSES: tuple[tuple[str, Sequence[str]], ...] = (
    *_OWN[:-1],  # GP takes a minute for a shape
    ("simple", [*RIVALS]),
    *((name.partition(" ")[2].replace("_", " "), [name]) for name in _KERNEL_TUNER),
)
_SCORES: tuple[tuple[str, Sequence[str]], ...] = (
    *_OWN,
    *((name.partition(" ")[2].replace("_", " "), [f"{name}, {strategies.FEW} samples"]) for name in _KERNEL_TUNER),
    ("genetic algorithm, all samples", [f"{_KERNEL_TUNER[0]}, all samples"]),
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
        [f"{text}: {case}", take, timings(case), *(cell(case, names) for _, names in _LOSSES)]
        for text, case, take in CASES
    ]
    return _table(["case", "take", "timings of `plane`", *(heading for heading, _ in _LOSSES)], rows)


def on_recorded() -> list[str]:
    """Score, and its standard error, on each recorded space."""
    document = json.loads(strategies.PLACE.read_text("utf-8"))
    runs = {(one["scenario"], one["search"]): one for one in document["runs"]}

    def cell(scenario: str, names: Sequence[str]) -> str:
        found = [run for name in names if (run := runs.get((scenario, name)))]
        best = max(found, key=lambda run: run["score"], default=None)
        return "" if best is None else f"{best['score']:.2f} ± {best['standard_error']:.2f}"

    scenarios = [one["name"] for one in document["scenarios"]]
    rows = [[name, *(cell(name, names) for _, names in _SCORES)] for name in scenarios]
    hub = [name for name in scenarios if name.endswith(("A100", "A4000", "MI250X", "W6600"))]
    rows.append(["mean of the hub's", *(_mean(hub, names, runs) for _, names in _SCORES)])
    return _table(["space", *(heading for heading, _ in _SCORES)], rows)


def _mean(scenarios: Sequence[str], names: Sequence[str], runs: dict[tuple[str, str], Any]) -> str:
    """The mean score over spaces of the search with the best mean."""
    means = [
        float(np.mean([runs[scenario, name]["score"] for scenario in scenarios]))
        for name in names
        if all((scenario, name) in runs for scenario in scenarios)
    ]
    return f"{max(means):.2f}" if means else ""


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [
        headings,
        ["---" if number == 0 or heading == "take" else "---:" for number, heading in enumerate(headings)],
    ]
    return ["", *(f"| {' | '.join(cells)} |" for cells in (*lines, *rows)), ""]
