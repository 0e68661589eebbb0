"""Findings of `doctor` about the store, its disk and the tables.

In: the facts about a machine. Out: findings. Opens the store for reading; loads tables as kernels do.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.fingerprint import changed
from normtune.kernels.tablefile import locate
from normtune.results.paths import unwritable
from normtune.tuner.doctor.checks import OK, PROBLEM, WARNING, Finding, Machine

if TYPE_CHECKING:
    from normtune.results.database.store import Store
    from normtune.results.records import Tally

# Less free space is a warning, or a problem: the recording of two operators in one dtype takes 11 MB, a default sweep
# less.
_WARNING_BYTES = 100 << 20
_PROBLEM_BYTES = 10 << 20
# Most binaries whose compiled code is compared; on two cores they take about ten seconds.
_MOST_BINARIES = 100


def store(machine: Machine) -> Iterable[Finding]:
    """Path of the store, its write permission, its content, and the number of stale measurements."""
    if "version" not in machine.packages.get("sqlalchemy", {}) or "version" not in machine.packages.get("pandas", {}):
        yield Finding(PROBLEM, "store", "cannot be read without sqlalchemy and pandas")
        return
    from normtune.results.database.store import Store
    from normtune.results.database.url import StoreUrl

    try:
        url = StoreUrl.of(machine.store)
        path, name, option = url.path, url.name, url.option
        if path is not None and path.parent.is_dir() and not path.exists():
            reason = unwritable(path.parent)
            if reason:
                yield _read_only(name, reason)
            else:
                yield Finding(OK, "store", f"{name} does not exist yet: `normtune sweep{option}` creates it")
            return
        with Store.at(url, create=False) as opened:
            tallies = opened.tally()
            opened.load(regime=None)
            damage, ahead = opened.damage, opened.ahead
            same_code = _only_sources_changed(opened)
    except NormtuneError as error:
        yield Finding(PROBLEM, "store", str(error))
        return
    yield from _content(name, option, tallies, same_code)
    if damage:
        export = f"`normtune data export --out FILE.parquet{option}`"
        advice = f"`normtune sweep{option}` measures those of its grid again, {export} writes all others"
        yield Finding(WARNING, "store", damage, advice)
    if ahead:
        state, _, advice = ahead.partition(": ")
        yield Finding(WARNING, "store", state, advice)
    if path is not None:
        reason = unwritable(path.parent) or ("" if os.access(path, os.W_OK) else "no permission")
        if reason:
            yield _read_only(name, reason)


def _read_only(name: str, reason: str) -> Finding:
    advice = "name another store for sweeps, by --store or NORMTUNE_STORE; fit and show can read this one"
    return Finding(PROBLEM, "store", f"{name} cannot be written ({reason})", advice)


def _only_sources_changed(opened: "Store") -> bool:
    """Whether sources of kernels changed since the measurement, but no compiled code."""
    from normtune.kernels.target import target_for
    from normtune.tuner.staleness.stored import compare

    runs = {(run.device.kind, run.regime): run for run in opened.runs()}
    comparisons = [
        compare(opened.coverage(run.device, run.regime), target_for(run.device.target, run.device.sms), _MOST_BINARIES)
        for run in runs.values()
    ]
    same = any(comparison.same for comparison in comparisons)
    return same and not any(comparison.changed or comparison.undecided for comparison in comparisons)


def _content(name: str, option: str, tallies: "list[Tally]", same_code: bool) -> Iterable[Finding]:
    if not tallies:
        yield Finding(OK, "store", f"{name} holds no measurements yet")
        return
    counts: Counter[str] = Counter()
    stale = 0
    for tally in tallies:
        counts[tally.device.label] += tally.measurements
        if changed({tally.operator: tally.fingerprint}):
            stale += tally.measurements
    by_device = ", ".join(f"{count} of {label}" for label, count in sorted(counts.items()))
    yield Finding(OK, "store", f"{name} holds {counts.total()} measurements: {by_device}")
    if stale and same_code:
        yield Finding(OK, "store", "the kernels' sources changed since, their compiled code did not: times are kept")
    elif stale:
        state = f"{stale} of its measurements are of kernels that changed since"
        yield Finding(WARNING, "store", state, f"`normtune sweep --stale{option}` measures them again")


def disk(machine: Machine) -> Iterable[Finding]:
    """Free space on the disk of the store."""
    from normtune.results.database.url import StoreUrl

    try:
        path = StoreUrl.of(machine.store).path
    except NormtuneError:
        return  # reported by `store`
    if path is None or not path.parent.is_dir():
        return
    free = shutil.disk_usage(path.parent).free
    level = PROBLEM if free < _PROBLEM_BYTES else WARNING if free < _WARNING_BYTES else OK
    amount = f"{free / 2**30:.1f} GiB" if free >= 2**30 else f"{free / 2**20:.0f} MiB"
    advice = "free some, or name a store elsewhere with --store" if level != OK else ""
    yield Finding(level, "disk", f"{amount} free in {path.parent.resolve()}", advice)


def tables(machine: Machine) -> Iterable[Finding]:
    """The table that kernels would use on each GPU, and the reason."""
    gpus = machine.torch.get("gpus", [])
    for index, gpu in enumerate(gpus):
        try:
            source, exact = locate.select(gpu["name"], gpu["target"], gpu["sms"])[1:3]
        except NormtuneError as error:
            yield Finding(PROBLEM, "table", f"cuda:{index}: {error}")
            continue
        if exact:
            yield Finding(OK, "table", f"cuda:{index} uses {source}")
        else:
            advice = "`normtune sweep --effort quick && normtune fit --install` makes its own in a minute"
            yield Finding(WARNING, "table", f"cuda:{index} uses {source}, as there is no table for it", advice)
    if gpus:
        return
    try:
        yield Finding(OK, "table", f"none is used without a GPU; {without_gpu()}")
    except NormtuneError as error:
        yield Finding(PROBLEM, "table", str(error))


def without_gpu() -> str:
    """The tables for a machine without a GPU: the one of NORMTUNE_TABLE, else the GPUs with shipped tables.

    Raises:
        UsageError: NORMTUNE_TABLE is not the path of a table.
    """
    if os.environ.get(locate.VARIABLE):
        # NORMTUNE_TABLE comes before all other tables, so any GPU gives the same result, or the same error.
        return f"{locate.select('', '', 0).source} waits for one"
    devices = ", ".join(sorted({header.label for header in locate.shipped().values()})) or "none"
    return f"normtune ships tables of {devices}"


def installed(_: Machine) -> Iterable[Finding]:
    """Tables installed for this user, with their paths."""
    for file in locate.installed():
        path = locate.quoted(file)
        try:
            header = locate.load(file).header
        except UsageError as error:
            advice = f"delete {path}, and install another"
            yield Finding(WARNING, "installed", f"{path} cannot be used: {error}", advice)
        else:
            yield Finding(OK, "installed", f"{path} for {header.label}, {header.sms} SMs")
