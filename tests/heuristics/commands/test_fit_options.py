"""The options of `fit` are the fields of `FitOptions`: each is declared once and arrives with its value."""

import dataclasses
import inspect
from typing import Any

import typer
from typer.testing import CliRunner

from normtune.heuristics.api.fit import fit
from normtune.heuristics.fitting.options import FitKeywords, FitOptions
from normtune.results.commands import with_options
from normtune.tests.heuristics.made_up import options_of

FIELDS = {field.name: field for field in dataclasses.fields(FitKeywords)}


def shown(chosen: list[FitOptions]) -> Any:
    def command(out: str = "", install: bool = False, force: bool = False, **options: Any):
        chosen.append(FitOptions(**options))

    return with_options(FitOptions, before="install")(command)


def test_the_options_of_the_command_line_stand_where_they_are_declared() -> None:
    assert list(inspect.signature(shown([])).parameters) == [
        *("out", "leaves", "max_slowdown", "max_configs", "weights", "baseline"),
        *("portable", "device", "install", "operator", "force"),
    ]


def test_every_field_is_a_keyword_with_its_type_default_and_text() -> None:
    parameters = inspect.signature(fit).parameters
    assert [name for name in parameters if name in FIELDS] == [*FIELDS]
    for name in FIELDS:
        assert (parameters[name].annotation, parameters[name].default) == (FIELDS[name].type, FIELDS[name].default)
    for name in parameters:
        assert f"\n    {name}: " in (fit.__doc__ or "")


def test_what_is_typed_is_what_a_header_says() -> None:
    chosen: list[FitOptions] = []
    app = typer.Typer()
    app.command()(shown(chosen))
    for words in (
        [],
        ["--leaves", "3", "--max-configs", "4"],
        ["--operator", "a", "--operator", "b:c"],
        ["--portable", "--leaves", "8"],
        ["--max-slowdown", "1.5", "--weights", "mine.csv", "--baseline", "liger"],
    ):
        assert CliRunner().invoke(app, words).exit_code == 0
        assert chosen[-1] == options_of(" ".join(["normtune", "fit", *words]))
    assert str(CliRunner().invoke(app, ["--leaves", "0"]).exception) == "--leaves is 0: expected 1 to 128"
    assert CliRunner().invoke(app, ["--no-portable"]).exit_code == 2
