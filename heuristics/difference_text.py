"""What `normtune diff` prints of one operator and dtype, as text or as Markdown.

In: a `Difference`. Out: lines: a map of where the two differ, what each loses, and where it loses most.
"""

from collections.abc import Iterator, Sequence

from normtune.heuristics.best_map import NEAR, plane_lines
from normtune.heuristics.difference import Choice, Difference
from normtune.heuristics.figures import Loss
from normtune.heuristics.micrologs import percent

WORST = 5
SAME, EVEN, FIRST, SECOND, UNTIMED, SILENT, UNMEASURED = "=", "~", "A", "B", "?", "-", "."


def difference_lines(found: Difference, columns: int, markdown: bool) -> Iterator[str]:
    """The lines of one comparison.

    Args:
        found: what is compared.
        columns: width of the map, at least 20.
        markdown: headings, tables and a block of code for the map, instead of plain text.
    """
    count = len(found.pairs)
    title = f"{found.matrix.key} {found.matrix.dtype}: other launches at {count - len(found.same)} of {count} shapes"
    yield f"### {title}" if markdown else title
    yield from ("", "```") if markdown else ()
    marks = {shape: mark(found, shape) for shape in found.pairs}
    for line in plane_lines(marks, columns, lambda shape: (f" {marks.get(shape, UNMEASURED)}", "")):
        yield line.plain
    yield from ("```",) if markdown else ()
    yield ""
    yield from _legend(found, marks, markdown)
    yield ""
    rows = [_figures(found, which) for which in (0, 1)]
    yield from _table(("", "config of", "mean loss", "worst", "no answer", "not measured"), rows, markdown)
    common = found.common()
    yield ""
    if common:
        told = " and ".join(f"{name} {percent(loss.mean)}" for name, loss in zip(found.names, common, strict=True))
        yield f"Where both have times, {common[0].problems} shapes, they lose on average: {told}."
    for which in (0, 1):
        worst = found.worst(which, WORST)
        if worst:
            yield ""
            yield f"Where {found.names[which]} loses most:"
            yield from ("",) if markdown else ()
            lines = [
                (str(shape[0]), str(shape[1]), *_told(pair[which]), *_told(pair[1 - which])) for shape, pair in worst
            ]
            other = found.names[1 - which]
            yield from _table(("rows", "hidden", "loses", "config", f"{other} loses", "config"), lines, markdown)


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


def _legend(found: Difference, marks: dict[tuple[int, int], str], markdown: bool) -> Iterator[str]:
    """What the marks that a map has mean."""
    has = set(marks.values())
    if len(marks) < len({rows for rows, _ in marks}) * len({hidden for _, hidden in marks}):
        has.add(UNMEASURED)
    for sign, meaning in (
        (SAME, "the same launch"),
        (EVEN, f"other launches, within {percent(NEAR, 0)} of each other"),
        (FIRST, f"{found.names[0]} is faster"),
        (SECOND, f"{found.names[1]} is faster"),
        (UNTIMED, "the config of one was not measured"),
        (SILENT, "one has no answer"),
        (UNMEASURED, "no config was measured"),
    ):
        if sign in has:
            yield f"- `{sign}` {meaning}" if markdown else f" {sign} {meaning}"


def _figures(found: Difference, which: int) -> tuple[str, ...]:
    count = len(found.pairs)
    loss: Loss | None = found.loss(which)
    shares = (f"{100 * number / count:.1f} %" for number in (found.without_answer(which), found.without_time(which)))
    mean, worst = (percent(loss.mean), percent(loss.worst, 1)) if loss else ("", "")
    return ((FIRST, SECOND)[which], found.names[which], mean, worst, *shares)


def _told(choice: Choice) -> tuple[str, str]:
    """A choice's loss and config."""
    if choice.config is None:
        return "", "no answer"
    return "not measured" if choice.loss is None else percent(choice.loss, 1), str(choice.config)


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
