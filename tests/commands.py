"""Commands of normtune and other Pythons as tests run them, and errors that are one line."""

import functools
import io
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import pytest
import typer
import typer.main
from typer.testing import CliRunner, Result

from normtune import cli
from normtune.errors import NormtuneError, UsageError

# Seconds after which a test gives up on another process: it never waits so long for one that works, on a busy machine.
PATIENCE = 600


def wait_until(condition: Callable[[], object]) -> None:
    """Return once a condition holds, and fail if it never does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@functools.cache
def _commands() -> typer.Typer:
    """The commands of the command line in a group that hands on their errors."""
    app = typer.Typer(cls=cli.Typed)
    app.registered_commands, app.registered_groups = cli.app.registered_commands, cli.app.registered_groups
    return app


def every_command() -> dict[str, Any]:
    """Each command of the command line, by its words: `data list`."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        children = getattr(command, "commands", None)
        if not children:
            yield name, command
        for child in (children or {}).values():
            yield from walk(f"{name} {child.name}".strip(), child)

    return dict(walk("", typer.main.get_command(cli.app)))


def invoke(*arguments: object) -> Result:
    """A command in this process; an error that was foreseen is the result's exception."""
    return CliRunner().invoke(_commands(), [str(argument) for argument in arguments])


def main(*arguments: object) -> Result:
    """The whole command line in this process: an error that was foreseen is a line and an exit code."""
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], catch_exceptions=False)


def succeed(*arguments: object) -> str:
    """What a command prints that must succeed."""
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output or result.exception
    return result.output


def printed_sweep(**options: Any) -> str:
    """What a sweep prints that has options of Python alone."""
    from normtune.tuner.sweep.api import run
    from normtune.tuner.sweep.progress import Lines
    from normtune.tuner.sweep.request import Request

    printed = io.StringIO()
    with redirect_stdout(printed):
        run(Request(**options), Lines())
    return printed.getvalue()


def refused(*arguments: object, kind: type[NormtuneError] = UsageError) -> str:
    """The one line of the error in which a command ends."""
    result = invoke(*arguments)
    assert isinstance(result.exception, kind), (result.output, result.exception)
    assert "\n" not in str(result.exception)
    return str(result.exception)


@contextmanager
def one_line(kind: type[Exception], match: str | None = None, most: int = 10_000) -> Iterator[Any]:
    """Expects an error whose text is one line of at most so many characters and matches."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    assert "\n" not in str(caught.value) and len(str(caught.value)) <= most


def python(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this Python, and return what it did."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, **{"capture_output": True, "text": True, "timeout": PATIENCE} | options)


def printed_by(code: str, *arguments: object, **options: Any) -> str:
    """What a Python prints that runs this code and must succeed."""
    return python("-c", code, *arguments, **{"check": True} | options).stdout
