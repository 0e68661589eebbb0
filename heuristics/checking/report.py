"""How a measured check reads: the verdict, each function's, and the shapes that decided.

In: functions, their judgements, and what stood in the way. Out: lines.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from normtune.heuristics.checking.subject import Checked, Promise, Suspect
from normtune.heuristics.checking.verdict import (
    AMBIGUOUS,
    OK,
    OK_ERROR,
    STALE,
    UNMEASURED,
    Finding,
    Judgement,
    of_table,
    ok_under,
    stale_over,
)
from normtune.heuristics.regret.fixed_log import percent
from normtune.kernels.gpu_name import plain_name
from normtune.results.records import Device

# Shapes that are shown of a function.
_SHAPES = {OK: 1, AMBIGUOUS: 3, STALE: 5, UNMEASURED: 0}
_DIGITS = 1


def verdict_lines(name: str, device: str, judged: Sequence[tuple[Checked, Judgement]]) -> Iterator[str]:
    """The verdict on a table, then on each function, with its worst shapes.

    Args:
        name: of the table.
        device: on which it was measured.
        judged: the functions that were checked, and the judgements on them.
    """
    verdict, deciding = of_table(judged)
    because = f", because of {', '.join(f'{one.key} {one.dtype}' for one in deciding)}" if deciding else ""
    yield f"{name} on {device}: {verdict}{because}"
    for one, found in judged:
        yield f"  {one.key} {one.dtype}: {': '.join(filter(None, (found.verdict, found.why)))}"
        if found.findings:
            yield f"    {_mean(found)}"
        others = [" ".join(entry) for entry in one.served if entry != (one.key, one.dtype)]
        if others:
            yield f"    answers for {', '.join(others)}, too"
        for finding in found.findings[: _SHAPES[found.verdict]]:
            yield f"    {_told(finding)}"


def counts_line(judged: Sequence[tuple[Checked, Judgement]]) -> str:
    """How many functions are what: `20 of 22 functions OK, 2 NOT MEASURED`."""
    counts = Counter(found.verdict for _, found in judged)
    others = (f", {counts[verdict]} {verdict}" for verdict in (STALE, AMBIGUOUS, UNMEASURED) if counts[verdict])
    return f"{counts[OK]} of {len(judged)} functions OK{''.join(others)}"


def note_lines(
    table: Suspect, device: Device, skipped: Mapping[str, int], oversized: int, unfinished: int
) -> Iterator[str]:
    """What the user should know beside the verdict.

    Args:
        table: that was checked.
        device: on which it was measured.
        skipped: how many shapes could not be measured, by reason.
        oversized: how many the device's free memory does not hold.
        unfinished: how many were still wanted when the time was used up.
    """
    header = table.header
    if not header.is_for_any_gpu and (header.gpu, header.sms) != (plain_name(device.name), device.sms):
        yield (
            f"the table was made for {header.device} with {header.sms} SMs, measured was {device.label} with "
            f"{device.sms}"
        )
    for operator in table.changed:
        yield f"the kernels of {operator} changed since the table was fitted; measured are the present ones"
    yield from table.notes
    if unfinished:
        yield f"the time was used up with {unfinished} shapes to go: --budget gives it more"
    if oversized:
        yield f"{oversized} shapes were left out: the free memory of the device does not hold them"
    for reason, count in sorted(skipped.items()):
        yield f"{count} shapes could not be measured: {reason}"


def _mean(found: Judgement) -> str:
    count = sum(not finding.failure for finding in found.findings)
    limits = f"OK under {percent(ok_under(found.promise))}, stale over {percent(stale_over(found.promise))}"
    if found.mean is None:
        return f"{count} shapes have a time; {_promised(found.promise)} ({limits})"
    mean, low, high = (
        percent(round(value)) for value in (found.mean.mean, found.mean.low(OK_ERROR), found.mean.high(OK_ERROR))
    )
    return f"{count} shapes lose {mean} ({low} to {high}), {_promised(found.promise)} ({limits})"


def _promised(promise: Promise) -> str:
    """What the header says, and of which shapes."""
    if not promise.figure:
        return "promised nothing"
    told = f"promised {percent(promise.mean)}"
    return f"{told}, {promise.figure}" if promise.is_off_grid else f"{told} on the shapes that it was fitted on"


def _told(finding: Finding) -> str:
    shape = f"{finding.rows} x {finding.hidden}"
    if finding.failure:
        return f"{shape}: {finding.config} fails: {finding.failure}"
    loss, low, high = (percent(value, _DIGITS) for value in (finding.loss, finding.low, finding.high))
    told = f"{shape}: loses {loss} ({low} to {high}) with {finding.config}"
    return told if finding.rival == finding.config else f"{told}; best {finding.rival}"
