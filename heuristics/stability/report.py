"""Text of a table's stability, in lines of at most 80 columns where names allow."""

from collections.abc import Iterator, Sequence

from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.stability.bootstrap_spread import SHARE, Stability
from normtune.kernels.box import Box
from normtune.kernels.tablefile.tree import counted_leaves, told

_THRESHOLD, _EQUIVALENT, _HELD = 18, 18, 5


def beforehand(functions: int, tables: int, seconds: float) -> str:
    """Announcement with the remaining time."""
    counted = "1 function is" if functions == 1 else f"{functions} functions are"
    return f"stability: {counted} fitted {tables} times, about {max(1, round(seconds))} s"


def lines(functions: Sequence[Stability]) -> Iterator[str]:
    """The lines of all functions, in the order of the table."""
    if not functions:
        return
    tables = max(stability.tables for stability in functions)
    yield ""
    yield f"Stability: {tables} tables, each fitted to resampled blocks of rounds"
    yield "as good: other values of this threshold that cost at most the tie"
    yield f"held: share of the tables with such a threshold there; (to): {SHARE} % quantile"
    yield f"  {'threshold':<{_THRESHOLD}}{'as good':<{_EQUIVALENT}}{'held':>{_HELD}}  where"
    for stability in functions:
        yield from _function(stability)


def _function(stability: Stability) -> Iterator[str]:
    yield f"{stability.key}: {counted_leaves(stability.leaves)}"
    if not stability.tables:
        yield "  no draw gives a legal table"
        return
    for cut, share in stability.held:
        as_good = f"{cut.least} to {cut.most}" if cut.least < cut.most else "no other"
        held = f"{100 * share:.0f} %"
        threshold, where = told(cut.axis, cut.threshold), _where(cut.box, stability.whole)
        yield f"  {threshold:<{_THRESHOLD}}{as_good:<{_EQUIVALENT}}{held:>{_HELD}}  {where}".rstrip()
    weighted, plain, lost = stability.weighted, stability.plain, stability.lost
    more = f"{percent(round(lost.mean))} more (to {percent(round(lost.most))})"
    yield f"  another config on {_share(weighted.mean)} of the shapes by weight (to {_share(weighted.most)}),"
    yield f"  {_share(plain.mean)} of all (to {_share(plain.most)}), which loses {more}"


def _where(box: Box, whole: Box) -> str:
    """The region that a threshold divides, without unbounded axes."""
    return ", ".join(_range(*part, end.most) for part, end in zip(box, whole, strict=True) if part != end)


def _range(name: str, least: int, most: int, limit: int) -> str:
    if most == limit:
        return f"{name} >= {least}"
    return f"{name} <= {most}" if least == 1 else f"{name} {least}-{most}"


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"
