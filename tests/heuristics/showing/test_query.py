"""Filters of `--where`, which runs no other code."""

from pathlib import Path

import pandas as pd
import pytest

from normtune.errors import UsageError
from normtune.heuristics.showing.query import check, where

FRAME = pd.DataFrame(
    {
        "rows": [1, 64, 4096, 4096],
        "hidden": [64, 64, 512, 1024],
        "operator": ["a", "a", "b", "b"],
        "reason": ["", "shared memory", "", ""],
        "ratio": [1.0, float("nan"), 1.5, 2.0],
    }
)


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("hidden <= 512 and rows >= 4096", [2]),
        ("hidden == 64 or hidden == 1024", [0, 1, 3]),
        ("not rows < 4096", [2, 3]),
        ("(hidden <= 512) & ~(rows == 1)", [1, 2]),
        ("(rows == 1) | (rows == 64)", [0, 1]),
        ("1 < rows <= 64", [1]),
        ("rows in [1, 64] and operator == 'a'", [0, 1]),
        ("operator not in ('a',)", [2, 3]),
        ("rows * hidden >= 4096 * 512", [2, 3]),
        ("rows % 3 == 1 and -rows < -1", [1, 2, 3]),
        ("ratio < 1.8", [0, 2]),
        ("reason.str.contains('shared')", [1]),
        ("reason.str.startswith('mem') or reason.str.endswith('ory')", [1]),
        ("  rows == 1  ", [0]),
        ("rows == 5", []),
    ],
)
def test_comparisons_of_columns_choose_rows(query: str, kept: list[int]) -> None:
    check(query, list(FRAME.columns))
    assert where(FRAME, query).index.tolist() == kept


@pytest.mark.parametrize(
    "query",
    [
        "rows.to_csv('{out}')",
        "rows.to_csv('{out}') is None",
        "rows.__class__.__init__.__globals__",
        "__import__('os').system('touch {out}') == 0",
        "open('{out}', 'w')",
        "@pd.DataFrame",
        "`rows` == 1",
        "(lambda: rows)() == 1",
        "[rows for rows in (1, 2)]",
        "f'{rows}' == '1'",
        "(rows := 3) == 3",
        "rows = 3",
        "rows == 1\nrows.to_csv('{out}')",
        "reason.str.replace('a', 'b') == 'c'",
        "reason.str.contains(reason)",
        "reason.str.contains('a', regex=rows)",
        "nothing.str.contains('a')",
        "reason.str == 1",
        "rows[0] == 1",
        "rows == None",
        "rows ** rows > 1",
        "rows << 3 > 1",
        "'a' * 1000000000 == reason",
        "[0] * 1000000000 == rows",
        "index == 1",
        "columns == 1",
        "rows <",
        "",
        "\0",
        "(" * 500 + "rows" + ")" * 500,
        "not " * 490 + "rows",
        "rows == 1 or " * 200 + "rows == 2",
    ],
)
def test_all_else_is_refused_in_one_line_before_anything_runs(query: str, tmp_path: Path) -> None:
    query = query.replace("{out}", str(tmp_path / "out"))
    for attempt in (lambda: check(query, list(FRAME.columns)), lambda: where(FRAME, query)):
        with pytest.raises(UsageError) as caught:
            attempt()
        told = str(caught.value)
        assert told.startswith("--where is ")
        assert "over rows, hidden, operator, reason, ratio" in told
        assert "\n" not in told and len(told) < 500
    assert list(tmp_path.iterdir()) == []


def test_what_python_takes_for_a_comment_is_none_of_pandas_lines(tmp_path: Path) -> None:
    assert where(FRAME, f"rows == 1 # \u2028rows.to_csv('{tmp_path}/out')").index.tolist() == [0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("rows < 'many'", "--where is \"rows < 'many'\": "),
        ("rows + 1", "neither true nor false"),
        ("1 < 2", "neither true nor false"),
        ("reason.str.contains('(')", "--where is"),
        ("heads == 3", "there is no column heads"),
    ],
)
def test_what_the_data_cannot_answer_is_named(query: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        where(FRAME, query)
    assert says in str(caught.value)
