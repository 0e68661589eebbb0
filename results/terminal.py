"""Output of commands: the only module that prints, and that removes control characters from untrusted text.

In: text, possibly from untrusted files. Out: lines on stdout or stderr, or a Rich console. Commands choose the text,
and say with `tell` and `note` what `--quiet` leaves out.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Timer
from typing import TYPE_CHECKING, Any, TextIO, cast

from normtune.errors import OutputClosed

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult

# Seconds of silence after which a command says what it does.
_MOMENT = 0.25
# Width of output to a pipe, and of a map in it.
PIPE_COLUMNS = 200
MAP_COLUMNS = 80
_quiet = ContextVar("quiet", default=False)


class Stream:
    """Stdout or stderr of a process of the command line; a closed one, None, prints nothing.

    Attributes:
        has_printed: whether anything was.

    Raises:
        OutputClosed: stdout cannot be written, as on a full disk. Failures of stderr are ignored.
    """

    def __init__(self, stream: TextIO | None, is_for_errors: bool = False) -> None:
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115 - until the end of the process
        self._is_for_errors = is_for_errors
        self.has_printed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Print a text."""
        self.has_printed = True
        try:
            return self._stream.write(text)
        except OSError as error:
            self._stop(error)
            return len(text)

    def flush(self) -> None:
        """Hand what was printed to the system."""
        try:
            self._stream.flush()
        except OSError as error:
            self._stop(error)

    def _stop(self, error: OSError) -> None:
        # Otherwise the rest of the buffer would fail again at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
        if not self._is_for_errors:
            raise OutputClosed("" if isinstance(error, BrokenPipeError) else error.strerror) from None


def console() -> "Console":
    """A console for stdout that takes brackets and colons literally and drops control characters."""
    from rich.console import Console

    result = Console(markup=False, emoji=False, highlight=False)
    result.push_render_hook(cast("RenderHook", _Printable(result)))  # a cast, because Rich is imported late
    if not result.is_terminal:
        result.width = PIPE_COLUMNS
    return result


def map_columns(console: "Console") -> int:
    """Width available for a map, in columns."""
    return max(console.width, 40) if console.is_terminal else MAP_COLUMNS


def say(text: str = "", *, error: bool = False) -> None:
    """Print lines and flush, on stdout or stderr. Commands print with nothing else."""
    print(_lines(text), file=sys.stderr if error else sys.stdout, flush=True)


def tell(text: str, *, error: bool = False) -> None:
    """`say` what is neither an answer nor an error: progress, advice, names of written files; nothing if quiet."""
    if not is_quiet():
        say(text, error=error)


def note(text: str) -> None:
    """`tell` a line about normtune itself on stderr: progress, or what an answer leaves out."""
    tell(f"normtune: {text}", error=True)


@contextmanager
def quietly(quiet: bool = True) -> Iterator[None]:
    """Let `tell` and `note` print nothing in the block, if so: a command line with `--quiet`."""
    before = _quiet.set(quiet)
    try:
        yield
    finally:
        _quiet.reset(before)


def is_quiet() -> bool:
    """Whether this is in a block of `quietly`."""
    return _quiet.get()


@contextmanager
def announced(doing: str) -> Iterator[None]:
    """Print on stderr what a command of the command line does if it has printed nothing for a moment."""
    streams = [stream for stream in (sys.stdout, sys.stderr) if isinstance(stream, Stream)]

    def print_line() -> None:
        if not any(stream.has_printed for stream in streams):
            say(f"normtune: {doing} ...", error=True)

    timer = Timer(_MOMENT, print_line)
    timer.daemon = True
    if streams and not is_quiet():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def say_json(value: Any) -> None:
    """Print an object as JSON: data frames as lists of rows, configs as objects, NaN as null."""
    from normtune.kernels.config import Config

    def frame_rows(frame: Any) -> Any:
        cells = frame.astype(object)
        rows = cells.where(cells.notna(), None).to_dict("records")
        # A config is a tuple, which JSON would have as a list.
        return [
            {name: json.loads(v.to_json()) if isinstance(v, Config) else v for name, v in row.items()} for row in rows
        ]

    say(json.dumps(value, indent=1, default=frame_rows, allow_nan=False))


def printable(text: str) -> str:
    """An untrusted text without characters that control a terminal or break a line."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _lines(text: str) -> str:
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


class _Printable:
    """A hook of a console that makes all text printable and keeps Rich's styles."""

    def __init__(self, console: "Console") -> None:
        self._console = console

    def process_renderables(self, renderables: "list[ConsoleRenderable]") -> "list[ConsoleRenderable]":
        """The filtered renderables."""
        return [_Filtered(self._console, renderable) for renderable in renderables]


class _Filtered:
    """A renderable without control characters."""

    def __init__(self, console: "Console", renderable: "RenderableType") -> None:
        self._console = console
        self._renderable = renderable

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        for segment in self._console.render(self._renderable, options):
            yield segment if segment.control else segment._replace(text=_lines(segment.text))
