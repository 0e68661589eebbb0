"""Progress of a sweep on stdout: a live display in a terminal, plain lines in a log, or nothing.

In: the events of a sweep. `report` has the text of the plan and of the end.
"""

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from normtune.kernels.problem import Problem
from normtune.results import terminal
from normtune.tuner.sweep.report import about, best_text, plan_lines
from normtune.tuner.sweep.summary import Best, Summary
from normtune.tuner.sweep.work import Backlog

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# A log gets a line for each tenth of the configs, and after this many seconds without a line.
_SILENCE_SECONDS = 30.0
# Least and greatest width of the bar, columns.
_LEAST_BAR, _MOST_BAR = 8, 40


class Totals(NamedTuple):
    """Counts over all devices: problems done, if only in part, and all, the share of the configs, samples.

    The seconds left are those of the devices that need longest; None where they are not known of all.
    """

    done: int
    problems: int
    share: float
    timings: int
    seconds: float | None

    @classmethod
    def of(cls, summaries: Sequence[Summary]) -> "Totals":
        """The totals of the summaries of like devices."""
        problems = [max(summary.done, summary.total) for summary in summaries]
        estimates = [summary.left_seconds for summary in summaries if summary.left]
        seconds = [one for one in estimates if one is not None]
        shares = sum(summary.share * count for summary, count in zip(summaries, problems, strict=True))
        return cls(
            sum(summary.done for summary in summaries),
            sum(problems),
            shares / sum(problems),
            sum(summary.timings for summary in summaries),
            max(seconds, default=0.0) if len(seconds) == len(estimates) else None,
        )


class Silent:
    """Receives the events of a sweep, and shows nothing; a context manager.

    Attributes:
        title: names of the devices, once they are known.
    """

    title = ""

    def __enter__(self) -> "Silent":
        return self

    def __exit__(self, *_: object) -> None: ...

    def say(self, *lines: str) -> None:
        """Print permanent lines."""

    def planned(self, backlog: Backlog) -> None:
        """The plan of one kind of device is complete; nothing is compiled yet."""
        self.say(*plan_lines(backlog))

    def compiling(self, done: int, total: int) -> None:
        """`done` of `total` binaries are compiled; called from another thread."""

    def measured(self, device: str, problem: Problem, best: Best | None, summaries: Sequence[Summary]) -> None:
        """A problem was stored or skipped on a device; the summaries are those of all kinds of devices."""


class Lines(Silent):
    """Plain lines, flushed at once, for the log of a CI job."""

    def __init__(self) -> None:
        self._start = self._last = time.monotonic()
        self._tenths = 0
        self._waiting = True
        self._broken = False
        self._devices: set[str] = set()

    def say(self, *lines: str) -> None:
        """Print lines."""
        for line in lines:
            terminal.say(line)

    def planned(self, backlog: Backlog) -> None:
        """Print the plan and start the clock of the rate."""
        super().planned(backlog)
        self._start = self._last = time.monotonic()

    def compiling(self, done: int, total: int) -> None:
        """Print a line after a time without lines, until the first problem is measured."""
        if self._waiting and not self._broken and time.monotonic() - self._last > _SILENCE_SECONDS:
            self._last = time.monotonic()
            try:
                self.say(f"compiled {done} of {total} binaries")
            except OSError:  # stdout is closed: the main thread gets the same error and ends the sweep
                self._broken = True

    def measured(self, device: str, problem: Problem, best: Best | None, summaries: Sequence[Summary]) -> None:
        """Print a line at each tenth of the configs, or after a time without lines."""
        self._waiting = False
        self._devices.add(device)
        done, problems, share, timings, seconds = Totals.of(summaries)
        tenths, now = int(10 * share), time.monotonic()
        if tenths == self._tenths and now - self._last < _SILENCE_SECONDS:
            return
        self._tenths, self._last = tenths, now
        rate = timings / max(1e-3, now - self._start)
        end = f"{about(seconds)} left; " if seconds else ""
        where = f"{device}: " if len(self._devices) > 1 else ""
        self.say(
            f"{int(100 * share):3} %  {done} of {problems} problems begun, {rate:.0f} timings/s, "
            f"{end}{where}{best_text(problem, best)}"
        )


class Screen(Silent):
    """A live display, redrawn in place and removed at the end."""

    def __init__(self, console: "Console") -> None:
        from rich.live import Live

        self._console = console
        self._compiled = (0, 0)
        self._start = time.monotonic()
        self._totals = Totals(0, 0, 0.0, 0, None)
        # The last best config by device.
        self._best: dict[str, str] = {}
        self._live = Live(console=console, get_renderable=self._renderable, refresh_per_second=8, transient=True)
        self._is_live = False

    def __exit__(self, *_: object) -> None:
        if self._is_live:
            self._live.stop()

    def say(self, *lines: str) -> None:
        """Print above the display."""
        for line in lines:
            self._console.print(terminal.printable(line), markup=False, highlight=False)

    def planned(self, backlog: Backlog) -> None:
        """Print the plan and start the display."""
        super().planned(backlog)
        self._totals = self._totals._replace(problems=self._totals.problems + len(backlog.tasks))
        if not self._is_live:
            self._start = time.monotonic()
            self._live.start()
            self._is_live = True

    def compiling(self, done: int, total: int) -> None:
        """Note the counts for the next redraw."""
        self._compiled = done, total

    def measured(self, device: str, problem: Problem, best: Best | None, summaries: Sequence[Summary]) -> None:
        """Note the counts for the next redraw."""
        self._totals = Totals.of(summaries)
        self._best[device] = best_text(problem, best)

    def _renderable(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        done, problems, share, timings, seconds = self._totals
        rate = timings / max(1e-3, time.monotonic() - self._start)
        end = "" if seconds is None else f", {about(seconds)} left"
        status = f"{done} of {problems}, {rate:.0f} timings/s{end}"
        title = Text(self.title, style="bold")
        title.truncate(max(8, self._console.width - len(status) - _LEAST_BAR - 2), overflow="ellipsis")
        bars = Table.grid(padding=(0, 1))
        bars.add_column(no_wrap=True)
        bars.add_column(width=min(_MOST_BAR, max(_LEAST_BAR, self._console.width - len(status) - len(title) - 2)))
        bars.add_column(no_wrap=True)
        bars.add_row(title, ProgressBar(1.0, share), Text(status))
        compiled, binaries = self._compiled
        if compiled < binaries:
            bars.add_row(Text("compiling"), ProgressBar(binaries, compiled), Text(f"{compiled} of {binaries} binaries"))
        texts = [f"{device}  {text}" if len(self._best) > 1 else text for device, text in sorted(self._best.items())]
        lines = (
            Text(text, style="dim", no_wrap=True, overflow="ellipsis")
            for text in texts or ["waiting for the first binaries"]
        )
        return Group(bars, *lines)


def choose_display(quiet: bool) -> Silent:
    """The display for this stdout: nothing if `quiet`, live in a terminal that can redraw, else lines."""
    if quiet:
        return Silent()
    if sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown"):
        from rich.console import Console

        return Screen(Console())
    return Lines()
