"""The entries of a table's facts: the figures and decisions of each function; and the comment that says them to people.

A refit keeps the decisions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from normtune.errors import UsageError
from normtune.heuristics.fitting.case import TableEntry
from normtune.heuristics.fitting.figures import Figures, Loss, Slower
from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.writing.regenerate import command_of
from normtune.kernels.box import Box
from normtune.kernels.key import Key
from normtune.kernels.tablefile.facts import decoded
from normtune.kernels.tablefile.header import FIRST_LINE, Header
from normtune.kernels.tablefile.tree import counted_leaves
from normtune.kernels.target import plain_letters

HANDS_ON = "the next table elsewhere, or the default config"


def ordered(fitted: Iterable[Any], shared: Sequence[Any]) -> Iterator[Any]:
    """Each function of a fit, followed by the keys that share it."""
    for function in fitted:
        yield function
        yield from (other for other in shared if other.donor == function.key)


def entries(header: Header) -> Sequence[TableEntry]:
    """The entries of the facts of a table.

    Raises:
        UsageError: an entry has another form.
    """
    try:
        return [decoded(TableEntry, facts, f"functions[{index}]") for index, facts in enumerate(header.functions)]
    except ValueError as error:
        raise UsageError(f"the facts of a table cannot be read ({error}): fit the table again") from None


def decisions(header: Header) -> dict[Key, TableEntry]:
    """Decisions of the fit for each measured key.

    Raises:
        UsageError: an entry has another form.
    """
    return {entry.key: entry for entry in entries(header)}


def table_text(header: Header, body: str) -> str:
    """The text of a table: a comment with its decisive facts for people, the code, all facts.

    Raises:
        UsageError: an entry or the command has another form.
    """
    return f"{comment(header)}\n{body}\n\n{header.text()}\n"


def comment(header: Header) -> str:
    """The comment at the top of a table: what made it, of which measurements, and a line for each function.

    Raises:
        UsageError: an entry or the command has another form.
    """
    device, measured = header.device, entries(header)
    portable = ", portable" * header.portable
    lines = [
        f"Regenerate: {command_of(header).line()}",
        f"{device.label}, {device.target}, {device.sms} SMs: {header.data.extent}{portable}",
        *(
            _line([entry, *(other for other in measured if other.donor == entry.key)], header)
            for entry in measured
            if not entry.donor
        ),
    ]
    return "\n".join([FIRST_LINE, *(f"# {plain_letters(line)}" for line in lines)])


def _line(users: Sequence[TableEntry], header: Header) -> str:
    """A function, as `softmax bfloat16: 12 regions, loss 0.1 % (worst 5.3 %); float16, float32 unmeasured`.

    Args:
        users: the measured keys that use it, its own first.
        header: with the keys that were not measured.
    """
    key, figures, losses = users[0].key, users[0].figures, [user.figures.loss for user in users]
    means = dict.fromkeys(percent(max(loss.plain, 0), 1) for loss in sorted(losses, key=lambda loss: loss.plain))
    timed, untimed = sum(loss.problems for loss in losses), sum(loss.untimed for loss in losses)
    mean, *_, most = *means, *means
    text = f"{key}{f' and {len(users) - 1} more' * (len(users) > 1)}: {regions_of(figures)}, loss {mean}"
    text += f" to {most}" * (len(means) > 1)
    text += f" (worst {percent(max(0, *(loss.worst for loss in losses)), 1)})"
    text += f" at {timed} of {counted_shapes(timed + untimed)}" * bool(untimed)
    unmeasured = [dtype for name, dtype, donor in header.without_data if (name, donor) == (key.text, key.dtype)]
    remarks_of = remarks(figures.unmeasured, [user.figures for user in users])
    return "; ".join([text, *remarks_of, *([f"{', '.join(unmeasured)} unmeasured"] if unmeasured else [])])


def remarks(unmeasured: int, users: Sequence[Figures]) -> Iterator[str]:
    """What a function's losses do not say, for the comment and `--details`.

    Args:
        unmeasured: number of its leaves whose config has no time.
        users: figures of the keys that use it.
    """
    if unmeasured:
        yield f"{counted_leaves(unmeasured)} of the default config, unmeasured"
    if slower := [one.slower for one in users if one.slower]:
        yield slower_text(Slower(sum(one.problems for one in slower), max(one.most for one in slower)))
    if uncompared := sum(one.uncompared for one in users):
        yield f"{counted_shapes(uncompared)} not compared with the baseline"


def slower_text(slower: Slower) -> str:
    """How much slower than the baseline: `3 shapes up to 1.2 % slower than the baseline`."""
    return f"{counted_shapes(slower.problems)} up to {percent(slower.most, 1)} slower than the baseline"


def regions_of(figures: Figures) -> str:
    """How many regions a function has: `13 regions`."""
    return f"{figures.leaves} region{'s' * (figures.leaves != 1)}"


def ends(measured: Mapping[Key, Box]) -> list[str]:
    """Where a table ends, a line for each box of measured sizes: `it answers at rows 1 to 16, hidden 32 to 8192`."""
    boxes = dict.fromkeys(measured.values())
    lines = []
    for box in boxes:
        keys = [str(key) for key, of_key in measured.items() if of_key == box]
        more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
        subject = f"{keys[0]}{more}:" if len(boxes) > 1 else "it"
        lines.append(f"{subject} answers at {box.within_twice()}")
    return [*lines[:-1], f"{lines[-1]}; {HANDS_ON}"]


def counted_shapes(count: int) -> str:
    """A number of shapes, in words: `1 shape`."""
    return f"{count} shape{'s' * (count != 1)}"


def timed_share(loss: Loss) -> str:
    """The shapes with a time: `at 560 of 869 shapes; others estimated, plain mean at most 1.20 %`."""
    estimated = "" if loss.bound is None else f"; others estimated, plain mean at most {percent(loss.bound)}"
    return f"at {loss.problems} of {loss.problems + loss.untimed} shapes{estimated}"
