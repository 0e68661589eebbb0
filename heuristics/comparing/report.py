"""What `normtune diff` prints of one operator and dtype, as text or as Markdown.

In: `Difference`s. Out: lines: what the sides lose by what bounds a kernel and what A instead of B gains, where in the
plane that is, a map, and where each loses most. A is the first side.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from normtune.heuristics.comparing.difference import Change, Choice, Difference, parts_of
from normtune.heuristics.comparing.gains import CONFIDENCE, Gain, Interval
from normtune.heuristics.comparing.traffic import name as part_name
from normtune.heuristics.fitting.figures import Loss, gain
from normtune.heuristics.fitting.report import gain_lines
from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.rules import liger
from normtune.heuristics.showing.config_map import NEAR, plane_lines
from normtune.kernels.config import Config
from normtune.kernels.operator import operator
from normtune.kernels.problem import MAX_ROWS

WORST = 5
CHANGES = 12
SAME, EVEN, FIRST, SECOND, UNTIMED, SILENT, UNMEASURED = "=", "~", "A", "B", "?", "-", "."
GAINS = (
    "Gains are of A instead of B, below 0 where A is slower, "
    f"with {100 * CONFIDENCE:.0f} % intervals of the paired times at these shapes."
)
_LOSSES = ("A loses", "worst", "B loses", "worst", "faster", "us a call")


def summary_lines(found: Sequence[Difference], markdown: bool) -> Iterator[str]:
    """A line for each operator and dtype: what both sides lose over the shapes at which both have times, and the gain.

    Args:
        found: what is compared.
        markdown: a table of Markdown instead of plain text.
    """
    rows = []
    for one in found:
        cells = _figures(one.common(), one.gain())
        rows.append((f"{one.matrix.key} {one.matrix.dtype}", f"{len(one.timed)} of {len(one.pairs)}", *cells))
    yield from _table(("", "shapes", *_LOSSES), rows, markdown)
    notes = [note for which in (0, 1) if (note := _partly_timed([one.tuned(which) for one in found], which, markdown))]
    yield from ("", *notes) if notes else ()


def difference_lines(found: Difference, columns: int, l2_bytes: int, markdown: bool) -> Iterator[str]:
    """The lines of one comparison.

    Args:
        found: what is compared.
        columns: width of the map, at least 20.
        l2_bytes: size of the device's last-level cache.
        markdown: something to unfold, with tables and a block of code for the map, instead of plain text.
    """
    count = len(found.pairs)
    title = f"{found.matrix.key} {found.matrix.dtype}: other launches at {count - len(found.same)} of {count} shapes"
    yield f"<details><summary>{title}</summary>" if markdown else title
    parts = [
        (part_name(part, l2_bytes), f"{len(found.within(part))}", *_figures(found.common(part), found.gain(part)))
        for part in parts_of(found)
    ]
    sections = (
        _table(("", "shapes", *_LOSSES), parts, markdown) if parts else (),
        _missing(found, markdown),
        _changes(found, markdown),
        _map(found, columns, markdown),
        *(_worst(found, which, markdown) for which in (0, 1)),
    )
    for section in sections:
        lines = iter(section)
        first = next(lines, None)
        if first is not None:
            yield from chain(("", first), lines)
    yield from ("", "</details>") if markdown else ()


def mark(found: Difference, shape: tuple[int, int]) -> str:
    """The mark of a shape on the map."""
    first, second = found.pairs[shape]
    if shape in found.same:
        return SAME
    if first.config is None or second.config is None:
        return SILENT
    if first.loss is None or second.loss is None:
        return UNTIMED
    if abs(first.loss - second.loss) <= NEAR:
        return EVEN
    return FIRST if first.loss < second.loss else SECOND


def against_liger(found: Sequence[Difference]) -> Iterator[str]:
    """What `fit` says of a table beside the rule of Liger-Kernel, where that is one of the sides; else nothing."""
    gains = []
    for one in found:
        if (one.names[0] == liger.NAME) != (one.names[1] == liger.NAME):
            own = one.choices[int(one.names[0] == liger.NAME)]
            regrets = [choice.loss for choice in own]
            gains.append((one.matrix.key, gain(one.matrix, regrets, liger.choose, liger.launches)))
    yield from gain_lines(gains)


def _figures(losses: tuple[Loss, Loss] | None, gained: Gain | None) -> tuple[str, ...]:
    """What both lose, and the gain; empty where they have no time in common."""
    if losses is None:
        return ("",) * len(_LOSSES)
    told = (text for loss in losses for text in (percent(loss.mean), percent(loss.worst, 1)))
    return *told, *_gained(gained)


def _gained(gained: Gain | None) -> tuple[str, str]:
    if gained is None:
        return "", ""
    ratio = Interval(*(None if end is None else 100 * end for end in gained.ratio))  # type: ignore[arg-type]
    return _interval(ratio, " %"), _interval(gained.saved, "")


def _interval(value: Interval, unit: str) -> str:
    """`12.3 % (12.1 to 12.5)`: three digits, or as many more as tell the ends apart, at most two behind the point."""
    ends = [end for end in value if end is not None]
    greatest = max(map(abs, ends))
    digits = 2 if greatest < 10 else 1 if greatest < 100 else 0
    while digits < 2 and len({f"{end:.{digits}f}" for end in ends[1:]}) == 1:
        digits += 1
    mean, *rest = (f"{round(end, digits) or 0:.{digits}f}" for end in ends)  # `or 0` because -0.0 reads oddly
    return f"{mean}{unit}" + (f" ({rest[0]} to {rest[1]})" if rest else "")


def _missing(found: Difference, markdown: bool) -> Iterator[str]:
    """At how many shapes a side has no answer or no time."""
    for which, sign in enumerate((FIRST, SECOND)):
        silent, untimed = found.without_answer(which), found.without_time(which)
        told = [f"no answer at {silent}"] * bool(silent) + [f"no time at {untimed}"] * bool(untimed)
        if told:
            loss = found.loss(which)
            alone = f"; where it has, it loses {percent(loss.mean)}" if loss and untimed else ""
            hint = ". `normtune sweep --space full` times most of what other libraries launch" if untimed else ""
            yield f"{'- ' * markdown}{sign} has {' and '.join(told)} of {len(found.pairs)} shapes{alone}{hint}"
        note = _partly_timed([found.tuned(which)], which, markdown)
        if note:
            yield note


def _partly_timed(tuned: Sequence[tuple[int, int, int] | None], which: int, markdown: bool) -> str | None:
    """What to say of an autotuner of whose lists only a part has times, so that it is no bound; None otherwise."""
    some, whole, lists = (sum(counts) for counts in zip(*filter(None, tuned), strict=True)) if any(tuned) else (0, 0, 0)
    if some == whole:
        return None
    told = f"picks among what was timed: all of its list at {whole} of {lists} shapes, so it may do better than here"
    return f"{'- ' * markdown}{(FIRST, SECOND)[which]} {told}"


def _changes(found: Difference, markdown: bool) -> Iterator[str]:
    """The rectangles in which the choice differs and that change most, the largest gain first."""
    known = [change for change in found.changes if change.gain]
    if not known:
        return
    heavy = sorted(known, key=lambda change: -abs(_total(change)))[:CHANGES]
    yield "Where another config answers, the largest gain over all its shapes first:"
    yield from ("",) if markdown else ()
    longest = operator(found.matrix.operator).max_hidden
    rows = [
        (
            _range(change.where.box.least_rows, change.where.box.most_rows, MAX_ROWS),
            _range(change.where.box.least_hidden, change.where.box.most_hidden, longest),
            str(len(change.shapes)),
            *_gained(change.gain),
            *(_config(found, change, which) for which in (0, 1)),
        )
        for change in known
        if change in heavy
    ]
    yield from _table(("rows", "hidden", "shapes", "faster", "us a call", "A", "B"), rows, markdown)
    rest, silent = len(known) - len(heavy), len(found.changes) - len(known)
    told = [f"{rest} more of less weight"] * bool(rest) + [f"{silent} without times of both"] * bool(silent)
    if told:
        yield from ("",) if markdown else ()
        yield f"and {' and '.join(told)}"


def _total(change: Change) -> float:
    return change.gain.log.mean * change.gain.weight if change.gain else 0.0


def _range(least: int, most: int, end: int) -> str:
    """Numbers from and to, `any` where there is no bound."""
    if least == most:
        return str(least)
    if most >= end:
        return "any" if least == 1 else f"from {least}"
    return f"to {most}" if least == 1 else f"{least} to {most}"


def _config(found: Difference, change: Change, which: int) -> str:
    """The config of a side in a rectangle; of a rule, if it is one, else how many there are."""
    config = (change.where.first, change.where.second)[which]
    configs = {config} if config else {found.pairs[shape][which].config for shape in change.shapes} - {None}
    return _short(next(iter(configs))) if len(configs) == 1 else f"{len(configs)} configs"


def _short(config: Config | None) -> str:
    """A config in fewer words."""
    return str(config or "no answer").replace("programs_per_sm=", "per_sm=").replace("finish=", "")


def _map(found: Difference, columns: int, markdown: bool) -> Iterator[str]:
    """The map of the marks; a line where all have the same."""
    marks = {shape: mark(found, shape) for shape in found.pairs}
    if len(set(marks.values())) == 1:
        yield f"Everywhere: {dict(_meanings(found))[next(iter(marks.values()))]}."
        return
    yield from ("```",) if markdown else ()
    for line in plane_lines(marks, columns, lambda shape: (f" {marks.get(shape, UNMEASURED)}", "")):
        yield line.plain
    yield from ("```",) if markdown else ()
    yield ""
    has = set(marks.values())
    if len(marks) < len({rows for rows, _ in marks}) * len({hidden for _, hidden in marks}):
        has.add(UNMEASURED)
    for sign, meaning in _meanings(found):
        if sign in has:
            yield f"- `{sign}` {meaning}" if markdown else f" {sign} {meaning}"


def _meanings(found: Difference) -> tuple[tuple[str, str], ...]:
    """What the marks of a map mean."""
    return (
        (SAME, "the same launch"),
        (EVEN, f"other launches, within {percent(NEAR, 0)} of each other"),
        (FIRST, f"{found.names[0]} is faster"),
        (SECOND, f"{found.names[1]} is faster"),
        (UNTIMED, "the config of one was not measured"),
        (SILENT, "one has no answer"),
        (UNMEASURED, "no config was measured"),
    )


def _worst(found: Difference, which: int, markdown: bool) -> Iterator[str]:
    """The shapes at which a side loses most."""
    worst = found.worst(which, WORST)
    if not worst:
        return
    yield f"Where {found.names[which]} loses most:"
    yield from ("",) if markdown else ()
    rows = [(str(shape[0]), str(shape[1]), *_told(pair[which]), *_told(pair[1 - which])) for shape, pair in worst]
    yield from _table(
        ("rows", "hidden", "loses", "config", f"{(SECOND, FIRST)[which]} loses", "config"), rows, markdown
    )


def _told(choice: Choice) -> tuple[str, str]:
    """A choice's loss and config."""
    if choice.config is None:
        return "", "no answer"
    return "not measured" if choice.loss is None else percent(choice.loss, 1), _short(choice.config)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool) -> Iterator[str]:
    lines = [head, *rows]
    if markdown:
        for place, line in enumerate(lines):
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
            if not place:
                yield "|" + " --- |" * len(head)
        return
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        yield ("  " + "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True))).rstrip()
