"""Output of `fit`, in lines of at most 80 columns where names allow: verdict, figures, ways to use the table."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from normtune.heuristics.fitting.figures import Cost, Figures
from normtune.heuristics.fitting.in_use import Compared
from normtune.heuristics.fitting.result import Fit, FittedFunction
from normtune.heuristics.regret.fixed_log import percent, percent_up, ratio_in_words
from normtune.heuristics.solver.grid import MAX_BINS
from normtune.heuristics.writing.entries import HANDS_ON, counted_shapes, regions_of, remarks, timed_share
from normtune.heuristics.writing.regenerate import quoted
from normtune.kernels.key import Key
from normtune.kernels.problem import Shape
from normtune.kernels.tablefile.header import Gpu

_WIDTHS = (10, 7, 8, 7, 7, 7, 11, 7)
_HEADINGS = (
    ("", "", "", "", "plain", "", "cross-", ""),
    ("dtype", "leaves", "configs", "mean", "mean", "worst", "validated", "gap"),
)


def verdict(fit: Fit) -> Iterable[str]:
    """The results of the fit in a few lines a function; `figures` has the rest."""
    yield f"{fit.device.label}, {fit.device.target}, {fit.device.sms} SMs: {fit.data.extent}"
    cost_of = {function.key.usual: function.beside for function in fit.functions if function.beside}
    for function in fit.functions:
        key = function.key
        if key in fit.compared:
            yield ""
            numbers = fit.with_data()[key]
            yield f"{key}: {regions_of(numbers)} of shapes"
            rows = [
                *verdict_rows(numbers, fit.compared[key]),
                *_sizes(function),
                *_reach(key, fit),
                *_costs(key, fit, cost_of.get(key)),
            ]
            yield from (f"  {label:<9} {text}" if label else f"  {text}" for label, text in rows)


def verdict_rows(numbers: Figures, compared: Compared) -> Iterable[tuple[str, str]]:
    """The verdict on a function, lines of a label and a text; one that goes on has a blank as its label."""
    loss, where = numbers.loss, " x ".join(map(str, compared.worst))
    mean, worst = percent(max(loss.plain, 0), 1), percent(max(loss.worst, 0), 1)
    best = f"{mean} from the best possible"
    if compared.faster is None or compared.most is None:
        yield "", best
    else:
        yield "", f"{ratio_in_words(compared.faster)} {compared.name}{_most(compared.faster, *compared.most)},"
        yield "", f"{_slower(compared)}; {best}"
        if not compared.is_paired:
            yield "", "by unpaired times, which prove no difference"
    yield "worst", f"{worst} slower than the best, at {where}"
    if loss.untimed:
        yield "", f"  timed {timed_share(loss)}"
    if numbers.plain_validated is not None:
        between = percent(max(numbers.plain_validated, 0), 1)
        worst = "" if numbers.worst_validated is None else f", {percent(max(numbers.worst_validated, 0), 1)} at worst"
        yield "between", f"about {between} slower at sizes between the measured ones{worst}"


def _most(faster: int, log: int, shape: Shape) -> str:
    """The largest gain of a function that is the faster one: ` (40 % at 65536 x 128)`."""
    if ratio_in_words(faster).startswith("as fast as") or faster < 0:
        return ""
    gain = ratio_in_words(log).removesuffix(" faster than").removesuffix(" as fast as")
    return f" ({gain} at {' x '.join(map(str, shape))})"


def _slower(compared: Compared) -> str:
    """At how many shapes the function is slower than the other side, and how many were not compared."""
    timed, every = compared.shapes
    rest = f" ({every - timed} not compared)" if timed < every else ""
    if compared.slower is None:
        phrase = "slower at none of" if compared.is_paired else "compared at"
        return f"{phrase} {counted_shapes(timed)}{rest}"
    return f"slower at {compared.slower.problems} of {timed} shapes by up to {percent(compared.slower.most, 1)}{rest}"


def _sizes(function: FittedFunction) -> Iterable[tuple[str, str]]:
    """What trees of other sizes lose, as `verdict_rows`: `4 regions 4.3 %, 8 1.7 %, 13 (chosen) 1.0 %`."""
    others, chosen = function.other_sizes, function.figures
    if not others:
        return
    sizes = [(tree.leaves, tree.loss, "") for tree in others]
    yield "size", _losses(sorted([*sizes, (chosen.leaves, chosen.loss.plain, " (chosen)")]))
    guarded = [(tree.leaves, tree.guarded, "") for tree in others if tree.guarded is not None]
    if guarded != sizes and guarded:
        yield "", f"  nowhere slower than the baseline: {_losses(guarded)}"


def _losses(sizes: Sequence[tuple[int, int, str]]) -> str:
    parts = [
        f"{'' if place else ' regions'}{mark} {percent(max(loss, 0), 1)}" for place, (_, loss, mark) in enumerate(sizes)
    ]
    return ", ".join(f"{leaves}{part}" for (leaves, *_), part in zip(sizes, parts, strict=True))


def _reach(key: Key, fit: Fit) -> Iterable[tuple[str, str]]:
    """Where a function answers, and for which dtypes without measurements, as `verdict_rows`."""
    yield "answers", f"at {fit.measured[key].within_twice()};"
    yield " ", HANDS_ON
    dtypes = [other.dtype for other, donor in fit.without_data() if (other.text, donor) == (key.text, key.dtype)]
    if dtypes:
        yield "", f"unmeasured: {', '.join(dtypes)} use it where no other table measured them"


def _costs(key: Key, fit: Fit, cost: Cost | None) -> Iterable[tuple[str, str]]:
    """What it costs that a function is batch-invariant, or shared, as `verdict_rows`, without labels."""
    if cost:
        yield "", f"batch-invariant, on average {percent(cost.mean, 1)} slower, {percent(cost.worst, 1)} at worst"
        if cost.bounded:
            yield "", f"  {_untimed(cost)}"
    shares = [share for share in fit.shared if share.donor == key]
    if shares:
        yield "", "shared, at a cost, with"
    for share in shares:
        loss = share.figures.loss
        timed = f", timed at {loss.problems} of {counted_shapes(loss.problems + loss.untimed)}" if loss.untimed else ""
        yield "", f"  {_of(share.key, key)} ({percent(max(share.cost, 0), 1)}){timed}"


def _of(key: Key, donor: Key) -> str:
    """A key as text, without the operator and modes if the donor has the same."""
    return key.dtype if key.text == donor.text else str(key)


def figures(fit: Fit) -> Iterable[str]:
    """What `verdict` leaves out: all figures, operator by operator."""
    yield "Slower than the best config of each problem, in percent;"
    yield f"problems have {f'the weights of {fit.weights}' if fit.weights else 'equal weights'} in a mean:"
    yield ""
    for heading in _HEADINGS:
        yield _row(heading)
    shared = {share.key for share in fit.shared}
    for name, keys in groupby(sorted(fit.with_data()), key=lambda key: key.text):
        yield name
        for key in keys:
            numbers = fit.with_data()[key]
            leaves = "shared" if key in shared else str(numbers.leaves)
            yield _row((f"  {key.dtype}", leaves, *_cells(numbers)))
    yield ""
    yield "gap: to the best possible tree with as many leaves (proved)"
    for key, numbers in [(function.key, function.figures) for function in fit.functions]:
        if numbers.joined or numbers.limits or numbers.few:
            yield f"  {key}: {certificate(numbers)}"
    for key, numbers in fit.with_data().items():
        if numbers.loss.untimed:
            yield f"{key}: timed {timed_share(numbers.loss)}"
    lucky = max(numbers.loss.luck for numbers in fit.with_data().values())
    if lucky:
        yield f"means are too low by at most {percent_up(lucky)}, as a shape's best is chosen on half of the blocks"
        yield "and scored on the others; a mean below 0 is about 0"
    yield from (f"searched: {line}" for line in fit.searched)
    yield from _batch_invariant(fit)
    for key, numbers in fit.with_data().items():
        yield from (f"{key}: {remark}" for remark in remarks(numbers.unmeasured, [numbers]))
    if any(numbers.slower for numbers in fit.with_data().values()):
        yield "a larger --leaves or --max-configs may avoid slower shapes, --baseline none ignores them"


def certificate(numbers: Figures) -> str:
    """The proved gap of a tree: `within 0.05 % of the best 8-leaf tree of these configs`."""
    if numbers.joined:
        return f"more than {MAX_BINS} combinations of sizes; the nearest are merged, nothing is proved"
    text = f"{_within(numbers.gap)}the best {numbers.leaves}-leaf tree{numbers.limits}"
    if numbers.few:
        bound, mean = numbers.few
        text += f", these configs {_within(mean - bound)}the best {numbers.configs}"
    return text


def _within(gap: int) -> str:
    return f"within {percent_up(gap)} of " if gap > 0 else ""


def _batch_invariant(fit: Fit) -> Iterable[str]:
    """Cost of the batch-invariant functions relative to the usual ones."""
    pairs = [(function, function.beside) for function in fit.functions if function.beside]
    if pairs:
        yield "batch-invariant (one order of a row's sum for all rows); cost on average and at worst:"
    for function, cost in pairs:
        untimed = f", {_untimed(cost)}" if cost.bounded else ""
        yield f"  {percent(cost.mean):>8} {percent(cost.worst, 1):>8} {function.key}{untimed}"


def _untimed(cost: Cost) -> str:
    return f"at {cost.problems} shapes; not timed at {cost.bounded} more"


def ways(gpu: Gpu, out: Path | None) -> Iterable[str]:
    """The ways to make kernels on a GPU use a table; `out` is its file, None if it was not written."""
    if out is None:
        yield "No table was written: --out FILE writes it"
        return
    name = quoted(f"./{out}" if str(out).startswith("-") else str(out))
    yield "Ways to use it:"
    if not gpu.is_replay:
        yield f"  normtune table install {name}: kernels on {gpu.name} use it, for this user"
    yield f"  NORMTUNE_TABLE={name}: one process uses it"
    yield "  commit it: as heuristics.py of a library, or in heuristics/tables/ of normtune"


def _row(cells: Sequence[str]) -> str:
    first, *rest = zip(cells, _WIDTHS, strict=False)
    return (f"{first[0]:<{first[1]}}" + "".join(f"{cell:>{width}}" for cell, width in rest)).rstrip()


def _cells(numbers: Figures) -> list[str]:
    values = ((numbers.loss.mean, 2), (numbers.loss.plain, 2), (numbers.loss.worst, 1), (numbers.cross_validated, 2))
    cells = ["-" if value is None else percent(value, digits) for value, digits in values]
    gap = "-" if numbers.joined else percent_up(numbers.gap)
    return [str(numbers.configs), *(cell.removesuffix(" %") for cell in (*cells, gap))]
