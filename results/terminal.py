"""Output of commands: the only module that prints, and that removes control characters from untrusted text.

In: text, possibly from untrusted files. Out: lines on stdout or stderr, or a Rich console. Commands choose the text.
"""

import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult

# Width of output to a pipe, and of a map in it.
PIPE_COLUMNS = 200
MAP_COLUMNS = 80


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
