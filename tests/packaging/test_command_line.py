"""The frame of the command line: errors become one line and an exit code, everything is documented."""

import sys

import pytest
import typer
from typer.testing import CliRunner

from normtune import cli
from normtune.errors import NormtuneError, UsageError


def ends(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> int:
    """Exit code of a command that raises `failure`."""
    app = typer.Typer(cls=cli.ErrorLines, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.command()
    def fail() -> None:
        raise failure

    @app.command()
    def other() -> None: ...

    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "argv", ["normtune", "fail"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize(
    ("failure", "code"),
    [(NormtuneError("the disk is full: free some"), 1), (UsageError("--grid is 'x': expected default"), 2)],
)
def test_expected_errors_are_one_line_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failure: NormtuneError, code: int
) -> None:
    assert ends(monkeypatch, failure) == code
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"normtune: error: {failure}\n")


def test_interrupt_ends_with_130_and_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ends(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == (
        "\nnormtune: interrupted. Everything measured so far is stored; the same command goes on from there.\n"
    )


def test_unexpected_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        ends(monkeypatch, ZeroDivisionError())


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 2, "Commands:"),
        (["--help"], 0, "normtune sweep && normtune fit"),
        (["swep"], 2, "Did you mean 'sweep'"),
        (["sweep", "--grit", "default"], 2, "--grit"),
        (["fit", "--leaves", "many"], 2, "--leaves"),
        (["check"], 2, "Missing argument"),
        (["data"], 2, "export"),
    ],
)
def test_wrong_calls_end_with_2_and_name_what_is_wrong(arguments: list[str], code: int, says: str) -> None:
    result = CliRunner().invoke(cli.app, arguments)
    assert (result.exit_code, says in result.output) == (code, True), result.output
