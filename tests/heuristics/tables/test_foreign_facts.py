"""Facts in the header of a table of unknown origin, in `check`: judged or refused, whatever they are."""

import json
from pathlib import Path
from typing import Any

import pytest

from normtune.errors import UsageError
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.writing.emit import module_text
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.tablefile.facts import encoded
from normtune.kernels.tablefile.header import parse
from normtune.results.evidence import Evidence
from normtune.tests.heuristics.made_up import SHAPES, as_command
from normtune.tuner.checking import subject
from normtune.tuner.checking.offline import check

COMMAND = "normtune fit --store test-gpu --leaves 2 --out table.py"


@pytest.fixture
def table(measure, penalty, run, spec, tmp_path: Path, record_as) -> Path:
    """A table of a recording."""
    measured = Evidence.from_measurements(measure(penalty, SHAPES, fingerprint=fingerprint(spec)), [run])
    record_as(measured)
    path = tmp_path / "table.py"
    path.write_text(module_text(fit(measured, FitOptions(leaves=2)), as_command(COMMAND)))
    assert check(path).failures == ()
    return path


def stated(table: Path, **facts: Any) -> Path:
    """The table with other facts, on one line, and the comment for people as it was."""
    text = table.read_text()
    head, line, _ = text.partition("# Facts of format 5:\n")
    table.write_text(f"{head}{line}# {json.dumps(encoded(parse(text, 'table')[0]) | facts)}\n")
    return table


def command(**words: Any) -> dict[str, Any]:
    return {"store": "test-gpu", "options": {"leaves": 2}, "out": "table.py"} | words


def test_the_facts_may_be_laid_out_otherwise(table: Path) -> None:
    report = check(stated(table))
    assert report.failures == ()
    assert any("equal, but for its formatting, to a fit of" in note for note in report.notes)


@pytest.mark.parametrize("quick", [False, True])
def test_lines_that_say_something_else_than_the_facts_are_told(table: Path, quick: bool) -> None:
    stated(table, device={"label": "Test GPU", "target": "sm_90", "sms": 133})
    assert any("its first lines are not those" in why for why in check(table, quick).failures)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("words", [{"out": "../other.py"}, {"load": ["a.py"]}])
def test_a_command_that_is_not_that_of_the_line_is_told(table: Path, words: dict[str, Any]) -> None:
    stated(table, command=command(**words))
    for quick in (False, True):
        told = "".join(check(table, quick).failures)
        assert "its first lines are not those" in told or "its command" in told


def test_a_command_that_cannot_be_read_is_one_failure_of_a_check(table: Path) -> None:
    failures = check(stated(table, command=command(out=["x"])), quick=True).failures
    assert [why for why in failures if "its command cannot be read" in why]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"command": command(options={"leaves": 129})}, "leaves is 129: expected 1 to 128"),
        ({"command": command(options={"leaves": 10**300})}, "expected 1 to 128"),
        ({"command": command(options={"tie_percent": 1e999})}, "cannot be read"),
        ({"command": command(options={"operators": ["other"]})}, "no measurements of operator 'other'"),
        ({"command": command(options={"faster": True})}, "the option 'faster': expected one of leaves"),
        ({"command": command(options=3)}, "command.options is 3, expected an object"),
        ({"command": command(out=["x"])}, "command.out is ['x'], expected text"),
        ({"functions": [{"key": ["toy", "bfloat16"]}]}, "functions[0] lacks "),
        (
            {"functions": [{"key": ["toy", "bfloat16"], "figures": []}]},
            "figures is [], expected",
        ),
    ],
)
def test_facts_that_no_fit_has_are_refused_with_the_reason(table: Path, facts: dict[str, Any], why: str) -> None:
    try:
        told = "".join(check(stated(table, **facts)).failures)
    except UsageError as error:
        told = str(error)
    assert why in told and "Traceback" not in told
    assert len(told) < 2000


def test_figures_of_more_leaves_than_a_fit_has_are_refused(table: Path) -> None:
    header, _ = parse(table.read_text(), "table")
    (one,) = (function for function in header.functions if function["key"] == ["toy", "bfloat16"])
    many = one | {"figures": one["figures"] | {"leaves": 129, "asked": 129}}
    told = "".join(check(stated(table, functions=[many])).failures)
    assert "its functions need 1 to 128 leaves" in told


def test_a_figure_that_was_edited_fails_by_the_data(table: Path) -> None:
    header, _ = parse(table.read_text(), "table")
    better = [one | {"figures": one["figures"] | {"gap": 12345}} for one in header.functions]
    told = "".join(check(stated(table, functions=better)).failures)
    assert "it differs from a fit of recording test-gpu" in told


def test_a_measured_check_refuses_facts_of_another_form(table: Path) -> None:
    with pytest.raises(UsageError, match=r"functions\[0\]"):
        subject.read(stated(table, functions=[{}]))
