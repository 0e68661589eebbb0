"""The entries of a table's header: the figures and decisions of each function, as data and as sentences for people.

A refit keeps the decisions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from normtune.errors import UsageError
from normtune.heuristics.fitting.case import TableEntry
from normtune.heuristics.fitting.figures import Cost, Figures, Loss
from normtune.heuristics.regret.fixed_log import percent, percent_up
from normtune.heuristics.writing.regenerate import command_of
from normtune.kernels.box import Box
from normtune.kernels.key import Key
from normtune.kernels.tablefile.facts import decoded, encoded
from normtune.kernels.tablefile.header import Gpu, Header
from normtune.kernels.tablefile.tree import counted_leaves

FROM = "the folder of this file, where that command is to be run"
PORTABLE = "; portable: each config is legal on every known target of the vendor"
HANDS_ON = "the next table elsewhere, or the default config"


def ordered(fitted: Iterable[Any], shared: Sequence[Any]) -> Iterator[Any]:
    """Each function of a fit, followed by the keys that share it."""
    for function in fitted:
        yield function
        yield from (other for other in shared if other.donor == function.key)


def entries(header: Header) -> Sequence[TableEntry]:
    """The entries of a header.

    Raises:
        UsageError: an entry has another form.
    """
    try:
        return [
            decoded(
                TableEntry, {"key": [facts.pop("key", None), facts.pop("dtype", None)], **facts}, f"functions[{index}]"
            )
            for index, facts in enumerate(map(dict, header.functions))
        ]
    except ValueError as error:
        raise UsageError(f"the facts of a header cannot be read ({error}): fit the table again") from None


def facts_of(entry: TableEntry) -> dict[str, Any]:
    """An entry as facts of a header, the inverse of `entries`."""
    return {"key": entry.key.text, "dtype": entry.key.dtype} | {
        name: fact for name, fact in encoded(entry).items() if name != "key"
    }


def decisions(header: Header) -> dict[Key, TableEntry]:
    """Decisions of the fit for each measured key.

    Raises:
        UsageError: an entry has another form.
    """
    return {entry.key: entry for entry in entries(header)}


def with_lines(header: Header) -> Header:
    """The header with lines for people, which are computed from its facts.

    Raises:
        UsageError: an entry or the command has another form.
    """
    lines = [
        ("Regenerate", command_of(header).line()),
        ("From", FROM),
        ("Device", described(header.device) + PORTABLE * header.portable),
        ("Software", ", ".join(f"{name} {version}" for name, version in header.software.items())),
        ("Data", f"{header.data.digest} ({header.data.extent})"),
        *(("Kernels", f"{name} {fingerprint}") for name, fingerprint in header.kernels.items()),
        *(("Regret", line) for line in map(_sentence, entries(header))),
        *(("Searched", line) for line in header.searched),
        *(
            ("Shared", f"{key} {dtype}: uses {donor}, as it has no data of its own")
            for key, dtype, donor in header.without_data
        ),
    ]
    return header._replace(lines=tuple(lines))


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


def described(gpu: Gpu) -> str:
    """A GPU as text, with the facts that a table depends on."""
    return f"{gpu.label}, {gpu.target}, {gpu.sms} SMs"


def _sentence(entry: TableEntry) -> str:
    parts = _shared(entry) if entry.donor else _own(entry)
    return f"{entry.key}: {', '.join(parts)}"


def _own(entry: TableEntry) -> Iterator[str]:
    figures = entry.figures
    change = f" (of {figures.asked})" if figures.asked != figures.leaves else ""
    yield counted_leaves(figures.leaves) + change
    yield f"{figures.configs} config{'s' * (figures.configs != 1)}"
    yield from _lost(figures)
    yield certificate(figures)
    yield from _percents("cross-validated", figures.cross_validated)
    yield from _percents("plain cross-validated", figures.plain_validated)
    yield from _percents("worst cross-validated", figures.worst_validated)
    yield from _percents("extrapolated", figures.extrapolated)
    if figures.unmeasured:
        yield f"{counted_leaves(figures.unmeasured)} of the default config, where none that was measured is legal"
    if figures.slower:
        yield f"{counted_shapes(figures.slower[0])} up to {percent(figures.slower[1], 1)} slower than what was in use"
    yield from _uncompared(figures)
    if entry.beside:
        yield from _beside(entry.beside, entry.key.usual.text)


def _uncompared(figures: Figures) -> Iterator[str]:
    if figures.uncompared:
        yield f"{counted_shapes(figures.uncompared)} not compared with what was in use"


def _shared(entry: TableEntry) -> Iterator[str]:
    yield f"as {entry.donor}"
    yield from _lost(entry.figures)
    yield f"sharing costs {percent(entry.cost)} on {entry.figures.loss.problems} problems"
    yield from _uncompared(entry.figures)


def certificate(figures: Figures) -> str:
    """The proved gap of a tree: `within 0.05 % of the best 8-leaf tree on this grid`."""
    if figures.joined:
        return "its nearest sizes not told apart, so nothing is proved of this grid"
    text = f"{_within(figures.gap)}the best {figures.leaves}-leaf tree{figures.limits} on this grid"
    if figures.few:
        bound, mean = figures.few
        text += f", these configs {_within(mean - bound)}the best {figures.configs}"
    return text


def _beside(cost: Cost, usual: str) -> Iterable[str]:
    """Cost of a batch-invariant function: `costs 1.68 % (worst 13.7 %) beside rms_norm_forward`."""
    timed = f" on the {counted_shapes(cost.problems)} with times of both" if cost.bounded else ""
    yield f"costs {percent(cost.mean)} (worst {percent(cost.worst, 1)}) beside {usual}{timed}"
    if cost.bounded:
        yield f"{cost.bounded} more not timed"


def counted_shapes(count: int) -> str:
    """A number of shapes, in words: `1 shape`."""
    return f"{count} shape{'s' * (count != 1)}"


def _within(gap: int) -> str:
    return f"within {percent_up(gap)} of " if gap > 0 else ""


def _percents(name: str, value: int | None) -> list[str]:
    return [] if value is None else [f"{name} {percent(value)}"]


def _lost(figures: Figures) -> list[str]:
    loss = figures.loss
    parts = [f"mean {percent(loss.mean)}", f"plain mean {percent(loss.plain)}", f"worst {percent(loss.worst, 1)}"]
    parts += [f"means low by at most {percent_up(loss.luck)}"] * bool(loss.luck)
    return [*parts, f"timed {timed_share(loss)}"] if loss.untimed else parts


def timed_share(loss: Loss) -> str:
    """The shapes with a time: `at 560 of 869 shapes; others estimated, plain mean at most 1.20 %`."""
    estimated = "" if loss.bound is None else f"; others estimated, plain mean at most {percent(loss.bound)}"
    return f"at {loss.problems} of {loss.problems + loss.untimed} shapes{estimated}"
