"""What `fit` prints: figures, what was gained over the rule that is in use today, and how to use the table.

In: fits. Out: lines of at most 80 columns where names allow, the same for a terminal and for a pipe.
"""

import math
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from normtune.heuristics.figures import Figures, Gain
from normtune.heuristics.fitted import Fit
from normtune.heuristics.micrologs import MILLION, percent
from normtune.heuristics.rules import liger
from normtune.kernels.gpu_name import plain_name
from normtune.kernels.problem import split_key

_WIDTHS = (10, 8, 7, 7, 7, 11, 9, 9, 8)
_HEADINGS = (
    ("", "", "", "", "", "cross-", "", "Liger", "Liger"),
    ("dtype", "leaves", "mean", "90th", "worst", "validated", "optimum", "mean", "worst"),
)


def figures(fit: Fit) -> Iterable[str]:
    """The figures of a table, operator by operator."""
    device = fit.device
    yield f"{device.label}, {device.target}, {device.sms} SMs: {fit.measurements} measurements, {fit.date}"
    yield "Slower than the best config of each problem, in percent (Liger: its rule):"
    yield ""
    for heading in _HEADINGS:
        yield _row(heading)
    rows: dict[str, list[tuple[str, str, Figures]]] = defaultdict(list)
    for one in fit.functions:
        rows[one.key].append((one.dtype, str(one.figures.leaves), one.figures))
    for other in fit.shared:
        rows[other.key].append((other.dtype, "shared", other.figures))
    for key in sorted(rows):
        yield key
        for dtype, leaves, found in sorted(rows[key]):
            yield _row((f"  {dtype}", leaves, *_cells(found)))
    yield ""
    for one in fit.functions:
        takers = [
            f"{other.key} {other.dtype} {percent(other.cost)}"
            for other in fit.shared
            if other.donor == (one.key, one.dtype)
        ]
        if takers:
            yield f"{one.key} {one.dtype} is shared, which costs"
            yield from (f"  {told}" for told in takers)
    yield from fit.notes


def gain(fit: Fit) -> str | None:
    """One line: how much faster the table makes each operator than the rule that Liger-Kernel ships.

    Over the problems of all dtypes on which the rule's config was measured; variants count only where no plain operator
    was measured. None where there is no such problem.
    """
    figures = [(one.key, one.figures) for one in fit.functions] + [(one.key, one.figures) for one in fit.shared]
    found: dict[str, list[Gain]] = defaultdict(list)
    for key, one in figures:
        if one.gain:
            found[key].append(one.gain)
    plain = [key for key in found if not split_key(key)[1]]
    told = [f"{key} {_faster(found[key])}" for key in sorted(plain or found)]
    return f"On average, against the rule of {liger.TITLE} on the same kernels: {', '.join(told)}" if told else None


def ways(fit: Fit, out: Path | None) -> Iterable[str]:
    """The three ways to make kernels use a table.

    Args:
        fit: the table.
        out: where it was written; None where it was not.
    """
    name = shlex.quote(str(out)) if out else "FILE"
    yield "Three ways to use it:" if out else "Nothing was written. Three ways to use the table:"
    for way, effect in (
        ("normtune fit --install", f"kernels on {plain_name(fit.device.name)} use it, for this user"),
        (f"NORMTUNE_TABLE={name}", "one process uses it" if out else "one process uses it; --out FILE writes it"),
        ("commit it", "as heuristics.py of a library, or in heuristics/tables/ of normtune"),
    ):
        yield f"  {way}: {effect}"


def _row(cells: Sequence[str]) -> str:
    first, *rest = zip(cells, _WIDTHS, strict=True)
    return (f"{first[0]:<{first[1]}}" + "".join(f"{cell:>{width}}" for cell, width in rest)).rstrip()


def _cells(found: Figures) -> list[str]:
    rule = found.rule
    shown = (
        (found.loss.mean, 2),
        (found.loss.ninetieth, 2),
        (found.loss.worst, 1),
        (found.cross_validated, 2),
        (found.optimum, 2),
        (rule.mean if rule else None, 2),
        (rule.worst if rule else None, 1),
    )
    return ["-" if value is None else percent(value, digits).removesuffix(" %") for value, digits in shown]


def _faster(gains: Sequence[Gain]) -> str:
    ratio = math.exp(sum(one.total for one in gains) / sum(one.problems for one in gains) / MILLION)
    most = math.exp(max(one.most for one in gains) / MILLION)
    if ratio >= 2:
        mean = f"{ratio:.1f} times as fast"
    elif round(100 * (ratio - 1)) == 0:
        mean = "as fast"
    elif ratio > 1:
        mean = f"{100 * (ratio - 1):.0f} % faster"
    else:
        mean = f"{100 * (1 / ratio - 1):.0f} % slower"
    best = f"{most:.1f} times" if most >= 1.95 else f"{100 * (most - 1):.0f} %"
    return f"{mean} (up to {best})" if most >= 1.005 else mean
