"""How commands print: the one place that knows terminals, pipes and what must not reach either.

In: text, which may come from anybody's files. Out: lines on stdout or stderr, or a Rich console, both without control
characters of the text. What is printed is left to the commands.
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
    """A console for stdout: names are printed whatever brackets and colons they have, control characters are not."""
    from rich.console import Console

    made = Console(markup=False, emoji=False, highlight=False)
    made.push_render_hook(cast("RenderHook", _Printable(made)))  # its base class is Rich's, which loads late
    if not made.is_terminal:
        made.width = PIPE_COLUMNS
    return made


def map_columns(made: "Console") -> int:
    """How many columns a map may take."""
    return max(made.width, 40) if made.is_terminal else MAP_COLUMNS


def say(text: str = "", *, error: bool = False) -> None:
    """Print lines at once, on stdout or stderr: commands print with nothing else, whatever the text comes from."""
    print(_lines(text), file=sys.stderr if error else sys.stdout, flush=True)


def printable(text: str) -> str:
    """A text of foreign origin without characters that steer a terminal or break a line."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _lines(text: str) -> str:
    """As `printable`, line by line."""
    return text if text.isprintable() else "\n".join(map(printable, text.split("\n")))


class _Printable:
    """A hook of a console that makes all text printable; styles, which are Rich's own, stay."""

    def __init__(self, console: "Console") -> None:
        self._console = console

    def process_renderables(self, renderables: "list[ConsoleRenderable]") -> "list[ConsoleRenderable]":
        """What is printed in place of what was asked for."""
        return [_Filtered(self._console, one) for one in renderables]


class _Filtered:
    """Something to be printed, without control characters."""

    def __init__(self, console: "Console", shown: "RenderableType") -> None:
        self._console = console
        self._shown = shown

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        for segment in self._console.render(self._shown, options):
            yield segment if segment.control else segment._replace(text=_lines(segment.text))
