"""The table under test in a measured check."""

from collections.abc import Callable
from pathlib import Path

import pytest

from normtune.errors import UsageError
from normtune.heuristics.fitting.case import TableEntry
from normtune.heuristics.fitting.figures import Cost, Figures, Loss
from normtune.heuristics.writing.entries import entries
from normtune.heuristics.writing.regenerate import command_of
from normtune.kernels.key import Key
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.facts import encoded
from normtune.kernels.tablefile.header import FIRST_LINE, Header, parse
from normtune.kernels.tablefile.parse import trees
from normtune.tuner.checking import subject

SHIPPED = sorted(locate.shipped())
H200 = locate.SHIPPED / "nvidia_h200.py"


@pytest.mark.slow
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_entry_of_a_shipped_table_is_served_by_a_checked_function(path: Path) -> None:
    table = subject.read(path)
    served = [entry for one in table.functions for entry in one.served]
    assert sorted(served) == sorted(locate.load(path).trees)
    own = {entry.key for entry in entries(table.header) if not entry.donor}
    for one in table.functions:
        assert one.key in own
    assert table.notes == ()


def percents(log_ppm: int | None) -> float | None:
    return None if log_ppm is None else round(100 * (2.718281828459045 ** (log_ppm / 1e6) - 1), 2)


@pytest.mark.slow
def test_the_promise_is_that_of_the_facts() -> None:
    table = subject.read(H200)
    figures = {entry.key: entry.figures for entry in entries(table.header)}
    for one in table.functions:
        of_key, named = figures[one.key], {"plain cross-validated": "plain_validated", "plain mean": "plain"}
        mean = getattr(of_key, named[one.promise.figure], None)
        assert one.promise.mean == (of_key.loss.plain if mean is None else mean)
        assert one.promise.worst == of_key.loss.worst


@pytest.mark.slow
@pytest.mark.parametrize(
    ("figures", "beside", "figure", "mean"),
    [
        ({}, None, "plain mean", 12_500),
        ({"cross_validated": 17_300}, None, "cross-validated", 17_300),
        (
            {"cross_validated": 17_300, "plain_validated": 20_100},
            Cost(10_000, 200_000, 9, 0),
            *("plain cross-validated", 20_100),
        ),
    ],
)
def test_the_promise_is_the_best_that_the_header_says(
    figures: dict[str, int], beside: Cost | None, figure: str, mean: int
) -> None:
    text = H200.read_text()
    header, _ = parse(text, "table")
    key = Key.parse("rms_norm_forward", "bfloat16")
    entry = TableEntry(key, Figures(9, 9, 5, Loss(4_900, 12_500, 0, 30_000, 7), 0, **figures), beside)
    found, _ = subject.functions(header._replace(functions=(encoded(entry),)), trees(text))
    promise = {one.key: one.promise for one in found}[key]
    assert (promise.figure, promise.mean, promise.worst) == (figure, mean, 30_000)
    assert promise.is_off_grid == ("cross" in figure)
    assert promise.price == (beside.mean if beside else 0)
    assert promise.unpriced == promise.mean - promise.price


@pytest.mark.long
@pytest.mark.parametrize(("count", "is_of_few"), [(1, True), (1999, True), (2000, False), (131304, False)])
def test_few_measurements_of_each_function_make_its_claim_a_guess(count: int, is_of_few: bool) -> None:
    """Batch-invariant functions have those of the usual one."""
    header, _ = parse(H200.read_text(), "table")
    keys = ("rms_norm_forward", "rms_norm_forward:batch_invariant")
    own = [one for one in header.functions if one["key"][0] in keys and one["key"][1] == "bfloat16"]
    own += [one for one in header.functions if one["key"] == [keys[0], "float32"]]
    assert len(own) == 3
    changed = header._replace(data=header.data._replace(measurements=count), functions=tuple(own))
    found, _ = subject.functions(changed, trees(H200.read_text()))
    told = {one.promise.is_of_few for one in found if one.promise.figure}
    assert told == {is_of_few}


def test_plain_functions_are_neither_of_variants_nor_batch_invariant() -> None:
    plain = [one for one in subject.read(H200).functions if one.is_plain]
    assert {one.key.text for one in plain} == {"rms_norm_forward", "rms_norm_backward"}
    assert len(plain) == 4  # float16 shares those of bfloat16


def edited(tmp_path: Path, change: Callable[[Header], Header], code: tuple[str, str] = ("", "")) -> Path:
    header, body = parse(H200.read_text(), "table")
    path = tmp_path / "table.py"
    body = body.replace(*code) if code[0] else body
    path.write_text(f"{FIRST_LINE}\n{body}\n\n{change(header).text()}\n")
    return path


def test_what_changed_since_is_told(tmp_path: Path) -> None:
    path = edited(tmp_path, lambda header: header, ("hidden <= 256", "hidden <= 320"))
    assert subject.read(path).notes == ("its code was edited since it was fitted",)


def test_entries_of_operators_that_are_not_here_are_told(tmp_path: Path) -> None:
    path = edited(
        tmp_path,
        lambda header: header,
        ('("rms_norm_forward", "float16")', '("rms_norm_sideways", "float16")'),
    )
    assert (
        subject.read(path).notes[0] == "rms_norm_sideways float16 is not checked: the operator is not registered here"
    )


def test_a_command_that_is_none_is_told(tmp_path: Path) -> None:
    path = edited(tmp_path, lambda header: header._replace(command={"out": 1}))
    with pytest.raises(UsageError, match=r"cannot be read \(command.out is 1, expected text\): fit it again"):
        command_of(subject.read(path).header)


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["cold", "warm"])
def test_the_regime_is_that_of_the_data(tmp_path: Path, regime: str) -> None:
    told = "" if regime == "cold" else regime
    path = edited(tmp_path, lambda header: header._replace(data=header.data._replace(regime=told)))
    assert subject.read(path).regime == regime
