"""Checks of a table from Python: against its data and kernels, or on a device.

In: the file of a table. Out: `Report` of `checking.offline`, or `DeviceCheck`. Joins what a table is asked (`session`,
`verdict`) with what measures it (`normtune.tuner`). Nothing is printed.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.kernels.config import Config
from normtune.kernels.fingerprint import changed
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem, Shape
from normtune.results.database.store import Store
from normtune.results.records import Device
from normtune.tuner.checking import offline, recheck, subject
from normtune.tuner.checking.offline import Report
from normtune.tuner.checking.report import note_lines
from normtune.tuner.checking.session import CheckSession, ProbeRequest
from normtune.tuner.checking.subject import Checked
from normtune.tuner.checking.verdict import Judgement, of_table
from normtune.tuner.device.measurable import measurable
from normtune.tuner.device.open import Bench, Outcome, open_device
from normtune.tuner.plan.grids import MAX_ELEMENTS
from normtune.tuner.plan.plan import Task, candidates

BUDGET_SECONDS = 60.0


class DeviceCheck(NamedTuple):
    """Result of a check on a device.

    Attributes:
        device: on which it was measured.
        verdict: on the table: `OK`, `AMBIGUOUS` or `STALE`.
        functions: each function that was checked, and the judgement on it.
        notes: what else the user should know, one line each.
        kernels_changed: whether kernels changed since the table was fitted: their compiled code, where it can be
            compared, else their sources.
        shapes, timings: how many were measured.
        seconds: that it took.
    """

    device: Device
    verdict: str
    functions: tuple[tuple[Checked, Judgement], ...]
    notes: tuple[str, ...]
    kernels_changed: bool
    shapes: int
    timings: int
    seconds: float


def check(
    table: str | os.PathLike[str], *, quick: bool = False, begin: Callable[[str], None] = lambda line: None
) -> Report:
    """Check without a GPU that a table belongs to its data and kernels, as `normtune check` does.

    Args:
        table: its file.
        quick: whether nothing is fitted, so that only edits, legality and kernels are checked.
        begin: called with a line of text before a fit of more than a few seconds.

    Raises:
        UsageError: the file cannot be read or has no header of a table.
    """
    return offline.check(Path(table), quick, begin)


def check_on_device(
    table: str | os.PathLike[str],
    device: str | None = None,
    *,
    budget_seconds: float = BUDGET_SECONDS,
    seed: int = 0,
    store: Store | str | os.PathLike[str] | None = None,
    begin: Callable[[Device], None] = lambda device: None,
) -> DeviceCheck:
    """Measure whether a table still fits a GPU, as `normtune check --device` does.

    Starts processes: a script that calls it needs `if __name__ == "__main__":`.

    Args:
        table: its file.
        device: the GPU, `cuda:N`, or a recording to replay, `replay:NAME`; None for cuda:0.
        budget_seconds: that it may take.
        seed: another number draws other shapes.
        store: keeps the measurements; None for nowhere.
        begin: called with the device before anything is measured.

    Raises:
        UsageError: the table or the device cannot be used, or a value is out of range.
        NormtuneError: the device fails.
    """
    begun = time.monotonic()
    if not budget_seconds > 0:
        raise UsageError(f"budget_seconds is {budget_seconds!r}: expected a positive number")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UsageError(f"seed is {seed!r}: expected an integer of at least 0")
    suspect = subject.read(Path(table))
    bench = open_device(device, suspect.regime)
    try:
        suspect = suspect.on(bench.target.sms)
        if changed(suspect.header.kernels):  # in their sources
            stale, notes = offline.stale_kernels(Path(table))
            suspect = suspect._replace(changed=tuple(stale), notes=(*suspect.notes, *notes))
        known = recorded(bench.device, suspect.regime)
        session = CheckSession(suspect.functions, suspect.box, bench.target, seed, MAX_ELEMENTS, known)
        begin(bench.device)
        with nullcontext(store) if store is None or isinstance(store, Store) else Store.open(store) as opened:
            done = measure(session, bench, budget_seconds - (time.monotonic() - begun), opened)
    finally:
        bench.close()
    judged = tuple(session.judged())
    return DeviceCheck(
        device=bench.device,
        verdict=of_table(judged)[0],
        functions=judged,
        notes=tuple(note_lines(suspect, bench.device, done.skipped, done.oversized, done.unfinished)),
        kernels_changed=bool(suspect.changed),
        shapes=done.measured,
        timings=done.timings,
        seconds=time.monotonic() - begun,
    )


def recorded(device: Device, regime: str) -> Callable[[Checked], Collection[Shape] | None]:
    """What says which shapes of a function can be measured: on a replay those that were recorded; None for all."""
    shapes = measurable(device, regime)
    if shapes is None:
        return lambda one: None
    return lambda one: shapes.get(one.key.usual, ())


def measure(session: CheckSession, bench: Bench, seconds: float | None, store: Store | None = None) -> recheck.Recheck:
    """Ask a session's probes of a device until it needs no more answers or time is up; the device is closed then.

    Args:
        session: of a table's check.
        bench: the device.
        seconds: that there are; None for no limit.
        store: where the measurements are kept; None for nowhere.

    Raises:
        NormtuneError: the device fails.
    """
    of_problem: dict[Problem, list[ProbeRequest]] = {}
    for probe in session.probes:
        of_problem.setdefault(probe.problem, []).append(probe)
    asked: dict[Task, list[tuple[ProbeRequest, Config]]] = {}
    # One race for all functions that ask for a problem: a store holds a config's times of a run once.
    for problem, probes in of_problem.items():
        spec = operator(problem.operator)
        configs = {config for probe in probes for config in (probe.config, *probe.rivals)}
        kept, _ = candidates(spec, configs, problem, bench.target)
        of_launch = {candidate.launch: candidate.config for candidate in kept}
        asked[Task(problem, tuple(kept))] = [
            (probe, of_launch[spec.launch(probe.config, problem, bench.target)]) for probe in probes
        ]
    return recheck.recheck(bench, list(asked), _ProbeAnswers(session, asked), seconds, store)


class _ProbeAnswers:
    """The probes of a check, as the tuner measures them: a `recheck.Probes`."""

    def __init__(self, session: CheckSession, asked: Mapping[Task, Sequence[tuple[ProbeRequest, Config]]]) -> None:
        self._course = session
        self._asked = asked

    def wants(self, task: Task) -> bool:
        """Whether one of its probes is open."""
        return any(self._course.wants(probe) for probe, _ in self._asked[task])

    def learn(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Answer its probes."""
        for probe, own in self._asked[task]:
            self._course.learn(probe, own, outcomes)
