"""Checks of a table from Python: against its data and kernels, or on a device.

In: the file of a table. Out: `CheckedTable` of `offline`, or `DeviceCheck`. `session` and `verdict` choose and judge
the shapes that `recheck` measures. Nothing is printed.
"""

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.kernels.arguments import checked
from normtune.kernels.fingerprint import changed
from normtune.results.database.store import Store
from normtune.results.records import Device
from normtune.tuner.checking import offline, subject
from normtune.tuner.checking.offline import CheckedTable
from normtune.tuner.checking.recheck import measure
from normtune.tuner.checking.report import note_lines
from normtune.tuner.checking.session import CheckSession
from normtune.tuner.checking.subject import Checked
from normtune.tuner.checking.verdict import UNMEASURED, Judgement, of_table
from normtune.tuner.device.open import measurable, open_device

BUDGET_SECONDS = 60.0


class DeviceCheck(NamedTuple):
    """Result of a check on a device.

    Attributes:
        device: the measured device.
        verdict: on the table: `OK`, `AMBIGUOUS` or `STALE`.
        functions: the checked functions, each with its judgement.
        notes: further information for the user, one line each.
        kernels_changed: whether the compiled code of kernels changed since the table was fitted, or if it cannot be
            compared, their sources.
        shapes, timings: number of measured shapes and of samples.
        seconds: duration.
    """

    device: Device
    verdict: str
    functions: tuple[tuple[Checked, Judgement], ...]
    notes: tuple[str, ...]
    kernels_changed: bool
    shapes: int
    timings: int
    seconds: float


@checked
def check(
    table: str | os.PathLike[str], *, quick: bool = False, begin: Callable[[str], None] = lambda line: None
) -> CheckedTable:
    """Check without a GPU that a table belongs to its data and kernels, as `normtune check` does.

    Args:
        table: its file.
        quick: whether to skip the fit, and check only edits, legality and kernels.
        begin: called with a line of text before a fit of more than a few seconds.

    Raises:
        UsageError: the file cannot be read or is not a table.
    """
    return offline.check(Path(table), quick, begin)


@checked
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

    It starts processes: a script that calls it needs `if __name__ == "__main__":`.

    Args:
        table: its file.
        device: the GPU, `cuda:N`, or a recording to replay, `replay:NAME`; None for cuda:0.
        budget_seconds: limit of its duration.
        seed: of the draw of shapes.
        store: for the measurements; None to keep none.
        begin: called with the device before anything is measured.

    Raises:
        UsageError: the table or the device cannot be used, or a value is out of range.
        NormtuneError: the device fails.
    """
    start = time.monotonic()
    if not budget_seconds > 0:
        raise UsageError(f"budget_seconds is {budget_seconds!r}: expected a positive number")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UsageError(f"seed is {seed!r}: expected an integer of at least 0")
    tested = subject.read(Path(table))
    bench = open_device(device, tested.regime)
    try:
        if changed(tested.header.kernels):  # in their sources
            stale, notes = offline.stale_kernels(Path(table))
            tested = tested._replace(changed=tuple(stale), notes=(*tested.notes, *notes))
        recorded = measurable(bench.device, tested.regime)
        shapes = [None if recorded is None else recorded.get(one.key.usual, ()) for one in tested.functions]
        session = CheckSession(tested.functions, tested.box, bench.target, seed, shapes)
        begin(bench.device)
        with nullcontext(store) if store is None or isinstance(store, Store) else Store.open(store) as opened:
            done = measure(session, bench, budget_seconds - (time.monotonic() - start), opened)
    finally:
        bench.close()
    judged = tuple(session.judged())
    probed = {probe.function for probe in session.probes}
    without_shapes = sum(
        judgement.verdict == UNMEASURED and index not in probed for index, (_, judgement) in enumerate(judged)
    )
    return DeviceCheck(
        device=bench.device,
        verdict=of_table(judged)[0],
        functions=judged,
        notes=tuple(note_lines(tested, bench.device, done, without_shapes)),
        kernels_changed=bool(tested.changed),
        shapes=len(done.summary.measured),
        timings=done.summary.timings,
        seconds=time.monotonic() - start,
    )
