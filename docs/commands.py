"""Generate the reference in docs/commands.md from the command line: usage, description, options of each command.

    python docs/commands.py           # write the blocks
    python docs/commands.py --check   # end with 1 if the document is out of date

The text around a block is written by hand.
"""

import inspect
import textwrap
from collections.abc import Iterator
from functools import partial
from typing import Any

import typer.main

from normtune import cli
from normtune.docs import blocks
from normtune.docs.blocks import Blocks

DOCUMENT = blocks.ROOT / "docs" / "commands.md"


def main() -> None:
    """Write or compare the document."""
    blocks.main(__doc__ or "", "python docs/commands.py", "command", {DOCUMENT: BLOCKS})


def commands() -> dict[str, Any]:
    """Every command, by its words on the command line."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        children = getattr(command, "commands", None)
        if not children:
            yield name, command
        for child in (children or {}).values():
            yield from walk(f"{name} {child.name}".strip(), child)

    return dict(walk("", typer.main.get_command(cli.app)))


def reference(name: str, command: Any) -> list[str]:
    """A command's usage, description and table of options."""
    arguments = [
        (parameter.metavar or parameter.name.upper()) + "..." * (parameter.nargs == -1)
        for parameter in command.params
        if parameter.param_type_name == "argument"
    ]
    usage = " ".join(["normtune", name, "[OPTIONS]", *arguments])
    paragraphs = inspect.cleandoc(command.callback.__doc__).split("\n\n")
    lines = ["", "```text", usage, "```", ""]
    for paragraph in paragraphs:
        lines += [*textwrap.wrap(" ".join(paragraph.split()), 120, break_on_hyphens=False), ""]
    lines += ["| option | |", "|---|---|"]
    for parameter in command.params:
        if parameter.param_type_name == "option" and parameter.name != "help":
            written = "" if parameter.is_flag else f" {parameter.metavar or 'VALUE'}"
            default = f" Default: {parameter.default}." if parameter.show_default and _is_shown(parameter) else ""
            required = " Required." * bool(parameter.required)
            lines.append(f"| `{parameter.opts[0]}{written}` | {_cell(parameter.help + default + required)} |")
    return [*lines, ""]


def _is_shown(option: Any) -> bool:
    """Whether `--help` shows the default of an option."""
    return not option.is_flag and option.default not in (None, ())


def _cell(text: str) -> str:
    """A text for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


BLOCKS: Blocks = {name: partial(reference, name, command) for name, command in commands().items()}

if __name__ == "__main__":
    main()
