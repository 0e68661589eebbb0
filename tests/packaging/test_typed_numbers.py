"""Numbers on the command line and in files are ASCII digits: `1_000` and other digits, which Python reads, are none."""

import inspect
import re
from pathlib import Path

import pytest

from normtune import cli
from normtune.results.options import number_of
from normtune.tests.commands import refused

NO_NUMBERS = [
    "1_000",
    "\N{FULLWIDTH DIGIT ONE}",
    "\N{ARABIC-INDIC DIGIT THREE}",
    "1e1_0",
    "nan",
    "inf",
    "0x10",
    " ",
    "",
]


def test_no_option_is_read_by_a_type_that_takes_an_underscore() -> None:
    commands = [one.callback for group in (cli.app, cli.data_app) for one in group.registered_commands]
    every = [option for one in commands if one for option in inspect.signature(one).parameters.values()]
    assert len(every) > 80
    assert not [option.name for option in every if re.search(r"\b(int|float)\b", str(option.annotation))]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_other_texts_are_no_numbers(text: str) -> None:
    assert number_of(text) is None


@pytest.mark.parametrize(("text", "value"), [("12", 12), ("-3", -3), ("1.5", 1.5), (".5e-3", 0.0005), ("2.", 2.0)])
def test_numbers_keep_their_type(text: str, value: float) -> None:
    assert number_of(text) == value and type(number_of(text)) is type(value)


@pytest.mark.parametrize(
    "words",
    [
        ("fit", "--leaves", "1_0"),
        ("fit", "--max-slowdown", "1_0.5"),
        ("data", "merge", "t.csv", "--name", "A", "--target", "sm_90", "--sms", "1_32"),
        ("sweep", "--shapes", "1_024x64"),
        ("sweep", "--shapes", "64x\N{FULLWIDTH DIGIT ONE}"),
        ("sweep", "--budget", "\N{FULLWIDTH DIGIT ONE}s"),
        ("sweep", "--device", "cuda:\N{FULLWIDTH DIGIT ONE}"),
        ("data", "merge", "t.csv", "--sms", "1_32"),
    ],
)
def test_an_option_refuses_them(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = refused(*words)
    assert repr(words[-1]) in told and "expected" in told


@pytest.mark.parametrize("column", ["rows", "hidden", "milliseconds"])
def test_a_file_of_measurements_refuses_them(column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"operator": "mine", "dtype": "bfloat16", "rows": "64", "hidden": "64", "BLOCK": "1", "milliseconds": "2"}
    row[column] = "1_0"
    Path("t.csv").write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    assert "'1_0'" in refused("data", "merge", "t.csv", "--name", "A", "--target", "sm_90")
