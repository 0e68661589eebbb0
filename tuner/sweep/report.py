"""The result of a sweep, and its text: the device, the plan, the end.

In: plans, backlogs and summaries. Out: lines of text, and JSON values of the same content, for `progress` and the
command.
"""

import os
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from normtune.kernels.load_file import loaded
from normtune.results.records import REPLAY_PREFIX, Device
from normtune.results.regimes import EAGER, WARM
from normtune.results.terminal import printable
from normtune.tuner.compiling.ahead import Ahead
from normtune.tuner.device.bench import Bench
from normtune.tuner.device.engine import Identity
from normtune.tuner.plan.grids import MAX_ELEMENTS
from normtune.tuner.plan.plan import LEFT_OUT, Plan, peak_bytes
from normtune.tuner.plan.pool import Pool
from normtune.tuner.sweep.summary import LARGE_BYTES, Best, Summary
from normtune.tuner.sweep.work import Backlog
from normtune.tuner.timing.disturbance import warned

_REGIMES = {
    WARM: "; warm: the same buffers again and again",
    EAGER: "; eager: cold, launched from Python without a graph",
}

NOTHING_DISPUTED = "nothing to measure: the expected loss of every function at other shapes is at most until_percent"
NOTHING_STALE = "nothing is stale: all stored measurements are of the present kernels"

# Number of reasons of failures that are printed; others are counted.
REASONS = 5


class SweepResult(NamedTuple):
    """Result of a sweep.

    Attributes:
        device: the measured device, or the one of the plan.
        summary: counts and times; empty for a dry run, and if nothing was stale.
        backlog: the plan; None if there was nothing to measure.
        damage: line about damaged stored measurements, which were left out; empty without any.
        is_dry: whether the sweep was only planned.
        compiled: binaries for another machine; None of a sweep that measures.
        others: the same of GPUs of other kinds.
    """

    device: Device
    summary: Summary
    backlog: Backlog | None = None
    damage: str = ""
    is_dry: bool = False
    compiled: Ahead | None = None
    others: tuple["SweepResult", ...] = ()

    def _repr_html_(self) -> str:
        """The plan, and what was measured."""
        from normtune.heuristics.report.notebook import html_with_charts

        lines = [self.device.label, *(plan_lines(self.backlog) if self.backlog else ())]
        is_measured = not (self.is_dry or self.compiled or self.summary.phases is None)
        return html_with_charts([*lines, *(end_lines(self.summary, None) if is_measured else ())], lambda: ())

    def to_plain(self) -> dict[str, Any]:
        """The object of `normtune sweep --json`, as JSON values; docs/commands.md describes the keys."""
        values: dict[str, Any] = {
            "device": self.device._asdict(),
            "plan": plain_plan(self.backlog) if self.backlog else None,
            "sweep": None if self.is_dry or self.compiled else self.summary.to_plain(),
        }
        values |= {"compiled": self.compiled.to_plain()} if self.compiled else {}
        return values | ({"others": [other.to_plain() for other in self.others]} if self.others else {})


def device_line(bench: Bench | Identity) -> str:
    """Line with the device, and the cache mode if it is not cold."""
    device = bench.device
    name, regime = printable(device.name), _REGIMES.get(bench.regime, "")
    if device.uuid.startswith(REPLAY_PREFIX):
        return f"replay of the recorded sweep of {name}: no GPU is measured ({device.uuid}){regime}"
    free = "" if bench.free_bytes is None else f", {bench.free_bytes / 2**30:.1f} GiB free"
    return f"{name}, {device.target}, {device.sms} SMs{free}, driver {printable(device.driver)}{regime}"


def plan_lines(backlog: Backlog) -> list[str]:
    """Lines with the plan: problems to measure, and problems left out."""
    plan = backlog.plan
    problems = len(backlog.tasks)
    if plan.tasks and plan.is_empty:
        return ["nothing to measure"]
    if not problems:
        return [f"nothing to measure: all {backlog.known} problems are stored already"]

    stored = f"; {backlog.known} more problems are stored already" if backlog.known else ""
    stored += f"; {plan.illegal} have no legal config" if plan.illegal else ""
    lines = [
        f"{problems} problems, {backlog.cells} configs to time ({backlog.cells / problems:.1f} a problem), "
        f"{backlog.binaries} binaries{stored}"
    ]
    left_out = []
    configs = plan.pruned.get(LEFT_OUT, 0)
    if configs:
        left_out.append(f"{'other' if plan.pools else configs} configs that only the effort default has")
    if plan.too_large:
        left_out.append(f"{plan.too_large} problems of over {MAX_ELEMENTS} elements")
    if plan.oversized:
        largest = max((task.problem for task in plan.tasks), key=peak_bytes)
        left_out.append(
            f"{len(plan.oversized)} problems that do not fit into the free memory (the largest that does: {largest})"
        )
    if left_out:
        lines.append("left out: " + "; ".join(left_out))
    return lines


def pruned_lines(plan: Plan) -> list[str]:
    """Lines with the number of configs left out of a plan, by reason; for large spaces among the resolved configs."""
    lines = [f"  left out {count:6}  {reason}" for reason, count in sorted(plan.pruned.items())]
    if pools := plan.pools:
        large = _plain_large(pools)
        count, requested = large["configs"], large["configs_asked"]
        configs = "the configs that a function draws" if count is None else f"{count} configs"
        lines.append(
            f"  {requested} of {configs} at {len(pools)} problems were resolved to a launch: how many of the others "
            "are illegal is unknown"
        )
        reasons = sorted(large["configs_left_out"].items())
        lines += [f"  left out {count:6}  of these {requested}, {reason}" for reason, count in reasons]
    return lines


def _plain_large(pools: Sequence[Pool]) -> dict[str, Any]:
    """Problems with large spaces as JSON values; `configs` is None where some cannot be listed."""
    is_listed = all(pool.is_listed for pool in pools)
    return {
        "problems": len(pools),
        "configs": sum(pool.size for pool in pools) if is_listed else None,
        "configs_asked": sum(pool.requested for pool in pools),
        "configs_left_out": dict(sum((pool.pruned for pool in pools), Counter[str]())),
    }


def best_text(problem: object, best: Best | None) -> str:
    """Text with the best config of a problem and its time relative to the copy."""
    if best is None:
        return f"{problem}: nothing could be timed"
    copy = f", {100 * best.of_copy:.0f} % of the copy's speed" if best.of_copy else ""
    return f"{problem}: {best.config} in {best.nanoseconds / 1000:.1f} us{copy}"


def end_lines(summary: Summary, budget_seconds: float | None) -> list[str]:
    """Lines with the outcome of a sweep; the last one names the next command.

    Args:
        summary: of the sweep.
        budget_seconds: the budget, for the message if it was too short for any problem.
    """
    fit = _fit(summary)
    if not summary.done and not summary.left:
        if summary.is_fruitless:
            return []  # the command ends with this error
        untimed = (
            f"{summary.known_failed} of them without a config that could be timed; " if summary.known_failed else ""
        )
        return [f"nothing to do: all {summary.known} problems are measured; {untimed}`{fit}` makes their table"]
    if not summary.done and budget_seconds is not None:
        return [
            f"the budget of {seconds_text(budget_seconds)} ended before a problem could be measured: nothing was "
            f"stored; {_counted(summary.left, 'problem')} left"
        ]
    failed = sum(summary.failures.values())
    total = summary.starting_seconds + summary.seconds
    counts = [f"{summary.problems} problems measured in {seconds_text(total)}"]
    if summary.failed:
        counts.append(f"{_counted(summary.failed, 'other')} without a config that could be timed")
    if summary.known:
        counts.append(f"{summary.known} were stored before")
    lines = [
        f"{', '.join(counts)}: {summary.configs} configs timed; failures: {failed or 'none'}",
        *_failure_lines(summary.failures),
    ]
    if summary.phases:
        protocol = summary.phases.protocol
        lost = int(str(protocol.get("worker_restarts", 0)))
        if lost:
            lines.append(f"{_counted(lost, 'time')} the process that uses the GPU was lost and started again")
        lines += [f"warning: {printable(one.line())}" for one in warned(protocol)]
        if reason := protocol.get("undigested"):
            lines.append(
                f"times have no digest of their code ({printable(str(reason))}): only changes of sources will show "
                "that kernels changed"
            )
    lines += [summary.spread.line()] if summary.spread else []
    lines += [f"left out: {name}, {printable(reason)}" for name, reason in summary.lost.items()]
    lines += _copy_lines(summary)
    lines += [
        f"{name}: its knobs do not tell which configs are fast, so that this search may miss the best one: "
        '`normtune.sweep(strategy="exhaustive")` times all'
        for name in summary.unguided
    ]
    for reason, count in summary.skipped.most_common(REASONS):
        lines.append(f"skipped {_counted(count, 'problem')}, which the next sweep tries again: {printable(reason)}")
    if summary.left:
        more = "" if summary.left_seconds is None else f": {about(summary.left_seconds)} more"
        lines.append(
            f"the budget ended with {_counted(summary.left, 'problem')} left{more}; the same command continues. "
            f"`{fit}` makes a table of the measured ones"
        )
    elif summary.is_fruitless:
        pass  # the command ends with this error
    elif summary.skipped:
        lines.append(f"all other problems are measured: `{fit}` makes a table of them")
    else:
        lines.append(f"complete: `{fit}` fits a table to these times")
    return lines


def fruitless_line(summary: Summary, ahead: Ahead | None = None, backlog: Backlog | None = None) -> str:
    """The error of a sweep in which nothing could be timed, or compiled; empty if something could."""
    if backlog and backlog.plan.tasks and backlog.plan.is_empty:
        counted = _counted(len(backlog.plan.tasks), "problem")
        return f"no config is legal at {counted}: `inspect` of its file looks for the reason"
    if ahead and not ahead.binaries:
        failed = sum(ahead.failures.values())
        reason = f"all {failed} binaries failed" if failed else "no config is legal there"
        return f"nothing could be compiled for {ahead.target}: {reason}"
    if not summary.is_fruitless:
        return ""
    advice = "`normtune.show` lists the reasons, and `normtune.sweep(retry_failed=True)` measures them again"
    if summary.statuses["not_recorded"]:
        advice = "a replay has times of recorded shapes alone, so leave the shapes out, or measure them on a GPU"
    problems = _counted(summary.done + summary.known, "problem")
    return f"nothing could be timed at any of {problems}, so there is no table to fit: {advice}"


def ahead_lines(ahead: Ahead) -> list[str]:
    """Lines with the binaries that were compiled for another machine, and the command that uses them."""
    failed = sum(ahead.failures.values())
    present = ahead.binaries - ahead.compiled
    counts = f"{ahead.compiled} compiled, {present} already there; failures: {failed or 'none'}"
    lines = [f"{ahead.binaries} binaries for {ahead.target} in {ahead.folder}: {counts}"]
    lines += _failure_lines(ahead.failures)
    if ahead.binaries:
        needs = f"Triton {ahead.triton} on Python {ahead.python}"
        folder = shlex.quote(str(ahead.folder))
        lines.append(f"a sweep with --cache {folder} and the same options uses them, with {needs}")
    return lines


def _fit(summary: Summary) -> str:
    """The command that fits a table to the measurements of a sweep."""
    files = "".join(f" --load {shlex.quote(os.path.relpath(file))}" for file in loaded())
    regime = summary.phases.protocol.get("regime") if summary.phases else None
    if regime in _REGIMES:
        return f'normtune.fit(..., regime="{regime}")'
    return f"normtune{files} fit{summary.store}"


def plain_plan(backlog: Backlog) -> dict[str, Any]:
    """A plan as JSON values; docs/commands.md describes the keys."""
    plan = backlog.plan
    return {
        "problems": len(backlog.tasks),
        "problems_known": backlog.known,
        "configs": backlog.cells,
        "binaries": backlog.binaries,
        "problems_too_large": len(plan.oversized) + plan.too_large,
        "configs_left_out": plan.pruned,
        "large_spaces": _plain_large(plan.pools) if plan.pools else None,
    }


def about(seconds: float) -> str:
    """Text of an estimated time."""
    return f"about {seconds_text(max(0.1, seconds))}"


def seconds_text(seconds: float) -> str:
    """Text of a time in seconds, or in minutes if it is long."""
    if seconds >= 90:
        return f"{seconds / 60:.1f} minutes"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{max(0.0, seconds):.1f} s"


def _failure_lines(failures: Counter[tuple[str, str]]) -> list[str]:
    most_common = failures.most_common(REASONS)
    lines = [f"  {count} {status}: {printable(reason)}" for (status, reason), count in most_common]
    rest = sum(failures.values()) - sum(count for _, count in most_common)
    return [*lines, f"  {rest} for {len(failures) - len(most_common)} other reasons"] if rest else lines


def _copy_lines(summary: Summary) -> Sequence[str]:
    texts = []
    for key in summary.operators():
        everywhere, large = summary.near(key), summary.near(key, LARGE_BYTES)
        parts = [f"{100 * large.fraction:.0f} % from {LARGE_BYTES // 1_000_000} MB on"] if large else []
        parts += [f"{100 * everywhere.fraction:.0f} % over all sizes"] if everywhere else []
        texts.append(f"{key} {', '.join(parts)}")
    return [f"best configs, of the speed of a copy of as many bytes: {'; '.join(texts)}"] if texts else []


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
