"""Lines of a check on a device: the verdicts on the table and on each function, and the shapes that lose most."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from normtune.heuristics.regret.fixed_log import fraction, percent
from normtune.heuristics.writing.entries import ends
from normtune.kernels.problem import AXES
from normtune.kernels.target import plain_name
from normtune.results.records import Device
from normtune.tuner.checking.subject import Checked, TableUnderTest
from normtune.tuner.checking.verdict import (
    AMBIGUOUS,
    OK,
    OK_ERROR,
    STALE,
    UNMEASURED,
    Judgement,
    ShapeLoss,
    of_table,
)
from normtune.tuner.sweep.work import Work

# Shapes shown per stale function.
_SHAPES = 5
_DIGITS = 1


def headline(judged: Sequence[tuple[Checked, Judgement]]) -> str:
    """The verdict on a table, and the functions that decided it: `STALE, because of rms_norm_forward bfloat16`."""
    verdict, deciding = of_table(judged)
    because = f", because of {', '.join(str(function.key) for function in deciding)}" if deciding else ""
    return f"{verdict}{because}"


def function_lines(judged: Sequence[tuple[Checked, Judgement]]) -> Iterator[list[str]]:
    """The verdict on each measured function that is not plainly OK; of a stale one also its mean and worst shapes."""
    for function, judgement in judged:
        if judgement.verdict in (OK, UNMEASURED) and not judgement.why:
            continue
        lines = [f"{function.key}: {': '.join(filter(None, (judgement.verdict, judgement.why)))}"]
        if judgement.findings and judgement.verdict == STALE:
            lines.append(f"  {_mean(judgement)}")
            lines += [f"  {_shape_line(one)}" for one in judgement.findings[:_SHAPES]]
        yield lines


def next_lines(verdict: str, kernels_changed: bool) -> list[str]:
    """The next step for a stale table; empty for others."""
    stale = ", with --stale where they are stored" * kernels_changed
    advice = f"Next: sweep its operators{stale}, then fit with its options; all figures: --format json"
    return [advice] if verdict == STALE else []


def plain_functions(judged: Sequence[tuple[Checked, Judgement]]) -> list[dict[str, Any]]:
    """The judgements as JSON values: losses are fractions, 0.0123 for 1.23 %; docs/commands.md describes the keys."""
    return [
        {
            "operator": function.key.text,
            "dtype": function.key.dtype,
            "verdict": judgement.verdict,
            "why": judgement.why,
            "promised": fraction(judgement.promise.mean) if judgement.promise.figure else None,
            "mean": fraction(judgement.mean.mean) if judgement.mean else None,
            "low": fraction(judgement.mean.low(OK_ERROR)) if judgement.mean else None,
            "high": fraction(judgement.mean.high(OK_ERROR)) if judgement.mean else None,
            "shapes": [
                dict[str, object](zip(AXES, finding.shape, strict=True))
                | {"config": str(finding.config), "best": str(finding.rival), "failure": finding.failure}
                | {name: fraction(getattr(finding, name)) for name in ("loss", "low", "high")}
                for finding in judgement.findings
            ],
        }
        for function, judgement in judged
    ]


def counts_line(judged: Sequence[tuple[Checked, Judgement]]) -> str:
    """Number of functions by verdict: `20 of 22 functions OK, 2 NOT MEASURED`."""
    counts = Counter(judgement.verdict for _, judgement in judged)
    others = (f", {counts[verdict]} {verdict}" for verdict in (STALE, AMBIGUOUS, UNMEASURED) if counts[verdict])
    return f"{counts[OK]} of {len(judged)} functions OK{''.join(others)}"


def note_lines(table: TableUnderTest, device: Device, work: Work, without_shapes: int) -> Iterator[str]:
    """Notes beside the verdict; a replayed recording has no shape of `without_shapes` functions."""
    header = table.header
    if (header.gpu, header.sms) != (plain_name(device.name), device.sms):
        yield (
            f"the table was made for {header.label} with {header.sms} SMs, but was measured on {device.label} with "
            f"{device.sms}"
        )
    for line in table.changed:
        yield f"{line}; the present kernels were measured"
    yield from table.notes
    yield from ends(table.measured)
    if without_shapes:
        functions = f"{without_shapes} of {len(table.functions)} functions"
        yield f"{functions} could not be measured: {device.label} has times of none of their shapes"
    if work.summary.left:
        yield f"the budget ended with {work.summary.left} shapes left: --budget gives more time"
    if oversized := work.backlog.plan.oversized:
        yield f"{len(oversized)} shapes were left out: they exceed the free memory of the device"
    for reason, count in sorted(work.summary.skipped.items()):
        yield f"{count} shapes could not be measured: {reason}"


def _mean(judgement: Judgement) -> str:
    count = sum(not finding.failure for finding in judgement.findings)
    promised = f"promised {percent(judgement.promise.mean)}" if judgement.promise.figure else "promised nothing"
    if judgement.mean is None:
        return f"{count} shapes have a time; {promised}"
    mean, low, high = (
        percent(round(value))
        for value in (judgement.mean.mean, judgement.mean.low(OK_ERROR), judgement.mean.high(OK_ERROR))
    )
    return f"{count} shapes lose {mean} ({low} to {high}), {promised}"


def _shape_line(finding: ShapeLoss) -> str:
    shape = " x ".join(map(str, finding.shape))
    if finding.failure:
        return f"{shape}: {finding.config} fails: {finding.failure}"
    return f"{shape}: {percent(finding.loss, _DIGITS)} slower than {finding.rival}"
