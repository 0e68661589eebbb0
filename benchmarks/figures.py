"""The figures of README.md and docs/results.md, from committed data: results of benchmarks, and `table_figures`.

    python benchmarks/figures.py           # write the blocks of both documents
    python benchmarks/figures.py --check   # end with 1 if a document is out of date

Needs no GPU and fits nothing. The text around a block is written by hand and repeats none of its figures.
"""

import json
import math
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from normtune.benchmarks import liger_table, peers_report, search_cases, table_figures, tilegym_table, unmeasured
from normtune.benchmarks.table_figures import OPERATORS, percent
from normtune.docs import blocks
from normtune.docs.blocks import Blocks
from normtune.heuristics.regret.fixed_log import MILLION

README, DOCUMENT = blocks.ROOT / "README.md", blocks.ROOT / "docs" / "results.md"
RESULTS = Path(__file__).parent / "results" / "nvidia_h200"
COMMAND = "python benchmarks/figures.py"
# Number of named shapes at which normtune loses, worst first.
NAMED = 8


def main() -> None:
    blocks.main(__doc__ or "", COMMAND, "figures", DOCUMENTS)


def _times(losses: Sequence[table_figures.Losses]) -> str:
    """The least and the greatest ratio of times to those of a rule: `1.11 to 1.13`."""
    ratios = [math.exp(one.faster / MILLION) for one in losses if one.faster is not None]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def headline() -> list[str]:
    """The headline figures of README.md."""
    peers = {name: _ratio(cells) for name, cells in peers_report.by_part(_peers()).items()}
    count = len(peers_report.timed(next(iter(peers_report.by_part(_peers()).values()))))
    forward = [one for one in table_figures.function_losses() if one.operator == "rms_norm_forward"]
    backward = [one for one in table_figures.function_losses() if one.operator == "rms_norm_backward"]
    sweep, fit, lookup = _json("sweep"), _json("fit"), _json("lookup")
    return [
        "",
        *_item(
            "**Kernels.** Time over that of the fastest peer at each shape (torch, inductor, Liger-Kernel, QuACK), "
            f"geometric mean over {count} shapes: backward {peers['backward', 'bfloat16']:.2f} in bfloat16 and "
            f"{peers['backward', 'float32']:.2f} in float32, forward {peers['forward', 'bfloat16']:.2f} and "
            f"{peers['forward', 'float32']:.2f}."
        ),
        *_item(
            f"**Table.** On the recorded shapes it loses {_range(one.recorded.mean for one in forward)} forward and "
            f"{_range(one.recorded.mean for one in backward)} backward on average, against the best config of each "
            f"shape (below 0: about 0); its config is timed at {_least_timed([*forward, *backward])} of them. On the "
            f"same kernels Liger-Kernel's launch rule takes {_times(forward)} and {_times(backward)} times as long. At "
            f"{forward[0].held_out.problems} and {backward[0].held_out.problems} shapes of other hidden sizes it loses "
            f"{percent(forward[0].held_out.mean, 2)} and {percent(backward[0].held_out.mean, 2)} % in "
            f"{forward[0].dtype}, and of still others maybe {_range(forward[0].interval)} and "
            f"{_range(backward[0].interval)} (95 %, bootstrap)."
        ),
        *_item(
            f"**Cost.** A default sweep takes {sweep['wall_s']:.0f} s on the GPU. A fit of {fit['measurements']} "
            f"measurements takes {fit['cases'][0]['seconds']:.0f} s on {fit['cores']} CPU cores, "
            f"{fit['cases'][1]['seconds']:.0f} s with "
            f"cross-validation. A lookup takes {fmean(function['mean_ns'] for function in lookup['functions']):.0f} ns."
        ),
        "",
    ]


def _least_timed(functions: Sequence[Any]) -> str:
    """The least share of the shapes of a function that have a time of its config: `all`, `95 %`."""
    losses = [one.recorded for one in functions]
    share = min(100 * loss.problems // (loss.problems + loss.untimed) for loss in losses)
    return "all" if share == 100 else f"{share} %"


def _item(text: str) -> list[str]:
    return textwrap.wrap(text, 120, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)


def _range(values: Any) -> str:
    """The least and the greatest of some regrets, as percent."""
    found = sorted(values)
    return f"{percent(found[0], 2)} to {percent(found[-1], 2)} %"


def _ratio(cells: list[dict[str, Any]]) -> float:
    """Time over that of the fastest peer, geometric mean."""
    return peers_report.mean([one.ratio for one in peers_report.timed(cells)])


def setting() -> list[str]:
    """Hardware, software and the regime of the measurements."""
    cell = _peers()[-1]
    software = cell["software"]
    return [
        f"One {cell['device']}, torch {plain(software['torch'])}, triton {plain(software['triton'])}, kernel time from "
        "a cold cache",
        "([measuring.md](measuring.md)).",
    ]


def peers() -> list[str]:
    """Means over the fastest peer, and the shapes at which that peer is faster."""
    versions = {
        side: plain(text) for side, text in peers_report.versions(_peers()).items() if side != peers_report.OURS
    }
    lines = ["", f"Peers: {', '.join(f'{side} {text}' for side, text in versions.items())}.", ""]
    lines += ["| work | over the fastest peer | lost | over the copy |", "|---|---:|---:|---:|"]
    losses = []
    for (name, dtype), cells in peers_report.by_part(_peers()).items():
        timed = peers_report.timed(cells)
        lost = sorted((one for one in timed if one.ratio > 1), key=lambda one: -one.ratio)
        over_copy = peers_report.mean([one.ours / one.copy for one in timed])
        lines.append(f"| {name}, {dtype} | {_ratio(cells):.2f} | {len(lost)} of {len(timed)} | {over_copy:.2f} |")
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
    """TileGym's table in bfloat16; nothing if not measured."""
    if not (RESULTS / "tilegym_table.json").exists():
        return []
    cells = [cell for cell in _json("tilegym_table")["cells"] if cell["dtype"] == "bfloat16"]
    return ["", *tilegym_table.table(sorted(cells, key=lambda cell: cell["hidden"])), ""]


def host() -> list[str]:
    lines = ["", "| work | rows x hidden | torch | normtune | ratio |", "|---|---|---:|---:|---:|"]
    for cell in sorted(_json("host")["cells"], key=lambda cell: cell["work"] != "forward, no_grad"):
        ratio = cell["normtune"] / cell["torch"]
        shape = f"{cell['rows']} x {cell['hidden']}"
        lines.append(f"| {cell['work']} | {shape} | {cell['torch']:.2f} | {cell['normtune']:.2f} | {ratio:.2f} |")
    return [*lines, ""]


def staleness() -> list[str]:
    """Error rates of `normtune check --device`, on replays and on a GPU."""
    replay, gpu = _json("staleness_replay"), _json("staleness")
    lines = ["", "| replay | checks | OK | AMBIGUOUS | STALE |", "|---|---:|---:|---:|---:|"]
    for title, is_fresh, own in (
        ("fresh tables", True, False),
        ("stale functions", False, False),
        ("fresh tables of own shapes", True, True),
        ("stale functions of own shapes", False, True),
    ):
        verdicts: Counter[str] = Counter()
        for count in replay["counts"]:
            if (count["kind"] == "fresh", count["own"]) == (is_fresh, own) and (is_fresh or count["stale"]):
                verdicts.update({verdict: count.get(verdict, 0) for verdict in _VERDICTS})
        lines.append(f"| {title} | {verdicts.total()} | {' | '.join(str(verdicts[name]) for name in _VERDICTS)} |")
    lines += ["", "| H200 | checks | seconds | verdict | mean loss of plain functions, % |", "|---|---:|---:|---|---:|"]
    by_kind: dict[str, list[Any]] = {}
    for check in gpu["checks"]:
        by_kind.setdefault(check["kind"], []).append(check)
    for kind, checks in sorted(by_kind.items(), key=lambda item: (item[0] != "fresh", item[1][0]["verdict"], item[0])):
        means = [
            function["mean_millionths"]
            for check in checks
            for function in check["functions"]
            if ":" not in function["function"] and function["mean_millionths"] is not None
        ]
        seconds = sorted(round(check["seconds"]) for check in checks)
        taken = str(seconds[0]) if seconds[0] == seconds[-1] else f"{seconds[0]} to {seconds[-1]}"
        mean = " to ".join(dict.fromkeys(percent(value, 1) for value in (min(means), max(means)))) if means else "-"
        given = ", ".join(sorted({check["verdict"] for check in checks}))
        lines.append(f"| `{kind}` | {len(checks)} | {taken} | {given} | {mean} |")
    return [*lines, ""]


def two_sweeps() -> list[str]:
    """Losses of one sweep's table on the times of another."""
    document = _json("two_sweeps")
    lines = [
        "",
        "| operator | dtype | shapes | recording's table | other's table | floor |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for kind in document["kinds"]:
        cells = [kind["key"], kind["dtype"], str(kind["shapes"]), *(percent(loss, 2) for loss in kind["losses"])]
        low, high = sorted(kind["floors"])
        lines.append(f"| {' | '.join(cells)} | {percent(low, 2)} to {percent(high, 2)} |")
    return [*lines, ""]


def unmeasured_gpu() -> list[str]:
    """Choices of tables and rules on the GPU of Liger-Kernel #1238."""
    return ["", *unmeasured.table(json.loads(unmeasured.DATA.read_text("utf-8"))), ""]


def tool() -> list[str]:
    sweep, fit, many, lookup = (_json(name) for name in ("sweep", "fit", "many_tables", "lookup"))
    cases = ", ".join(f"{case['seconds']:.1f} s ({case['case'].strip('-')})" for case in fit["cases"])
    peak = max(case["peak_mb"] for case in fit["cases"])
    means = [function["mean_ns"] for function in lookup["functions"]]
    rows = [
        _sweep_row("default sweep, compiling included", sweep),
        _sweep_row("the same within a budget", _json("sweep_60_seconds")),
        _sweep_row("the same of the default space by `adaptive`", _json("sweep_adaptive")),
        (
            f"fit of {fit['measurements']} measurements",
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


def _sweep_row(what: str, sweep: dict[str, Any]) -> tuple[str, str, str, str]:
    """A sweep of `benchmarks/sweep.py`, with its options."""
    seconds = sweep["seconds"]
    gpu = f"compiler {seconds['compile']:.0f}, gate {seconds['gate']:.0f}, timing {seconds['timing']:.0f}"
    measured = f"{sweep['problems']} problems, {sweep['measurements']} measurements"
    command = " ".join(["sweep.py", *sweep["options"]])
    return f"{what}: {measured}", command, sweep["device"], f"{sweep['wall_s']:.0f} s ({gpu})"


_VERDICTS = ("OK", "AMBIGUOUS", "STALE")
BLOCKS: Blocks = {
    "setting": setting,
    "copy": table_figures.copy,
    "peers": peers,
    "liger": liger,
    "tilegym": tilegym,
    "host": host,
    "losses": table_figures.losses,
    "relatives": table_figures.relatives,
    "h100": table_figures.h100,
    "batch_invariant": table_figures.batch_invariant,
    "staleness": staleness,
    "two_sweeps": two_sweeps,
    "unmeasured": unmeasured_gpu,
    "search_cases": search_cases.by_case,
    "search_scores": search_cases.on_recorded,
    "tool": tool,
}
DOCUMENTS: dict[Path, Blocks] = {README: {"headline": headline}, DOCUMENT: BLOCKS}


def plain(version: str) -> str:
    return version.partition("+")[0]


def _json(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def _peers() -> list[dict[str, Any]]:
    return peers_report.read(RESULTS / "peers.jsonl")


if __name__ == "__main__":
    main()
