"""A sweep from Python, and the run of one that the command shares.

In: a `Request` in plain values. Out: a `Sweep`: the device, the plan, and what was measured. What is shown meanwhile is
left to `progress`, reading options to `commands`.
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

from normtune.errors import UsageError
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.results.database.connect import parse, resolve_url, sqlite_path
from normtune.results.database.store import Store
from normtune.results.names import named
from normtune.results.records import Device
from normtune.results.regimes import COLD, check_regime
from normtune.tuner.device.identity import compare, renew
from normtune.tuner.device.open import Bench, open_device, open_device_to_plan
from normtune.tuner.plan import grids
from normtune.tuner.plan.plan import SPACES, Plan, fitting, plan, problems
from normtune.tuner.plan.resume import stale_plan
from normtune.tuner.progress import Silent
from normtune.tuner.report import device_line, end_lines, plain_sweep, plan_lines, pruned_lines
from normtune.tuner.search.protocol import Search, Strategy
from normtune.tuner.search.registry import search
from normtune.tuner.summary import Summary
from normtune.tuner.sweep import Outlook, look_ahead
from normtune.tuner.sweep import sweep as measure

Shapes = Sequence[tuple[int, int]] | str | os.PathLike[str]


class Effort(NamedTuple):
    """Grid, space, strategy and budget where they are not given."""

    grid: str
    space: str
    strategy: str
    budget_seconds: float | None


EFFORTS = {
    "default": Effort("default", "default", "adaptive", None),
    "quick": Effort("quick", "quick", "adaptive", 60.0),
}


class Sweep(NamedTuple):
    """Result of a sweep.

    Attributes:
        device: that was measured, or planned for.
        outlook: the plan, with the expected time; None where there was nothing to measure.
        summary: counts and times; empty of a dry run, and where nothing was stale.
        damage: line about stored measurements that were left out as damaged; empty if none were.
        is_dry: whether it was planned and nothing was measured.
    """

    device: Device
    outlook: Outlook | None
    summary: Summary
    damage: str = ""
    is_dry: bool = False

    def to_plain(self) -> dict[str, Any]:
        """What `normtune sweep --json` prints, as JSON values; docs/commands.md describes the keys."""
        return plain_sweep(self.device, self.outlook, None if self.is_dry else self.summary)


@dataclass(frozen=True)
class Request:
    """A sweep that is asked for, see `sweep`.

    Raises:
        UsageError: a value is unknown or out of range.
    """

    device: str | None = None
    operators: Sequence[str] = ()
    dtypes: Sequence[str] = ("bfloat16",)
    effort: str = "default"
    grid: str | None = None
    rows: Sequence[int] | None = None
    hidden: Sequence[int] | None = None
    shapes: Shapes | None = None
    space: str | None = None
    strategy: str | None = None
    studies: str | os.PathLike[str] | None = None
    regime: str = COLD
    budget_seconds: float | None = None
    stale: bool = False
    retry_failed: bool = False
    store: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        """Refuse what makes no sense before anything is opened."""
        if self.studies is not None and not getattr(search(self.chosen.strategy), "makes_studies", False):
            raise UsageError(f"--studies is given, but strategy {self.chosen.strategy} makes none: leave it out")
        search(self.chosen.strategy)
        if self.chosen.space not in SPACES:
            raise UsageError(f"unknown space {self.chosen.space!r}: expected one of {', '.join(SPACES)}")
        check_regime(self.regime)
        budget = self.budget_seconds
        if budget is not None and (isinstance(budget, bool) or not isinstance(budget, Real) or not budget > 0):
            raise UsageError(f"budget_seconds is {budget!r}: expected a positive number")
        if self.shapes is not None:
            for name in ("grid", "rows", "hidden"):
                if getattr(self, name) is not None:
                    raise UsageError(f"--shapes and --{name} are both given: the shapes come from one of them")

    @property
    def chosen(self) -> Effort:
        """What the effort stands for, with what is given in its place.

        Raises:
            UsageError: the effort is unknown.
        """
        if self.effort not in EFFORTS:
            raise UsageError(f"unknown effort {self.effort!r}: expected one of {', '.join(EFFORTS)}")
        implied, budget = EFFORTS[self.effort], self.budget_seconds
        return Effort(
            self.grid or implied.grid,
            self.space or implied.space,
            self.strategy or implied.strategy,
            implied.budget_seconds if budget is None else budget,
        )

    def search(self) -> Strategy:
        """What makes the search."""
        chosen: Callable[..., Search] = search(self.chosen.strategy)
        return chosen if self.studies is None else partial(chosen, studies=Path(self.studies))

    def wanted(self) -> "_Wanted":
        """The problems of the grid, of the sizes or of the shapes."""
        keys, dtypes, grid = self.operators, self.dtypes, self.chosen.grid
        if self.shapes is not None:
            given = self.shapes
            pairs, larger = grids.shapes_of(Path(given) if isinstance(given, str | os.PathLike) else given)
            found = problems(keys, dtypes, pairs)
            return _Wanted(found, beyond=len(larger) * (len(found) // len(pairs)))
        sizes = self.rows, self.hidden
        found = problems(keys, dtypes, grids.shapes(grid, *sizes))
        if grid != "quick":
            return _Wanted(found)
        return _Wanted(found, len(problems(keys, dtypes, grids.shapes("default", *sizes))) - len(found))


class _Wanted(NamedTuple):
    """The problems that were asked for, and how many were left out of what else they stand for: see `plan.Plan`."""

    problems: list[Problem]
    reduced: int = 0
    beyond: int = 0

    def plan(self, space: str, target: Target) -> Plan:
        return plan(self.problems, space, target)._replace(reduced=self.reduced, beyond=self.beyond)


def sweep(
    device: str | None = None,
    *,
    operators: str | Iterable[str] = (),
    dtypes: str | Iterable[str] = ("bfloat16",),
    effort: str = "default",
    grid: str | None = None,
    rows: Sequence[int] | None = None,
    hidden: Sequence[int] | None = None,
    shapes: Shapes | None = None,
    space: str | None = None,
    strategy: str | None = None,
    studies: str | os.PathLike[str] | None = None,
    regime: str = COLD,
    budget_seconds: float | None = None,
    stale: bool = False,
    retry_failed: bool = False,
    dry_run: bool = False,
    store: str | os.PathLike[str] | None = None,
) -> Sweep:
    """Measure configs over shapes and store every sample, as `normtune sweep` does.

    Each problem is committed when it is done: after an interrupt, or the end of its budget, the same call resumes.
    Starts processes: a script that calls it needs `if __name__ == "__main__":`.

    Args:
        device: the GPU, `cuda:N`, or a recording to replay, `replay:NAME`; None for cuda:0.
        operators: only these, plain names or names with a variant (`rms_norm_forward:no_rstd`); empty means all.
        dtypes: `bfloat16`, `float16`, `float32`, one or several.
        effort: `default`; or `quick`: a third of the shapes, at most 12 configs each, at most 60 s.
        grid: of shapes: `default`, `quick`, `recording` or `probe`; None for that of the effort.
        rows: numbers of rows in place of the grid's.
        hidden: hidden sizes in place of the grid's.
        shapes: pairs (rows, hidden), or a CSV file with these columns, in place of a grid.
        space: of configs: `default`, `full` or `quick`; None for that of the effort.
        strategy: `adaptive`, `exhaustive`, `race`, `tpe`, `gp` or `random`; None for that of the effort.
        studies: SQLite file for the studies of `tpe`, `gp` and `random`; None keeps none.
        regime: `cold`, `warm` or `eager`.
        budget_seconds: that it may take; None for no limit, or that of the effort.
        stale: whether only what is stored under kernels that changed since is measured again.
        retry_failed: whether configs that are stored as crashed or timed out are measured again.
        dry_run: whether it is planned and nothing is measured.
        store: the file or URL of a store; None for that of the variable NORMTUNE_STORE, else `normtune.db` here.

    Raises:
        UsageError: a value is unknown or out of range.
        NormtuneError: there is no such GPU, or the device or the store failed; what was measured is stored.
    """
    request = Request(
        device=device,
        operators=named("operators", operators),
        dtypes=named("dtypes", dtypes),
        effort=effort,
        grid=grid,
        rows=rows,
        hidden=hidden,
        shapes=shapes,
        space=space,
        strategy=strategy,
        studies=studies,
        regime=regime,
        budget_seconds=budget_seconds,
        stale=stale,
        retry_failed=retry_failed,
        store=store,
    )
    return run(request, dry_run, lambda title: Silent())


def run(request: Request, dry_run: bool, face_of: Callable[[str], Silent], begun: float | None = None) -> Sweep:
    """Sweep, or plan.

    Args:
        request: what is asked for.
        dry_run: whether nothing is measured.
        face_of: (the device's name) to what shows the progress.
        begun: when it began, on the monotonic clock; None for now.

    Raises:
        UsageError, NormtuneError: as `sweep`.
    """
    begun = time.monotonic() if begun is None else begun
    wanted = request.wanted()
    url = resolve_url(None if request.store is None else os.fspath(request.store))
    if dry_run:
        return _planned(request, wanted, url, face_of)
    bench = open_device(request.device, request.regime)
    try:
        return _swept(request, wanted, url, bench, face_of, begun)
    finally:
        bench.close()


def _swept(
    request: Request, wanted: _Wanted, url: str, bench: Bench, face_of: Callable[[str], Silent], begun: float
) -> Sweep:
    effort, regime = request.chosen, request.regime
    with Store.open(url) as opened, face_of(bench.device.label) as face:
        face.say(device_line(bench), *renew(opened, bench.device, bench.target, regime).lines())
        if request.stale:
            whole = stale_plan(opened.coverage(bench.device, regime), bench.target)
            if not whole.tasks:
                face.say("nothing is stale: all that is stored was measured with the present kernels")
                return Sweep(bench.device, None, Summary())
        else:
            whole = wanted.plan(effort.space, bench.target)
        chosen = fitting(whole, bench.free_bytes)
        starting = time.monotonic() - begun
        left = None if effort.budget_seconds is None else effort.budget_seconds - starting
        summary = measure(bench, opened, chosen, request.search(), left, face, retry_failed=request.retry_failed)
        summary.starting_seconds += starting
    face.say(*end_lines(summary, effort.budget_seconds))
    return Sweep(bench.device, face.outlook, summary, opened.damage)


def _planned(request: Request, wanted: _Wanted, url: str, face_of: Callable[[str], Silent]) -> Sweep:
    effort, regime = request.chosen, request.regime
    path = sqlite_path(parse(url))
    bench = open_device_to_plan(request.device, regime)
    try:
        chosen = fitting(wanted.plan(effort.space, bench.target), bench.free_bytes)
        with ExitStack() as stack:
            exists = path is None or path.exists()
            opened = stack.enter_context(Store.open(url, create=False)) if exists else None
            held = opened.coverage(bench.device, regime) if opened else {}
            kernels = compare(held, bench.target)
            outlook = look_ahead(
                *(bench, opened, chosen, search(effort.strategy), effort.budget_seconds, request.retry_failed),
                stored=kernels.applied(held),
            )
        lines = *kernels.lines(), *plan_lines(outlook), *pruned_lines(chosen)
        face_of(bench.device.label).say(device_line(bench), *lines, "a dry run: nothing is measured")
        return Sweep(bench.device, outlook, Summary(), is_dry=True)
    finally:
        bench.close()
