"""Lines of a check on a device: the verdicts on the table and on each function, and the shapes that lose most."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from normtune.heuristics.regret.fixed_log import percent
from normtune.kernels.target import plain_name
from normtune.results.records import Device
from normtune.tuner.checking.subject import Checked, Promise, TableUnderTest
from normtune.tuner.checking.verdict import (
    AMBIGUOUS,
    OK,
    OK_ERROR,
    STALE,
    UNMEASURED,
    Judgement,
    ShapeLoss,
    of_table,
    ok_under,
    promises_too_much,
    stale_over,
)

# Shapes shown per function, by verdict.
_SHAPES = {OK: 1, AMBIGUOUS: 3, STALE: 5, UNMEASURED: 0}
_DIGITS = 1


def verdict_lines(name: str, device: str, judged: Sequence[tuple[Checked, Judgement]]) -> Iterator[str]:
    """The verdict on a table, then on each function, with its worst shapes.

    Args:
        name: of the table.
        device: of the measurements.
        judged: the checked functions with their judgements.
    """
    verdict, deciding = of_table(judged)
    because = f", because of {', '.join(str(function.key) for function in deciding)}" if deciding else ""
    yield f"{name} on {device}: {verdict}{because}"
    for function, judgement in judged:
        yield f"  {function.key}: {': '.join(filter(None, (judgement.verdict, judgement.why)))}"
        if judgement.findings:
            yield f"    {_mean(judgement)}"
        others = [str(key) for key in function.served if key != function.key]
        if others:
            yield f"    answers for {', '.join(others)}, too"
        for finding in judgement.findings[: _SHAPES[judgement.verdict]]:
            yield f"    {_shape_line(finding)}"


def counts_line(judged: Sequence[tuple[Checked, Judgement]]) -> str:
    """Number of functions by verdict: `20 of 22 functions OK, 2 NOT MEASURED`."""
    counts = Counter(judgement.verdict for _, judgement in judged)
    others = (f", {counts[verdict]} {verdict}" for verdict in (STALE, AMBIGUOUS, UNMEASURED) if counts[verdict])
    return f"{counts[OK]} of {len(judged)} functions OK{''.join(others)}"


def note_lines(
    table: TableUnderTest, device: Device, skipped: Mapping[str, int], oversized: int, unfinished: int
) -> Iterator[str]:
    """Notes for the user beside the verdict.

    Args:
        table: the checked table.
        device: of the measurements.
        skipped: number of shapes that could not be measured, by reason.
        oversized: number of shapes too large for the device's free memory.
        unfinished: number of shapes left at the end of the budget.
    """
    header = table.header
    if not header.is_for_any_gpu and (header.gpu, header.sms) != (plain_name(device.name), device.sms):
        yield (
            f"the table was made for {header.label} with {header.sms} SMs, measured was {device.label} with "
            f"{device.sms}"
        )
    for line in table.changed:
        yield f"{line}; the present kernels were measured"
    yield from table.notes
    if unfinished:
        yield f"the budget was used up with {unfinished} shapes left: --budget gives more time"
    if oversized:
        yield f"{oversized} shapes were left out: the free memory of the device does not hold them"
    for reason, count in sorted(skipped.items()):
        yield f"{count} shapes could not be measured: {reason}"


def _mean(judgement: Judgement) -> str:
    count = sum(not finding.failure for finding in judgement.findings)
    limits = f"stale over {percent(stale_over(judgement.promise))}"
    if not promises_too_much(judgement.promise):
        limits = f"OK under {percent(ok_under(judgement.promise))}, {limits}"
    if judgement.mean is None:
        return f"{count} shapes have a time; {_promised(judgement.promise)} ({limits})"
    mean, low, high = (
        percent(round(value))
        for value in (judgement.mean.mean, judgement.mean.low(OK_ERROR), judgement.mean.high(OK_ERROR))
    )
    return f"{count} shapes lose {mean} ({low} to {high}), {_promised(judgement.promise)} ({limits})"


def _promised(promise: Promise) -> str:
    """The mean loss that the header promises, and the shapes that it is over."""
    if not promise.figure:
        return "promised nothing"
    text = f"promised {percent(promise.mean)}"
    return f"{text}, {promise.figure}" if promise.is_off_grid else f"{text} on the shapes that it was fitted on"


def _shape_line(finding: ShapeLoss) -> str:
    shape = " x ".join(map(str, finding.shape))
    if finding.failure:
        return f"{shape}: {finding.config} fails: {finding.failure}"
    loss, low, high = (percent(value, _DIGITS) for value in (finding.loss, finding.low, finding.high))
    text = f"{shape}: loses {loss} ({low} to {high}) with {finding.config}"
    return text if finding.rival == finding.config else f"{text}; best {finding.rival}"
