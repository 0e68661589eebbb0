"""The shipped table's functions of the relatives of RMSNorm, on their recordings. A block of docs/results.md.

In: the recording of a GPU and the header and trees of its table. Out: the lines of a table. Needs no GPU.
"""

import re
from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

# From so many bytes on memory determines the time.
LARGE = 64 * 1000**2


def lines(evidence: Any, regret: Sequence[str], source: Path, without: Sequence[str]) -> list[str]:
    """A line for each operator that the recording has and `without` does not name.

    Args:
        evidence: a `results.evidence.Evidence` of one device.
        regret: the lines of the table's header on losses.
        source: the file of the table.
        without: operators that other tables of the document show.
    """
    from normtune.heuristics.fitted import figures
    from normtune.heuristics.regret.matrix import timing_matrix
    from normtune.heuristics.tablefile import parse
    from normtune.heuristics.tablefile.tree import leaves
    from normtune.kernels.operator import operator
    from normtune.kernels.target import target_for

    (device,) = evidence.devices()
    target = target_for(device.target, device.sms)
    trees = parse.trees(source.read_text("utf-8"))
    shown = [
        "| operator | shapes | leaves | mean | worst | cross-validated | default config | over the copy |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, variant, dtype in evidence.kinds():
        if name in without or variant:
            continue
        spec = operator(name)
        matrix = timing_matrix(evidence, spec, "", dtype, target)
        tree = trees.get((name, dtype))
        if matrix is None or tree is None:
            continue

        def default(name: str, rows: int, hidden: int, spec: Any = spec, dtype: str = dtype) -> Any:
            return spec.default_config(spec.problem(rows, hidden, dtype), target)

        own, untuned = figures.of_tree(matrix, tree), figures.of_rule(matrix, default)
        (line,) = (text for text in regret if text.startswith(f"{name} {dtype}: "))
        validated = re.search(r"cross-validated (-?[\d.]+) %", line)
        cells = [str(own.problems), str(leaves(tree)), _percent(own.mean), _percent(own.worst)]
        cells += [f"{validated[1]} %" if validated else "", _percent(untuned.mean) if untuned else ""]
        over = [log(ours / copy) for ours, copy in _over_copy(evidence, spec, tree, dtype)]
        cells.append(f"{exp(fmean(over)):.2f} (to {exp(max(over)):.2f}, {len(over)} shapes)" if over else "")
        shown.append(f"| {name.partition('.')[0]} | {' | '.join(cells)} |")
    return shown


def _over_copy(evidence: Any, spec: Any, tree: Any, dtype: str) -> list[tuple[float, float]]:
    """Times of the table's config and of the copy, where it was timed and at least `LARGE` bytes move."""
    from normtune.heuristics.tablefile.tree import choose
    from normtune.kernels.config import COPY

    times: dict[Any, dict[Any, float]] = {}
    for item in evidence.select([spec.name]).measurements():
        if item.status == "ok" and item.problem.dtype == dtype and not item.problem.variant:
            times.setdefault(item.problem, {})[item.config] = median(item.samples.tolist())
    found = []
    for problem, cells in times.items():
        config = choose(tree, problem.rows, problem.hidden)
        if COPY in cells and config in cells and spec.bytes_moved(problem) >= LARGE:
            found.append((cells[config], cells[COPY]))
    return found


def _percent(millionths: int) -> str:
    """Of a log-regret."""
    return f"{100 * (exp(millionths / 1e6) - 1):.1f} %"
