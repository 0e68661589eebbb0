"""What the shipped tables lose: blocks of docs/results.md.

In: recordings, held-out measurements, shipped tables and their headers. Out: lines of Markdown, and `function_losses`
for the README. Needs no GPU and fits nothing.
"""

import random
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from normtune.benchmarks import against_copy
from normtune.benchmarks.lib import blocks

if TYPE_CHECKING:
    from normtune.heuristics.fitting.figures import Loss

RECORDING, H100 = "nvidia-h200", "nvidia-h100-80gb-hbm3"
HELD_OUT = blocks.ROOT / "benchmarks" / "results" / "nvidia_h200" / "unseen.parquet"
OPERATORS = ("rms_norm_forward", "rms_norm_backward")
_RESAMPLED = 4_000
# From so many bytes on memory determines the time.
LARGE = 64 * 1000**2


class Losses(NamedTuple):
    """Losses of a function of the shipped table.

    Attributes:
        operator: of the function.
        dtype: of the function.
        function: its number of leaves, or the function that it shares.
        recorded: its loss on the recording; None if not measured.
        held_out: its loss at the held-out shapes; None if not measured.
        interval: 95 % interval of that mean if other hidden sizes had been held out, millionths; None likewise.
        gap: to the best tree with the same number of leaves, from the header; empty if it shares another function.
        liger: mean loss of Liger-Kernel's rule on the recording, millionths.
        faster: logarithm of the rule's time over the table's, mean over the recorded shapes, millionths: the number
            that `normtune fit` and `normtune diff` print.
    """

    operator: str
    dtype: str
    function: str
    recorded: Any
    held_out: Any
    interval: tuple[int, int] | None
    gap: str
    liger: int | None
    faster: float | None


def losses() -> list[str]:
    """Losses of the shipped table's functions on the recording and at held-out shapes, beside Liger's rule."""
    lines = [
        "",
        "| operator | dtype | function | shapes | plain mean | worst | gap | held out: mean | of other sizes | worst | "
        "Liger's rule |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in function_losses():
        recorded, held_out = one.recorded, one.held_out
        cells = [one.operator, one.dtype, one.function, _timed_shapes(recorded) if recorded else "0"]
        cells += [percent(recorded and recorded.mean, 2), percent(recorded and recorded.worst, 1), one.gap]
        interval = " to ".join(percent(end, 2) for end in one.interval or ())
        cells += [percent(held_out and held_out.mean, 2), interval, percent(held_out and held_out.worst, 1)]
        lines.append(f"| {' | '.join([*cells, percent(one.liger, 2)])} |")
    bias = max(loss.luck for one in function_losses() for loss in (one.recorded, one.held_out) if loss)
    note = (
        f"Means are low by at most {percent(bias, 2)} %: half of the rounds choose the best config of a shape and the "
        "other half scores it. A mean below 0 means about 0."
    )
    return [*lines, "", *textwrap.wrap(note, 120), ""]


def _timed_shapes(loss: Any) -> str:
    """`869`, or `560 of 869` where the table's choice is not timed at all shapes."""
    return f"{loss.problems} of {loss.problems + loss.untimed}" if loss.untimed else str(loss.problems)


@cache
def function_losses() -> list[Losses]:
    from normtune.heuristics.fitting import figures
    from normtune.heuristics.regret import fixed_log
    from normtune.heuristics.regret.matrix import timing_matrix
    from normtune.heuristics.rules import liger
    from normtune.heuristics.writing.entries import entries
    from normtune.kernels.operator import operator
    from normtune.kernels.tablefile import parse
    from normtune.kernels.tablefile.tree import leaves
    from normtune.kernels.target import target_for
    from normtune.results.exchange.parquet_csv import read_parquet

    (device,) = _evidence().devices()
    target = target_for(device.target, device.sms)
    header, source = shipped()
    trees, known = parse.trees(source.read_text("utf-8")), {one.key: one for one in entries(header)}
    of_functions = []
    for name in OPERATORS:
        for dtype in operator(name).dtypes:
            recorded, held_out = (
                timing_matrix(evidence, operator(name), operator(name).key(dtype), target)
                for evidence in (_evidence(), read_parquet(HELD_OUT))
            )
            key = operator(name).key(dtype)
            tree = trees[key]
            entry, rule = known[key], _of_rule(recorded, liger.choose) if recorded else None
            donor, gap = entry.donor, 0 if entry.donor else entry.figures.gap
            of_functions.append(
                Losses(
                    name,
                    dtype,
                    f"{donor.dtype}'s, which costs {percent(entry.cost, 2)}" if donor else f"{leaves(tree)} leaves",
                    figures.of_tree(recorded, tree) if recorded else None,
                    figures.of_tree(held_out, tree) if held_out else None,
                    _interval(held_out, tree) if held_out else None,
                    fixed_log.percent_up(gap).removesuffix(" %") if gap > 0 else "",
                    rule.mean if rule else None,
                    _gain(recorded, tree) if rule else None,
                )
            )
    return of_functions


def _gain(matrix: Any, tree: Any) -> float:
    """Mean log of the time of Liger's launch over the tree's, millionths, where both have one."""
    from normtune.heuristics.rules import liger
    from normtune.heuristics.solver.bins import losses as losses_of

    chosen = (liger.choose(matrix.key.operator, *shape) for shape in matrix.problems)
    theirs = [None if config is None else matrix.loss(index, config) for index, config in enumerate(chosen)]
    pairs = zip(theirs, losses_of(matrix, tree), strict=True)
    return fmean(other - own for other, own in pairs if other is not None and own is not None)


def _of_rule(matrix: Any, rule: Callable[..., Any]) -> "Loss | None":
    """The loss of a rule where its config has a time."""
    from normtune.heuristics.fitting.figures import of_configs

    return of_configs(matrix, [rule(matrix.key.operator, *shape) for shape in matrix.problems])


def _interval(matrix: Any, tree: Any) -> tuple[int, int]:
    """95 % interval of a tree's mean loss, millionths: a bootstrap over hidden sizes."""
    from normtune.heuristics.solver.bins import losses as losses_of

    known = [(hidden, loss) for (_, hidden), loss in zip(matrix.problems, losses_of(matrix, tree), strict=True)]
    of_size: dict[int, list[int]] = {}
    for hidden, loss in known:
        if loss is not None:
            of_size.setdefault(hidden, []).append(loss)
    draw, sizes = random.Random(0), list(of_size.values())
    means = sorted(fmean(loss for own in draw.choices(sizes, k=len(sizes)) for loss in own) for _ in range(_RESAMPLED))
    return round(means[_RESAMPLED // 40]), round(means[-_RESAMPLED // 40])


def batch_invariant() -> list[str]:
    """Cost of the shipped table's batch-invariant functions beside the usual ones, from its header."""
    from normtune.heuristics.writing.entries import entries

    lines = ["", "| operator | dtype | mean | worst |", "|---|---|---:|---:|"]
    for entry in entries(shipped()[0]):
        if cost := entry.beside:
            lines.append(
                f"| {entry.key.usual.text} | {entry.key.dtype} | {percent(cost.mean, 2)} | {percent(cost.worst, 1)} |"
            )
    return [*lines, ""]


def relatives() -> list[str]:
    """The shipped tables of the relatives of RMSNorm, each on its recording, which has its name."""
    from normtune.results.exchange.recording import recordings

    return [
        "",
        "| operator | shapes | leaves | mean | worst | cross-validated | default config | over the copy |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *(line for name in recordings() if name.startswith(f"{RECORDING}-") for line in _of_recording(name)),
        "",
    ]


def h100() -> list[str]:
    """The plain functions of the H100's table on its recording."""
    return [
        "",
        "| operator, dtype | shapes | leaves | mean | worst | cross-validated | default config | over the copy |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *_of_recording(H100, dtypes=True),
        "",
    ]


def _of_recording(name: str, dtypes: bool = False) -> Iterator[str]:
    """A line for each plain key of a recording, possibly with its dtype."""
    from normtune.heuristics.fitting import figures
    from normtune.heuristics.regret.matrix import timing_matrix
    from normtune.heuristics.writing.entries import entries
    from normtune.kernels.operator import operator
    from normtune.kernels.tablefile import locate, parse
    from normtune.kernels.tablefile.tree import leaves
    from normtune.kernels.target import target_for
    from normtune.results.exchange.recording import load_recording

    evidence, source = load_recording(name), locate.by_name()[name]
    (device,) = evidence.devices()
    target = target_for(device.target, device.sms)
    trees = parse.trees(locate.read(source))
    validated = {one.key: one.figures.cross_validated for one in entries(locate.header_of(source))}
    for key in (one for one in evidence.measured_keys() if not one.modes):
        spec, tree = operator(key.operator), trees[key]
        matrix = timing_matrix(evidence, spec, key, target)
        assert matrix is not None

        def default(_: str, rows: int, hidden: int, spec: Any = spec, dtype: str = key.dtype) -> Any:
            return spec.default_config(spec.problem(rows, hidden, dtype), target)

        own, untuned = figures.of_tree(matrix, tree), _of_rule(matrix, default)
        over = [log(ours / copy) for ours, copy in _beside_the_copy(evidence.select([key.text], [key.dtype]), tree)]
        cells = [
            *(f"{key.family} {key.dtype}" if dtypes else key.family, str(own.problems), str(leaves(tree))),
            *(f"{percent(own.plain, 1)} %", f"{percent(own.worst, 1)} %"),
            *(
                f"{percent(validated[key], 2)} %" if validated.get(key) is not None else "",
                f"{percent(untuned.plain, 1)} %" if untuned else "",
            ),
            f"{exp(fmean(over)):.2f}, {exp(max(over)):.2f} at most ({len(over)} shapes)" if over else "",
        ]
        yield f"| {' | '.join(cells)} |"


def _beside_the_copy(evidence: Any, tree: Any) -> Iterator[tuple[float, float]]:
    """Times of the table's config and of the copy at each shape where at least `LARGE` bytes move."""
    from normtune.kernels.config import COPY
    from normtune.kernels.operator import operator
    from normtune.kernels.tablefile.tree import choose

    for problem, cells in against_copy.times_of(evidence).items():
        config = choose(tree, problem.shape)
        if COPY in cells and config in cells and operator(problem.operator).bytes_moved(problem) >= LARGE:
            yield cells[config], cells[COPY]


def percent(value: int | None, digits: int) -> str:
    """A regret in millionths as percent; empty for None."""
    from normtune.heuristics.regret import fixed_log

    return "" if value is None else fixed_log.percent(value, digits).removesuffix(" %")


@cache
def _evidence() -> Any:
    from normtune.results.exchange.recording import load_recording

    return load_recording(RECORDING)


def shipped() -> tuple[Any, Path]:
    """Header and file of the shipped table of the recorded GPU."""
    from normtune.kernels.tablefile import locate

    (device,) = _evidence().devices()
    path = against_copy.shipped_for(device.name)
    return locate.load(path).header, path
