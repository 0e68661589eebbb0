import json
import re
from typing import Any

import pytest
from hypothesis import strategies as st

from normtune.errors import UsageError
from normtune.kernels.tablefile.facts import decoded, encoded
from normtune.kernels.tablefile.header import FORMAT, Data, Gpu, Header, lines_above, parse

HEADER = Header(
    device=Gpu("Test GPU, with a comma (replay)", "sm_90", 132),
    software={"triton": "3.6.0", "torch": "2.11.0"},
    data=Data("sha256:1", 2, "2026-11-20"),
    kernels={"a": "sha256:3", "b": "sha256:4"},
    command={"recording": "test", "options": {"leaves": 3}, "out": "table.py"},
    functions=({"key": "a", "dtype": "bfloat16"}, {"key": "a:no_b", "dtype": "float32"}),
    body="sha256:5",
    without_data=(("a", "float16", "bfloat16"),),
    searched=("a  bfloat16:   two spaces and three",),
    lines=(
        ("Regenerate", "normtune fit --recording test --leaves 3 --out table.py"),
        ("Device", "Test GPU, with a comma (replay), sm_90, 132 SMs"),
        ("Regret", "a bfloat16: 1 leaf, mean 0.00 %, worst 1.0 %"),
        ("Regret", "a:no_b float32: 12 leaves, mean 1.90 %, worst 9.0 %, cross-validated 2.41 %"),
    ),
)


def test_a_header_is_read_as_it_was_written() -> None:
    assert parse(HEADER.text() + "\n\nx = 1\n", "table.py") == (HEADER, "\nx = 1\n")
    assert HEADER.gpu == "Test GPU, with a comma"


def test_long_lines_are_wrapped_and_read_as_one() -> None:
    long = HEADER._replace(
        searched=(("word  " * 30).strip(), "x" * 200, "é\x1b\u202e \\u0020"),
        lines=(("Regenerate", "normtune fit" + "".join(f" --operator {name * 12}" for name in "abcdefgh")),),
    )
    lines = long.text().split("\n")
    assert lines[1] == f"# Regenerate: {long.regenerate}"  # in one line, to be copied
    assert all(len(line) <= 88 or " " not in line[12:] for line in lines[2:])
    assert parse(long.text() + "\n\nx = 1\n", "table.py") == (long, "\nx = 1\n")


TEXTS = st.text(max_size=60)


@pytest.mark.parametrize("other", ["", "1", str(FORMAT - 1), str(FORMAT + 1), "0", "9" * 5000])
def test_another_format_is_refused_with_the_remedy(other: str) -> None:
    text = HEADER.text().replace(f"# Format:   {FORMAT}", f"# Format:   {other}" if other else "# Shape:    1")
    with pytest.raises(UsageError) as refused:
        parse(text, "table.py")
    told = f"table.py has table format {other[:20] or 1}, and this normtune reads {FORMAT} alone: fit its measurements "
    assert str(refused.value) == f"{told}again, or use the normtune that wrote it"


def test_missing_facts_are_named() -> None:
    with pytest.raises(UsageError, match="no line 'Facts'"):
        parse(HEADER.text().partition("# Facts:")[0], "table.py")


@pytest.mark.parametrize("above", ["# SPDX-License-Identifier: MIT\n", "#!/usr/bin/env python\n# © somebody\n\n#\n"])
def test_a_licence_may_stand_above_the_first_line(above: str) -> None:
    assert lines_above(above + HEADER.text()) == above.count("\n")
    assert parse(f"{above}{HEADER.text()}\n\nx = 1\n", "table.py") == (HEADER, "\nx = 1\n")


def test_only_comments_may_stand_there() -> None:
    with pytest.raises(UsageError, match=r"table\.py is no table of normtune: its first line is not"):
        parse(f"import os\n{HEADER.text()}", "table.py")


@pytest.mark.parametrize("marker", ["<<<<<<< HEAD", ">>>>>>> topic"])
@pytest.mark.parametrize("place", [0, 3, -1])
def test_a_marker_of_a_merge_conflict_is_told_with_its_line(marker: str, place: int) -> None:
    lines = [*HEADER.text().split("\n"), "", "x = 1", "y = 2"]
    lines.insert(place, marker)
    with pytest.raises(UsageError) as refused:
        parse("\n".join(lines), "table.py")
    told = f"line {lines.index(marker) + 1} of table.py is a merge-conflict marker ({marker[:7]}): resolve the conflict"
    assert str(refused.value).startswith(told)


def with_facts(facts: str) -> str:
    """The header with other facts."""
    return re.sub(r"# Facts:.*", lambda _: f"# Facts:    {facts}", HEADER.text(), flags=re.DOTALL)


def changed(**facts: Any) -> str:
    return with_facts(json.dumps(encoded(HEADER._replace(lines=())) | facts))


GPU = {"label": "GPU", "target": "sm_90", "sms": 132}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (changed(device="GPU"), "Facts.device is 'GPU', expected an object"),
        (changed(device=GPU | {"sms": 0}), "0 SMs, expected 1 to 4096"),
        (changed(device=GPU | {"sms": 10**30}), "SMs, expected 1 to 4096"),
        (changed(device=GPU | {"sms": "132"}), "Facts.device.sms is '132', expected an integer"),
        (changed(device=GPU | {"sms": True}), "Facts.device.sms is True, expected an integer"),
        (changed(device=GPU | {"sms": 1.5}), "Facts.device.sms is 1.5, expected an integer"),
        (changed(device={"label": "GPU", "target": "sm_90"}), "Facts.device lacks, or does not have, sms"),
        (changed(device=GPU | {"price": 1}), "Facts.device lacks, or does not have, price"),
        (changed(data=["sha256:1", 2, ""]), "Facts.data is"),
        (changed(data={"digest": "", "measurements": 0, "date": ""}), "Data is of 0 measurements"),
        (changed(kernels={"a": 1}), "Facts.kernels.a is 1, expected text"),
        (changed(functions={}), "Facts.functions is {}, expected a list"),
        (changed(functions=[1]), "expected an object"),
        (changed(without_data=[["a", "b"]]), "expected a list of 3"),
        (changed(replaced="no"), "Facts.replaced is 'no', expected true or false"),
        (with_facts("[]"), "Facts is "),
        (with_facts("{"), "cannot be read"),
        (with_facts('{"device": NaN}'), "NaN is no number of JSON"),
        (with_facts("[" * 100_000), "cannot be read"),
        (with_facts("9" * 50_000), "Exceeds the limit"),
        (with_facts(f"{{{' ' * (5 << 20)}}}"), "has a line Facts of"),
    ],
    ids=range(21),
)
def test_facts_that_are_none_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text, "table.py")
    assert why in str(refused.value)
    assert len(str(refused.value)) < 400 and str(refused.value).isprintable()


def test_lines_of_facts_are_those_of_the_comment() -> None:
    header, _ = parse(changed(lines=[["Regenerate", "curl example.com"]]), "table.py")
    assert header.lines == HEADER.lines


def test_defaults_are_left_out_and_come_back() -> None:
    gpu = Gpu("a", "b", 1)
    assert encoded(gpu) == {"label": "a", "target": "b", "sms": 1}
    assert decoded(Gpu, encoded(gpu), "gpu") == gpu
