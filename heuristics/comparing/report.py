"""Output of `normtune diff` for one operator and dtype: a verdict, and all figures as text or Markdown.

A is the first side.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from normtune.heuristics.comparing.difference import Difference, SideAnswer, part_name, parts_of
from normtune.heuristics.comparing.gains import CONFIDENCE, ConfidenceInterval, Gain
from normtune.heuristics.regret.fixed_log import percent, ratio_in_words
from normtune.heuristics.showing.config_map import NEAR, NONE, has_gaps, plane_lines, short_name
from normtune.kernels.config import Config
from normtune.kernels.problem import Shape

# Shapes that a verdict names, and those that lose most.
NAMED = 8
WORST = 5
SAME, EVEN, FIRST, SECOND, UNTIMED, SILENT = "=", "~", "A", "B", "?", "-"
GAINS = (
    "Gains are of A instead of B, below 0 where A is slower; "
    f"intervals are of {100 * CONFIDENCE:.0f} %, of times paired within rounds."
)
_LOSSES = ("A loses", "worst", "B loses", "worst", "faster", "us a call")


def verdict_lines(comparison: Difference, l2_bytes: int) -> Iterator[str]:
    """How much faster A is: over all shapes, by bytes moved, and at most; where launches differ; what has no answer."""
    key, total = comparison.matrix.key, comparison.faster()
    if total is None:
        yield f"{key}: no shape has times of both"
    else:
        count = len(comparison.timed)
        yield f"{key}: A is {ratio_in_words(total)} B on average over {count} shape{'s' * (count != 1)}"
        parts = [(part_name(part, l2_bytes), comparison.faster(part)) for part in parts_of(comparison)]
        words = [f"{name}: {_faster(log)}" for name, log in parts if log is not None]
        if len(words) > 1:
            yield f"  {'; '.join(words)}"
        for which, sign in enumerate((FIRST, SECOND)):
            logs = {
                shape: (1 - 2 * which) * ((pair[1].loss or 0) - (pair[0].loss or 0))
                for shape, pair in comparison.pairs.items()
                if mark(comparison, shape) == sign
            }
            if logs:
                most = max(logs, key=logs.__getitem__)
                where = f"at {len(logs)} shape{'s' * (len(logs) != 1)}"
                yield f"  {sign} wins {where}, at most {_faster(logs[most])} ({' x '.join(map(str, most))})"
    differing = [" x ".join(map(str, shape)) for shape in comparison.pairs if shape not in comparison.same]
    if differing:
        more = f" and {len(differing) - NAMED} more" if len(differing) > NAMED else ""
        shapes = f"{len(differing)} of {len(comparison.pairs)} shapes"
        yield f"  other launches at {shapes}: {', '.join(differing[:NAMED])}{more}"
    yield from (f"  {line}" for line in _gaps(comparison, markdown=False))


def _faster(log: float) -> str:
    return ratio_in_words(log).removesuffix(" than").removesuffix(" as")


def summary_lines(comparisons: Sequence[Difference], markdown: bool) -> Iterator[str]:
    """A line for each operator and dtype: losses of both sides over the shapes with times of both, and the gain."""
    rows = [
        (
            str(comparison.matrix.key),
            f"{len(comparison.timed)} of {len(comparison.pairs)}",
            *_figures(comparison),
        )
        for comparison in comparisons
    ]
    yield from _table(("", "shapes", *_LOSSES), rows, markdown)
    notes = [
        note
        for which in (0, 1)
        if (note := _partly_timed([comparison.tuned(which) for comparison in comparisons], which, markdown))
    ]
    yield from ("", *notes) if notes else ()


def difference_lines(comparison: Difference, columns: int, l2_bytes: int, markdown: bool) -> Iterator[str]:
    """The lines of one comparison.

    Args:
        comparison: of one operator and dtype.
        columns: width of the map, at least 20.
        l2_bytes: size of the device's last-level cache.
        markdown: a collapsible section, with tables and a block of code for the map, instead of plain text.
    """
    matrix, count = comparison.matrix, len(comparison.pairs)
    title = f"{matrix.key}: other launches at {count - len(comparison.same)} of {count} shapes"
    yield f"<details><summary>{title}</summary>" if markdown else title
    parts = [
        (
            part_name(part, l2_bytes),
            f"{len(comparison.within(part))}",
            *_figures(comparison, part),
        )
        for part in parts_of(comparison)
    ]
    sections = (
        _table(("", "shapes", *_LOSSES), parts, markdown) if parts else (),
        _gaps(comparison, markdown),
        _map(comparison, columns, markdown),
        *(_worst(comparison, which, markdown) for which in (0, 1)),
    )
    for section in sections:
        lines = iter(section)
        first = next(lines, None)
        if first is not None:
            yield from chain(("", first), lines)
    yield from ("", "</details>") if markdown else ()


def mark(comparison: Difference, shape: Shape) -> str:
    """The mark of a shape on the map."""
    first, second = comparison.pairs[shape]
    if shape in comparison.same:
        return SAME
    if first.config is None or second.config is None:
        return SILENT
    if first.loss is None or second.loss is None:
        return UNTIMED
    if abs(first.loss - second.loss) <= NEAR:
        return EVEN
    return FIRST if first.loss < second.loss else SECOND


def _figures(comparison: Difference, part: int | None = None) -> tuple[str, ...]:
    """Losses of both and the gain, as cells; empty cells if no shape has times of both."""
    losses, faster, gained = comparison.common(part), comparison.faster(part), comparison.gain(part)
    if losses is None or faster is None:
        return ("",) * len(_LOSSES)
    losses_text = (text for loss in losses for text in (percent(loss.mean), percent(loss.worst, 1)))
    return *losses_text, percent(round(faster), 1), _gained(gained)[1]


def _gained(gained: Gain | None) -> tuple[str, str]:
    if gained is None:
        return "", ""
    ratio = ConfidenceInterval(*(None if end is None else 100 * end for end in gained.ratio))  # type: ignore[arg-type]
    return _interval(ratio, " %"), _interval(gained.saved, "")


def _interval(value: ConfidenceInterval, unit: str) -> str:
    """`12.3 % (12.1 to 12.5)`: three digits, more if needed to separate the ends, at most two decimals."""
    ends = [end for end in value if end is not None]
    greatest = max(map(abs, ends))
    digits = 2 if greatest < 10 else 1 if greatest < 100 else 0
    while digits < 2 and len({f"{end:.{digits}f}" for end in ends[1:]}) == 1:
        digits += 1
    mean, *rest = (f"{round(end, digits) or 0:.{digits}f}" for end in ends)  # -0.0 would print a sign
    return f"{mean}{unit}" + (f" ({rest[0]} to {rest[1]})" if rest else "")


def _gaps(comparison: Difference, markdown: bool) -> Iterator[str]:
    """Numbers of shapes at which a side has no answer or no time."""
    for which, sign in enumerate((FIRST, SECOND)):
        silent, untimed = comparison.without_answer(which), comparison.without_time(which)
        gaps = [f"no answer at {silent}"] * bool(silent) + [f"no time at {untimed}"] * bool(untimed)
        if gaps:
            loss = comparison.loss(which)
            loss_text = ""
            if loss and loss.bound is not None:
                loss_text = (
                    f"; it loses {percent(loss.plain)} where it has, with estimates {percent(loss.bound)} at most"
                )
            hint = "; a sweep with the space full times most of what other libraries launch" if untimed else ""
            yield f"{'- ' * markdown}{sign} has {' and '.join(gaps)} of {len(comparison.pairs)} shapes{loss_text}{hint}"
        note = _partly_timed([comparison.tuned(which)], which, markdown)
        if note:
            yield note


def _partly_timed(tuned: Sequence[tuple[int, int, int] | None], which: int, markdown: bool) -> str | None:
    """Note on an autotuner whose lists are only partly timed, so that it may really be faster; None otherwise."""
    some, whole, lists = (sum(counts) for counts in zip(*filter(None, tuned), strict=True)) if any(tuned) else (0, 0, 0)
    if some == whole:
        return None
    text = f"picks only among timed configs: all of its list at {whole} of {lists} shapes, so it may do better"
    return f"{'- ' * markdown}{(FIRST, SECOND)[which]} {text}"


def _short(config: Config | None) -> str:
    return short_name(config) if config else "no answer"


def _map(comparison: Difference, columns: int, markdown: bool) -> Iterator[str]:
    """The map of the marks; a single line if all are the same."""
    marks = {shape: mark(comparison, shape) for shape in comparison.pairs}
    if len(set(marks.values())) == 1:
        yield f"Everywhere: {dict(_meanings(comparison))[next(iter(marks.values()))]}."
        return
    yield from ["```"] * markdown
    for line in plane_lines(marks, columns, lambda shape: (f" {marks[shape]}", ""), comparison.matrix.axes):
        yield line.plain
    yield from [*["```"] * markdown, ""]
    has = {*marks.values(), *[NONE] * has_gaps(marks)}
    for sign, meaning in _meanings(comparison):
        if sign in has:
            yield f"- `{sign}` {meaning}" if markdown else f" {sign} {meaning}"


def _meanings(comparison: Difference) -> tuple[tuple[str, str], ...]:
    return (
        (SAME, "the same launch"),
        (EVEN, f"other launches, within {percent(NEAR, 0)} of each other"),
        (FIRST, f"{comparison.names[0]} is faster"),
        (SECOND, f"{comparison.names[1]} is faster"),
        (UNTIMED, "the config of one was not measured"),
        (SILENT, "one has no answer"),
        (NONE, "no config was measured"),
    )


def _worst(comparison: Difference, which: int, markdown: bool) -> Iterator[str]:
    worst = comparison.worst(which, WORST)
    if not worst:
        return
    yield from [f"Where {comparison.names[which]} loses most:", *[""] * markdown]
    rows = [(*map(str, shape), *_cells(pair[which]), *_cells(pair[1 - which])) for shape, pair in worst]
    yield from _table(
        (*comparison.matrix.axes, "loses", "config", f"{(SECOND, FIRST)[which]} loses", "config"), rows, markdown
    )


def _cells(choice: SideAnswer) -> tuple[str, str]:
    if choice.config is None:
        return "", "no answer"
    return "not measured" if choice.loss is None else percent(choice.loss, 1), _short(choice.config)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], markdown: bool) -> Iterator[str]:
    lines = [head, *rows]
    if markdown:
        for index, line in enumerate(lines):
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
            if not index:
                yield "|" + " --- |" * len(head)
        return
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        yield ("  " + "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True))).rstrip()
