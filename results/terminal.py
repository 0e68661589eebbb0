"""How tables are printed: the one place that knows terminals, pipes and what must not reach either.

In: nothing. Out: a Rich console. What is printed is left to the commands.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# A pipe has no edge to fold at.
PIPE_COLUMNS = 200
# What a map is made for, where there is no terminal to ask.
MAP_COLUMNS = 80


def console() -> "Console":
    """A console for stdout: names are printed as they are, whatever brackets and colons they have."""
    from rich.console import Console

    made = Console(markup=False, emoji=False, highlight=False)
    if not made.is_terminal:
        made.width = PIPE_COLUMNS
    return made


def map_columns(made: "Console") -> int:
    """How many columns a map may take."""
    return max(made.width, 40) if made.is_terminal else MAP_COLUMNS


def printable(text: str) -> str:
    """A text of foreign origin without characters that steer a terminal or break a line."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
