"""Output of commands: the only place that prints, and that strips control characters.

In: text, possibly from untrusted files. Out: lines on stdout or stderr, or a Rich console, both without control
characters of the text. The commands choose the text.
"""

import sys
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult

# A pipe has no edge to fold at.
PIPE_COLUMNS = 200
# What a map is made for, where there is no terminal to ask.
MAP_COLUMNS = 80


def console() -> "Console":
    """A console for stdout that takes brackets and colons literally and drops control characters."""
    from rich.console import Console

    made = Console(markup=False, emoji=False, highlight=False)
    made.push_render_hook(cast("RenderHook", _Printable(made)))  # its base class is Rich's, which loads late
    if not made.is_terminal:
        made.width = PIPE_COLUMNS
    return made


def map_columns(made: "Console") -> int:
    """Width available for a map, in columns."""
    return max(made.width, 40) if made.is_terminal else MAP_COLUMNS


def say(text: str = "", *, error: bool = False) -> None:
    """Print lines and flush, on stdout or stderr. Commands print with nothing else."""
    print(_lines(text), file=sys.stderr if error else sys.stdout, flush=True)


def printable(text: str) -> str:
    """An untrusted text without characters that control a terminal or break a line."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _lines(text: str) -> str:
    """As `printable`, line by line."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


class _Printable:
    """A hook of a console that makes all text printable; Rich's own styles stay."""

    def __init__(self, console: "Console") -> None:
        self._console = console

    def process_renderables(self, renderables: "list[ConsoleRenderable]") -> "list[ConsoleRenderable]":
        """The filtered renderables."""
        return [_Filtered(self._console, one) for one in renderables]


class _Filtered:
    """A renderable without control characters."""

    def __init__(self, console: "Console", shown: "RenderableType") -> None:
        self._console = console
        self._shown = shown

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        for segment in self._console.render(self._shown, options):
            yield segment if segment.control else segment._replace(text=_lines(segment.text))
