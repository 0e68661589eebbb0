"""The figures of README.md and docs/results.md, from committed data: results of benchmarks, and `table_figures`.

    python benchmarks/figures.py           # write the blocks of both documents
    python benchmarks/figures.py --check   # end with 1 if a document is out of date

Needs no GPU and fits nothing. The text around a block is written by hand and repeats none of its figures.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from normtune.benchmarks import peers_report, search_cases, table_figures, unmeasured
from normtune.benchmarks.lib import blocks
from normtune.benchmarks.lib.blocks import Blocks
from normtune.benchmarks.table_figures import percent
from normtune.heuristics.regret.fixed_log import MILLION

README, DOCUMENT = blocks.ROOT / "README.md", blocks.ROOT / "docs" / "results.md"
RESULTS = Path(__file__).parent / "results" / "nvidia_h200"
COMMAND = "python benchmarks/figures.py"
# Number of named shapes at which normtune loses, worst first.
NAMED = 8
# Works of `model`: the step whose norms are shown, and what follows the name where times are of kernels.
TRAINING, KERNELS = "training step", " kernels"
# Ways of `choosers` that differ from another in one thing.
CAUSES = ("on bins", "interpolated rows", "crossing", "lattice", "13 x 16")


def main() -> None:
    blocks.main(__doc__ or "", COMMAND, "figures", DOCUMENTS)


def headline() -> list[str]:
    """The headline figures of README.md."""
    cells = peers_report.by_part(_peers())
    count = len(peers_report.timed(next(iter(cells.values()))))
    columns = []
    for work in ("forward", "backward"):
        losses = [one for one in table_figures.function_losses() if one.operator == f"rms_norm_{work}"]
        ratios = [math.exp(one.faster / MILLION) for one in losses if one.faster is not None]
        columns.append(
            (
                f"{_ratio(cells[work, 'bfloat16']):.2f}",
                f"{_ratio(cells[work, 'float32']):.2f}",
                f"{percent(max(one.recorded.mean for one in losses), 2)} % at most",
                f"{percent(losses[0].held_out.mean, 2)} %",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            )
        )
    texts = (
        f"time over the fastest peer's, {count} shapes, bfloat16",
        "the same in float32",
        "slower than the best config of each recorded shape, mean of a dtype",
        "the same at shapes that were not recorded, bfloat16",
        "time with Liger-Kernel's launch rule over the time with the table, a dtype",
    )
    sweep, fit, lookup = _json("sweep"), _json("fit"), _json("lookup")
    return [
        "",
        "| | forward | backward |",
        "|---|---:|---:|",
        *(f"| {' | '.join(row)} |" for row in zip(texts, *columns, strict=True)),
        "",
        f"A default sweep takes {sweep['wall_s']:.0f} s on the GPU. A fit of {fit['measurements']} measurements takes "
        f"{fit['cases'][1]['seconds']:.0f} s",
        f"on {fit['cores']} cores, {fit['cases'][0]['seconds']:.0f} s with `--leaves 16`. A lookup takes "
        f"{fmean(one['mean_ns'] for one in lookup['functions']):.0f} ns.",
        "",
    ]


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


def host() -> list[str]:
    lines = ["", "| work | rows x hidden | torch | normtune | ratio |", "|---|---|---:|---:|---:|"]
    for cell in sorted(_json("host")["cells"], key=lambda cell: cell["work"] != "forward, no_grad"):
        ratio = cell["normtune"] / cell["torch"]
        shape = f"{cell['rows']} x {cell['hidden']}"
        lines.append(f"| {cell['work']} | {shape} | {cell['torch']:.2f} | {cell['normtune']:.2f} | {ratio:.2f} |")
    return [*lines, ""]


def compiled() -> list[str]:
    """What compiled functions launch by default, over what Inductor makes of the formula."""
    cells = _json("compiled")["cells"]
    shapes = list(dict.fromkeys((cell["rows"], cell["hidden"]) for cell in cells))
    lines = ["", f"| case | {' | '.join(f'{rows} x {hidden}' for rows, hidden in shapes)} |"]
    lines.append(f"|---|{'---:|' * len(shapes)}")
    for case in dict.fromkeys(cell["case"] for cell in cells):
        row = []
        for cell in (cell for cell in cells if cell["case"] == case):
            ours = cell["us"].get("auto", cell["us"]["kernel"])
            row.append(", ".join(f"{us / them:.2f}" for us, them in zip(ours, cell["us"]["inductor"], strict=True)))
        lines.append(f"| {case} | {' | '.join(row)} |")
    return [*lines, ""]


def models() -> list[str]:
    """The steps of whole models, ms, with the norms of each library; of trainings what the norms' kernels take, too."""
    rows = []
    for (model, work, way), times in _steps().items():
        if work == TRAINING + KERNELS:
            rows.append((f"{model}, norms of a {TRAINING}, {way}", _norms(times)))
        elif KERNELS not in work:
            rows.append((f"{model}, {work}, {way}", times))
    return ["", *_table("model", rows), ""]


def steps() -> list[str]:
    """Eager training steps of README.md."""
    found, rows = _steps(), []
    for model, name in (("llama", "like Llama"), ("gemma", "like Gemma 3")):
        rows.append((f"a training step of a model {name}", found[model, TRAINING, "eager"]))
        rows.append(("the kernels of its norms", _norms(found[model, TRAINING + KERNELS, "eager"])))
    where = f"ms on an {_json('model')['device'].removeprefix('NVIDIA ')} ([all](docs/results.md#in-a-model))"
    return ["", *_table(where, rows), ""]


def _steps() -> dict[tuple[str, str, str], dict[str, float]]:
    """By model, work and way the ms of each side."""
    found: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for cell in _json("model")["cells"]:
        found[cell["model"], cell["work"], cell["way"]][cell["side"]] = cell["ms"]
    return found


def _norms(kernels: Mapping[str, float]) -> dict[str, float]:
    """The times of all kernels, less those of a model without norms."""
    return {side: ms - kernels["none"] for side, ms in kernels.items() if side != "none"}


def _table(title: str, rows: Sequence[tuple[str, Mapping[str, float]]]) -> list[str]:
    sides = ["none", *(side for side in rows[0][1] if side != "none")]
    lines = [f"| {title} | {' | '.join(sides)} |", f"|---|{'---:|' * len(sides)}"]
    for name, times in rows:
        shown = [f"{times[side]:.2f}" if side in times else "" for side in sides]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return lines


def staleness() -> list[str]:
    """Error rates of `normtune check --device` on replays."""
    replay = _json("staleness_replay")
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


def choosers() -> list[str]:
    """Losses of ways to choose a config, forward and backward, at measured and unseen shapes."""
    return _ways(lambda way: not way.startswith(CAUSES))


def between() -> list[str]:
    """The same of trees that differ in one thing each."""
    return _ways(lambda way: way.startswith(CAUSES))


def _ways(is_shown: Callable[[str], bool]) -> list[str]:
    found = {
        (cell["way"], folder, where, cell["operator"]): cell[where]["mean"]
        for folder in _HOPPER
        for cell in json.loads((RESULTS.parent / folder / "choosers.json").read_text("utf-8"))["cells"]
        for where in ("seen", "unseen")
    }
    titles = [f"{gpu}, {where}" for gpu in _HOPPER.values() for where in ("seen", "unseen")]
    lines = ["", f"| way | {' | '.join(titles)} |", f"|---|{'---:|' * len(titles)}"]
    for way in filter(is_shown, dict.fromkeys(way for way, *_ in found)):
        pairs = [
            ", ".join(f"{found[way, folder, where, f'rms_norm_{work}']:.2f}" for work in ("forward", "backward"))
            for folder in _HOPPER
            for where in ("seen", "unseen")
        ]
        lines.append(f"| {way} | {' | '.join(pairs)} |")
    return [*lines, ""]


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


_HOPPER = {"nvidia_h200": "H200", "nvidia_h100_80gb_hbm3": "H100"}
_VERDICTS = ("OK", "AMBIGUOUS", "STALE")
BLOCKS: Blocks = {
    "setting": setting,
    "peers": peers,
    "host": host,
    "compiled": compiled,
    "models": models,
    "losses": table_figures.losses,
    "relatives": table_figures.relatives,
    "h100": table_figures.h100,
    "batch_invariant": table_figures.batch_invariant,
    "staleness": staleness,
    "two_sweeps": two_sweeps,
    "unmeasured": unmeasured_gpu,
    "choosers": choosers,
    "between": between,
    "search_cases": search_cases.by_case,
    "tool": tool,
}
DOCUMENTS: dict[Path, Blocks] = {README: {"headline": headline, "steps": steps}, DOCUMENT: BLOCKS}


def plain(version: str) -> str:
    return version.partition("+")[0]


def _json(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def _peers() -> list[dict[str, Any]]:
    return peers_report.read(RESULTS / "peers.jsonl")


if __name__ == "__main__":
    main()
