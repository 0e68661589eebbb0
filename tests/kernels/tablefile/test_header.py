import json
from typing import Any

import pytest

from normtune.errors import UsageError
from normtune.kernels.tablefile.facts import decoded, encoded
from normtune.kernels.tablefile.header import FIRST_LINE, FORMAT, Data, Gpu, Header, comment_of, parse

HEADER = Header(
    device=Gpu("Test GPU, with a comma (replay)", "sm_90", 132),
    software={"triton": "3.6.0", "torch": "2.11.0"},
    data=Data("sha256:1", 2, "2026-11-20"),
    kernels={"a": "sha256:3", "b": "sha256:4"},
    command={"store": "test", "options": {"leaves": 3}, "out": "table.py"},
    functions=({"key": ["a", "bfloat16"]}, {"key": ["a:no_b", "float32"]}),
    body="sha256:5",
    without_data=(("a", "float16", "bfloat16"),),
    searched=("a  bfloat16:   two spaces and three",),
)


BODY = "\nx = 1\n"


def written(header: Header, above: str = "") -> str:
    """A table with a comment of two lines for people."""
    return f"{above}{FIRST_LINE}\n# Regenerate: normtune\n{BODY}\n\n{header.text()}\n"


def test_facts_are_read_as_they_were_written() -> None:
    assert parse(written(HEADER), "table.py") == (HEADER, BODY)
    assert HEADER.gpu == "Test GPU, with a comma"


def test_long_lines_are_wrapped_and_read_as_one() -> None:
    long = HEADER._replace(searched=(("word  " * 30).strip(), "x" * 200, "é\x1b\u202e \\u0020"))
    assert all(len(line) <= 88 or " " not in line[4:] for line in long.text().split("\n"))
    assert parse(written(long), "table.py") == (long, BODY)


def test_another_figure_changes_a_line_of_its_function_alone() -> None:
    other = HEADER._replace(functions=(HEADER.functions[0], HEADER.functions[1] | {"cost": 7}))
    lines = [header.text().split("\n") for header in (HEADER, other)]
    changed = [pair for pair in zip(*lines, strict=True) if pair[0] != pair[1]]
    assert changed == [('# {"key": ["a:no_b", "float32"]}', '# {"key": ["a:no_b", "float32"], "cost": 7}')]


OLDER = "# Format:   5\n# Facts:    {}\n\nx = 1\n"


@pytest.mark.parametrize(
    "text",
    [
        f"{FIRST_LINE}\n{OLDER}",
        f"{FIRST_LINE}\n",
        written(HEADER).partition("# Facts")[0],
        *(written(HEADER).replace(f"of format {FORMAT}:", f"of format {other}:") for other in (4, 6, "9" * 5000, "")),
    ],
)
def test_another_format_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text, "table.py")
    assert str(refused.value) == (
        f"table.py has no facts of format {FORMAT}, the only one that this normtune reads: restore the file, or fit it "
        "again by its line Regenerate"
    )


@pytest.mark.parametrize("below", ["x = 1\n", "# mine\n", "\n# mine\n", "[]\n"])
def test_nothing_stands_below_the_facts(below: str) -> None:
    with pytest.raises(UsageError, match=r"of table\.py"):
        parse(written(HEADER) + below, "table.py")


@pytest.mark.parametrize("above", ["# SPDX-License-Identifier: MIT\n", "#!/usr/bin/env python\n# © somebody\n\n#\n"])
def test_a_licence_may_stand_above_the_first_line(above: str) -> None:
    lines = written(HEADER, above).split("\n")
    assert lines[comment_of(lines)] == [FIRST_LINE, "# Regenerate: normtune"]
    assert parse(written(HEADER, above), "table.py") == (HEADER, BODY)


def test_only_comments_may_stand_there() -> None:
    with pytest.raises(UsageError, match=r"table\.py is no table of normtune: its first line is not"):
        parse(f"import os\n{written(HEADER)}", "table.py")


@pytest.mark.parametrize("marker", ["<<<<<<< HEAD", ">>>>>>> topic"])
@pytest.mark.parametrize("place", [0, 3, -1])
def test_a_marker_of_a_merge_conflict_is_told_with_its_line(marker: str, place: int) -> None:
    lines = written(HEADER).split("\n")
    lines.insert(place, marker)
    with pytest.raises(UsageError) as refused:
        parse("\n".join(lines), "table.py")
    told = f"line {lines.index(marker) + 1} of table.py is a merge-conflict marker ({marker[:7]}): resolve the conflict"
    assert str(refused.value).startswith(told)


def with_facts(facts: str) -> str:
    """A table with other facts."""
    head, line, _ = written(HEADER).partition(f"# Facts of format {FORMAT}:\n")
    return f"{head}{line}# {facts}\n"


def changed(**facts: Any) -> str:
    return with_facts(json.dumps(encoded(HEADER) | facts))


GPU = {"label": "GPU", "target": "sm_90", "sms": 132}


def test_facts_of_another_version_are_left_out() -> None:
    text = changed(device=GPU | {"price": 1}, weather="fair")
    assert parse(text, "table.py")[0].device == Gpu("GPU", "sm_90", 132)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (changed(device="GPU"), "Facts.device is 'GPU', expected an object"),
        (changed(device=GPU | {"sms": 0}), "0 SMs, expected 1 to 4096"),
        (changed(device=GPU | {"sms": 10**30}), "SMs, expected 1 to 4096"),
        (changed(device=GPU | {"sms": "132"}), "Facts.device.sms is '132', expected an integer"),
        (changed(device=GPU | {"sms": True}), "Facts.device.sms is True, expected an integer"),
        (changed(device=GPU | {"sms": 1.5}), "Facts.device.sms is 1.5, expected an integer"),
        (changed(device={"label": "GPU", "target": "sm_90"}), "Facts.device lacks sms"),
        (changed(data=["sha256:1", 2, ""]), "Facts.data is"),
        (changed(data={"digest": "", "measurements": 0, "date": ""}), "Data is of 0 measurements"),
        (changed(kernels={"a": 1}), "Facts.kernels.a is 1, expected text"),
        (changed(functions={}), "Facts.functions is {}, expected a list"),
        (changed(functions=[1]), "expected an object"),
        (changed(without_data=[["a", "b"]]), "expected a list of 3"),
        (changed(portable="no"), "Facts.portable is 'no', expected true or false"),
        (with_facts("[]"), "Facts is "),
        (with_facts("{"), "cannot be read"),
        (with_facts('{"device": NaN}'), "NaN is no number of JSON"),
        (with_facts("[" * 100_000), "cannot be read"),
        (with_facts("9" * 50_000), "Exceeds the limit"),
    ],
    ids=range(19),
)
def test_facts_that_are_none_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text, "table.py")
    assert why in str(refused.value)
    assert len(str(refused.value)) < 400 and str(refused.value).isprintable()


def test_defaults_are_left_out_and_come_back() -> None:
    gpu = Gpu("a", "b", 1)
    assert encoded(gpu) == {"label": "a", "target": "b", "sms": 1}
    assert decoded(Gpu, encoded(gpu), "gpu") == gpu
