"""Commands that messages print to be typed: each can be typed, and names the store that the message is about."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from normtune import cli

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"`normtune ([^`]+)`")
# Words before a command that is told, as in "a table that `normtune fit --out` wrote", and not to be typed.
TOLD = ("that ", "as ", "than ", "of ")
STORES = ("sweep", "fit", "show", "data ")
# Printed where no store is open: on a GPU without a table, or on a machine without a GPU.
WITHOUT_STORE = {"sweep --effort quick && normtune fit --install", "sweep --device replay:nvidia-h200"}
# In place of what an f-string inserts: the words that name a store, or anything else.
STORE, OTHER = "\N{BLACK SQUARE}", "X"


def inserted(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    return STORE if re.search(r"(option|store|store_option\(.*\))\}*\Z", ast.unparse(part).strip("'\"")) else OTHER


def texts(file: Path) -> Iterator[str]:
    """The strings of a module that may name a command, except docstrings."""
    source = file.read_text()
    if "`normtune " not in source:
        return
    nodes = [*ast.walk(ast.parse(source))]
    bodies: list[Any] = [node.body for node in nodes if isinstance(getattr(node, "body", None), list)]
    left_out = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    left_out |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            yield "".join(map(inserted, node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value


def printed() -> Iterator[tuple[str, str]]:
    """Each command, after its module."""
    files = [file for room in ("kernels", "results", "heuristics", "tuner") for file in (ROOT / room).rglob("*.py")]
    for file in files:
        for text in texts(file) if file.parent.name != "tables" else ():
            for found in COMMAND.finditer(text):
                if not text[: found.start()].endswith(TOLD):
                    yield str(file.relative_to(ROOT)), found[1]


COMMANDS = sorted({*printed()})


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 15 and any(STORE in command for _, command in COMMANDS)


@pytest.mark.parametrize(("module", "command"), COMMANDS)
def test_a_printed_command_can_be_typed(module: str, command: str) -> None:
    for one in command.split(" && normtune "):
        words = shlex.split(one.replace(STORE, " --store x.db"))
        group: Any = typer.main.get_command(cli.app)
        while hasattr(group, "commands"):
            group = group.commands[words.pop(0)]
        group.make_context(group.name, words)  # raises where an option is unknown or a value is missing


@pytest.mark.parametrize(("module", "command"), COMMANDS)
def test_a_printed_command_names_the_store_of_its_message(module: str, command: str) -> None:
    if command.startswith(STORES) and command not in WITHOUT_STORE:
        assert command.endswith(STORE), f"{module} prints `normtune {command}` whatever the store is"
