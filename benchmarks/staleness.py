"""Does `normtune check --device` tell a stale table from a fresh one? Counts it, on planted tables.

    python benchmarks/staleness.py [--device cuda:0|replay:nvidia-h200] [--seeds 20] [--first-seed N] [--table FILE]
        [--budget 35] [--kinds NAME,...] [--json FILE]

Fresh is the table as it is, stale what is planted: its thresholds moved four times up or down, or another table in its
place. Each seed checks the fresh table and one planted one, in turn of the kinds, on shapes of its own. Ends with 1
where one was judged otherwise: OK and STALE are right, AMBIGUOUS is not.

- `up`, `down`: every threshold times 4, and divided by 4.
- `liger`: the rule of Liger-Kernel, as a table that was fitted elsewhere.
- `fewer_sms`, `more_sms`, only where they are asked for: thresholds in rows as a GPU of 36 multiprocessors beside 132
  would have them, and the other way round. On the recorded H200 these tables lose 0.3 to 1.2 % and 0.7 to 4 % more than
  the fresh one, which is near what counts as fresh; the answer is seldom more than AMBIGUOUS.

The budget is for each check, opening the device included, seconds.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from normtune.heuristics import suspect
from normtune.heuristics.check_command import measure, recorded
from normtune.heuristics.course import Course
from normtune.heuristics.rules import liger
from normtune.heuristics.suspect import Checked, Suspect
from normtune.heuristics.tree import Leaf, Split, Tree
from normtune.heuristics.verdict import OK, STALE, of_table
from normtune.tuner.bench import WorkerBench
from normtune.tuner.device import Bench, open_device
from normtune.tuner.grids import MAX_ELEMENTS

FRESH = "fresh"
_TABLE = Path(suspect.__file__).parent / "tables" / "nvidia_h200.py"
_SIZES = [1 << power for power in range(6, 17)]
_ROWS = [1 << power for power in range(19)]


def moved(tree: Tree, rows: tuple[int, int], hidden: tuple[int, int] = (1, 1)) -> Tree:
    """The tree with its thresholds scaled by these fractions."""
    if isinstance(tree, Leaf):
        return tree
    times, over = rows if tree.axis == "rows" else hidden
    low, high = (moved(side, rows, hidden) for side in (tree.low, tree.high))
    return Split(tree.axis, max(1, tree.threshold * times // over), low, high)


def of_liger(one: Checked) -> Tree:
    """Liger's rule as a tree; the function's own tree for a variant, of which the rule knows nothing."""
    return one.tree if one.variant else _by_hidden(one.operator, _SIZES)


KINDS: dict[str, Callable[[Checked], Tree]] = {
    "up": lambda one: moved(one.tree, (4, 1), (4, 1)),
    "down": lambda one: moved(one.tree, (1, 4), (1, 4)),
    "liger": of_liger,
    "fewer_sms": lambda one: moved(one.tree, (36, 132)),
    "more_sms": lambda one: moved(one.tree, (132, 36)),
}
DEFAULT_KINDS = ("up", "down", "liger")


def main() -> None:
    """Check fresh and planted tables and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="replay:nvidia-h200", help="cuda:N or replay:NAME")
    parser.add_argument("--seeds", type=int, default=20, help="fresh and stale tables, each")
    parser.add_argument("--first-seed", type=int, default=1000, help="the least of the seeds")
    parser.add_argument("--table", type=Path, default=_TABLE, help="the fresh table")
    parser.add_argument("--budget", type=float, default=35.0, help="seconds for each check")
    parser.add_argument("--kinds", default=",".join(DEFAULT_KINDS), help="what is planted, in turn")
    parser.add_argument("--json", type=Path, help="write the verdicts here too")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"unknown kinds {', '.join(sorted(unknown))}: expected some of {', '.join(KINDS)}")
    fresh = suspect.read(options.table)
    begun = time.monotonic()
    checks = []
    for number in range(options.seeds):
        seed = options.first_seed + number
        for kind in (FRESH, kinds[number % len(kinds)]):
            checks.append(checked(fresh, kind, options.device, seed, options.budget))
            print(told(checks[-1]), flush=True)
    right = Counter((check["kind"] == FRESH, is_right(check)) for check in checks)
    for name, is_fresh in ((FRESH, True), ("stale", False)):
        print(f"{name}: {right[is_fresh, True]} of {options.seeds} right")
    if options.json:
        document = {"device": options.device, "table": options.table.name, "budget_seconds": options.budget}
        document |= {"seconds": round(time.monotonic() - begun, 1), "checks": checks}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    if right[True, False] or right[False, False]:
        raise SystemExit(1)


def checked(table: Suspect, kind: str, device: str, seed: int, budget: float) -> dict[str, object]:
    """Check one table and say what came of it, as JSON has it."""
    begun = time.monotonic()
    plant = KINDS.get(kind, lambda one: one.tree)
    bench = _open(device, table.regime, seed)
    try:
        functions = [one._replace(tree=plant(one)) for one in table.on(bench.target.sms).functions]
        course = Course(functions, table.box, bench.target, seed, MAX_ELEMENTS, recorded(bench.device, table.regime))
        done = measure(course, bench, budget - (time.monotonic() - begun))
    finally:
        bench.close()
    judgements = course.judgements()
    verdict, confidence = of_table(judgements)
    return {
        "kind": kind,
        "seed": seed,
        "verdict": verdict,
        "confidence": round(confidence, 4),
        "seconds": round(time.monotonic() - begun, 1),
        "shapes": done.measured,
        "unfinished": done.unfinished,
        "functions": [
            {
                "function": f"{one.key} {one.dtype}",
                "verdict": found.verdict,
                "confidence": round(found.confidence, 4),
                "shapes": len(found.findings),
                "failures": sum(bool(finding.failure) for finding in found.findings),
                "mean_millionths": found.mean,
                "promised_millionths": found.promised,
            }
            for one, found in zip(functions, judgements, strict=True)
        ],
    }


def is_right(check: dict[str, object]) -> bool:
    """Whether a table was judged as what it is."""
    return check["verdict"] == (OK if check["kind"] == FRESH else STALE)


def told(check: dict[str, object]) -> str:
    """A check in one line."""
    mark = "" if is_right(check) else "  WRONG"
    return (
        f"seed {check['seed']} {check['kind']:10} {check['verdict']:9} {check['confidence']:.4f}  "
        f"{check['shapes']} shapes, {check['seconds']} s{mark}"
    )


def _open(device: str, regime: str, seed: int) -> Bench:
    """The device; a replay draws by the seed."""
    kind, _, name = device.partition(":")
    if kind == "replay":
        return WorkerBench(("normtune.tuner.replay", "ReplayEngine", (name, regime, seed)))
    return open_device(device, regime)


def _by_hidden(operator: str, sizes: list[int]) -> Tree:
    if len(sizes) == 1:
        return _by_rows(operator, sizes[0], _ROWS)
    middle = len(sizes) // 2
    return Split(
        "hidden", sizes[middle - 1], _by_hidden(operator, sizes[:middle]), _by_hidden(operator, sizes[middle:])
    )


def _by_rows(operator: str, hidden: int, rows: list[int]) -> Tree:
    configs = [liger.choose(operator, count, hidden) for count in rows]
    if configs[0] is None:
        raise SystemExit(f"Liger's rule has no config for {operator} at hidden {hidden}")
    if len(set(configs)) == 1:
        return Leaf(configs[0])
    middle = len(rows) // 2
    return Split(
        "rows", rows[middle], _by_rows(operator, hidden, rows[:middle]), _by_rows(operator, hidden, rows[middle:])
    )


if __name__ == "__main__":
    main()
