"""The figures of README.md, made of what is committed: results, recording, shipped table. Needs no GPU; fits nothing.

    python benchmarks/readme.py           # write them anew
    python benchmarks/readme.py --check   # end with 1 where README.md says something else

Each block stands between `<!-- figures: NAME -->` and `<!-- end -->`. What stands around a block is written by hand and
repeats no number of it.
"""

import argparse
import json
import re
import textwrap
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

from normtune.benchmarks import against_copy, liger_table, peers_report, tilegym_table

README = Path(__file__).parents[1] / "README.md"
RESULTS = Path(__file__).parent / "results" / "nvidia_h200"
RECORDING = "nvidia-h200"
HELD_OUT = README.parent / "tests" / "heuristics" / "fitting" / "nvidia_h200_held_out.parquet"
OPERATORS = ("rms_norm_forward", "rms_norm_backward")
# So many shapes at which normtune loses are named, worst first.
NAMED = 8

_BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)


def main() -> None:
    """Write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    from normtune.results.atomic import replaced

    text = README.read_text("utf-8")
    new = written(text)
    if options.check:
        if new != text:
            raise SystemExit("README.md differs from the results: run `python benchmarks/readme.py`")
        return
    with replaced(README) as temporary:
        temporary.write_text(new, "utf-8")


def written(text: str) -> str:
    """A text with its blocks filled in.

    Raises:
        SystemExit: a block has a name that is not known here, or one that is known is missing.
    """
    names = [match[1] for match in _BLOCK.findall(text)]
    if sorted(names) != sorted(BLOCKS):
        raise SystemExit(f"the text has the blocks {', '.join(names)}: expected each of {', '.join(BLOCKS)}, once")
    return _BLOCK.sub(lambda match: match[1] + "".join(f"{line}\n" for line in BLOCKS[match[2]]()) + match[4], text)


def setting() -> list[str]:
    """Where the figures were taken."""
    cell = _peers()[-1]
    software = cell["software"]
    return [
        f"On one {cell['device']} with torch {plain(software['torch'])} and triton {plain(software['triton'])}, kernel "
        "time from a cold cache",
        '(docs/design.md, "Timing protocol").',
    ]


def copy() -> list[str]:
    """The shipped table against the copy, 16-bit and 32-bit."""
    keys = [(operator, dtype) for operator in sorted(OPERATORS) for dtype in ("bfloat16", "float32")]
    return ["", *against_copy.table(against_copy.ratios(_evidence(), _table()[1]), keys), ""]


def peers() -> list[str]:
    """Means over the fastest peer, and where that is faster."""
    parts = peers_report.by_part(_peers())
    others = {side: plain(told) for side, told in peers_report.versions(_peers()).items() if side != peers_report.OURS}
    lines = ["", f"Peers: {', '.join(f'{side} {told}' for side, told in others.items())}.", ""]
    lines += ["| work | over the fastest peer | lost | over the copy |", "|---|---:|---:|---:|"]
    losses = []
    for (name, dtype), cells in parts.items():
        found = peers_report.timed(cells)
        lost = sorted((one for one in found if one.ratio > 1), key=lambda one: -one.ratio)
        ratio = peers_report.mean([one.ratio for one in found])
        over_copy = peers_report.mean([one.ours / one.copy for one in found])
        lines.append(f"| {name}, {dtype} | {ratio:.2f} | {len(lost)} of {len(found)} | {over_copy:.2f} |")
        if lost:
            shown = ", ".join(f"{one.shape} ({one.ratio:.2f})" for one in lost[:NAMED])
            more = f" and {len(lost) - NAMED} more" if len(lost) > NAMED else ""
            losses.append(f"- {name}, {dtype}, lost: {shown}{more}")
    return [*lines, "", *losses, *[""] * bool(losses)]


def liger() -> list[str]:
    """The first of Liger's three tables."""
    document = _json("liger_table")
    return ["", *liger_table.table(document, OPERATORS), "", *liger_table.table(document, OPERATORS, own=True), ""]


def tilegym() -> list[str]:
    """TileGym's table in bfloat16; nothing as long as it was not made."""
    if not (RESULTS / "tilegym_table.json").exists():
        return []
    cells = [cell for cell in _json("tilegym_table")["cells"] if cell["dtype"] == "bfloat16"]
    return [
        "",
        "**Throughput of the backward**, the table of TileGym #60, `python benchmarks/tilegym_table.py`: GB/s at",
        f"{tilegym_table.ROWS} rows in bfloat16, each tensor counted once; beside it with the partial sums of the",
        "weight gradient that are written and read. float16 and float32:",
        "[tilegym_table.md](benchmarks/results/nvidia_h200/tilegym_table.md).",
        "",
        *tilegym_table.table(sorted(cells, key=lambda cell: cell["hidden"])),
        "",
    ]


def host() -> list[str]:
    """What a call costs on the host."""
    lines = ["", "| work | rows x hidden | torch | normtune | ratio |", "|---|---|---:|---:|---:|"]
    for cell in sorted(_json("host")["cells"], key=lambda cell: cell["work"] != "forward, no_grad"):
        ratio = cell["normtune"] / cell["torch"]
        shape = f"{cell['rows']} x {cell['hidden']}"
        lines.append(f"| {cell['work']} | {shape} | {cell['torch']:.2f} | {cell['normtune']:.2f} | {ratio:.2f} |")
    return [*lines, ""]


def losses() -> list[str]:
    """What the functions of the shipped table lose on the recording and at held-out shapes, beside Liger's rule."""
    from normtune.heuristics.fitting import figures
    from normtune.heuristics.regret.matrix import timing_matrix
    from normtune.heuristics.rules import liger
    from normtune.heuristics.tablefile import parse
    from normtune.heuristics.tablefile.tree import leaves
    from normtune.kernels.operator import operator
    from normtune.kernels.target import target_for
    from normtune.results.parquet_csv import read_parquet

    (device,) = _evidence().devices()
    target = target_for(device.target, device.sms)
    header, source = _table()
    trees, known = parse.trees(source.read_text("utf-8")), header.known()
    evidences = (_evidence(), read_parquet(HELD_OUT))
    lines = [
        "",
        "| operator | dtype | function | shapes | plain mean | worst | gap | held out: mean | worst | Liger's rule |",
    ]
    lines.append("|---|---|---|---:|---:|---:|---:|---:|---:|---:|")
    luck = 0
    for name in OPERATORS:
        for dtype in operator(name).dtypes:
            matrices = [timing_matrix(one, operator(name), "", dtype, target) for one in evidences]
            found = [figures.of_tree(matrix, trees[name, dtype]) if matrix else None for matrix in matrices]
            (text,) = (line for line in header.regret if line.startswith(f"{name} {dtype}: "))
            costs, gap = (re.search(rf"{words} (-?[\d.]+) %", text) for words in ("sharing costs", "within"))
            one, matrix = known[name, dtype], matrices[0]
            function = (
                f"{one.donor[1]}'s, which costs {costs[1]}"
                if one.donor and costs
                else f"{leaves(trees[name, dtype])} leaves"
            )
            luck = max([luck, *(loss.luck for loss in found if loss)])
            rule = figures.of_rule(matrix, liger.choose) if matrix else None
            shown = [_percent(rule and rule.mean, 2)]
            for loss in reversed(found):
                shown = [_percent(loss and loss.mean, 2), _percent(loss and loss.worst, 1), *shown]
            shown.insert(2, gap[1] if gap else "")
            lines.append(
                f"| {name} | {dtype} | {function} | {found[0].problems if found[0] else 0} | {' | '.join(shown)} |"
            )
    told = (
        f"Means are low by at most {_percent(luck, 2)} %, as half of the rounds choose a shape's best and the other "
        "half scores it; a mean below 0 is one of about 0."
    )
    return [*lines, "", *textwrap.wrap(told, 120), ""]


def _percent(value: int | None, digits: int) -> str:
    """A regret in millionths as percent; empty where there is none."""
    from normtune.heuristics.regret.fixed_log import percent

    return "" if value is None else percent(value, digits).removesuffix(" %")


def tool() -> list[str]:
    """Sweep, fit and lookup."""
    sweep, fit, many, lookup = (_json(name) for name in ("sweep", "fit", "many_tables", "lookup"))
    header, _ = _table()
    count = re.search(r"\((\d+) measurements", header.data)
    cases = ", ".join(f"{case['seconds']:.1f} s ({case['case'].strip('-')})" for case in fit["cases"])
    peak = max(case["peak_mb"] for case in fit["cases"])
    means = [function["mean_ns"] for function in lookup["functions"]]
    rows = [
        (
            f"default sweep, {sweep['problems']} problems, compiling included{_of_other_spaces(sweep['measurements'])}",
            "sweep.py",
            sweep["device"],
            f"{sweep['wall_s']:.0f} s, {100 * sweep['timing_share']:.0f} % of it timing",
        ),
        (
            f"fit of {count[1] if count else 'the'} measurements",
            "fit.py",
            f"{fit['cores']} cores",
            f"{cases}, {peak} MB",
        ),
        (
            f"fit of {many['tables']} tables to {many['measurements']} measurements, 16 leaves",
            "many_tables.py",
            f"{many['cores']} cores",
            f"{many['seconds']:.0f} s, {many['peak_mb']} MB",
        ),
        (
            "lookup in the shipped table",
            "lookup.py",
            "1 core",
            f"{fmean(means):.0f} ns, {max(means)} ns in the slowest function",
        ),
    ]
    lines = ["", "| what | command | on | measured |", "| --- | --- | --- | --- |"]
    return [*lines, *(f"| {a} | `python benchmarks/{b}` | {c} | {d} |" for a, b, c, d in rows), ""]


def _of_other_spaces(measurements: int) -> str:
    """What is to be said of a sweep whose plan was another than today's; a copy is measured at each problem."""
    from normtune.kernels.target import TARGETS
    from normtune.tuner.plan.grids import shapes
    from normtune.tuner.plan.plan import plan, problems

    today = plan(problems([], ["bfloat16"], shapes("default")), "default", TARGETS["sm_90"])
    count = today.cells() + len(today.tasks)
    return "" if count == measurements else f" (its plan had {measurements} measurements, today's has {count})"


BLOCKS: dict[str, Callable[[], Iterable[str]]] = {
    "setting": setting,
    "copy": copy,
    "peers": peers,
    "liger": liger,
    "tilegym": tilegym,
    "host": host,
    "losses": losses,
    "tool": tool,
}


def plain(version: str) -> str:
    """A version without its build."""
    return version.partition("+")[0]


def _json(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def _peers() -> list[dict[str, Any]]:
    return peers_report.read(RESULTS / "peers.jsonl")


@cache
def _evidence() -> Any:
    from normtune.results.recording import load_recording

    return load_recording(RECORDING)


def _table() -> tuple[Any, Path]:
    """Header and file of the table that ships for the recorded GPU."""
    from normtune.heuristics.tablefile import locate

    (device,) = _evidence().devices()
    path = against_copy.shipped_for(device.name)
    return locate.load(path).header, path


if __name__ == "__main__":
    main()
