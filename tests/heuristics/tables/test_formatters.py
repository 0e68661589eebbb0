"""A formatted table counts as unedited, and formatters leave the output of `fit` as it is."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from normtune.errors import UsageError
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.fitting.result import FittedFunction
from normtune.heuristics.writing.emit import body_text, module_text
from normtune.heuristics.writing.write import check_table, write_table
from normtune.kernels.key import Key
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate, syntax, template
from normtune.kernels.tablefile.header import body_hash, parse
from normtune.kernels.tablefile.tree import Leaf, Split, Tree
from normtune.results.evidence import Evidence
from normtune.results.exchange import recording
from normtune.tests.heuristics.made_up import as_command, decided, everywhere, rehashed
from normtune.tuner.checking.offline import check

GOLDEN = Path(__file__).parents[1] / "writing" / "golden_table.txt"
TABLES = [GOLDEN, *locate.by_name().values(), *sorted((Path(__file__).parents[3] / "examples").glob("*_h200.py"))]
FORMATTERS = {
    "black": ["black", "--quiet"],
    "ruff": ["ruff", "format", "--quiet", "--isolated", "--no-cache"],
}
COMMAND = "normtune fit --store test-gpu --leaves 3 --out table.py"


def formatted(name: str, width: int, path: Path) -> str:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    done = subprocess.run([sys.executable, "-m", *FORMATTERS[name], f"--line-length={width}", path], check=False)
    assert done.returncode == 0
    return path.read_text()


def deep(depth: int) -> Tree:
    """A tree as deep as that, whose configs have the longest names."""
    config = RMSNormConfig("persistent", 16, 4 << depth % 3, 4, 2, "dependent", 4096)
    return Split("rows", 1 + depth, Leaf(config), deep(depth - 1)) if depth else Leaf(config)


@pytest.fixture
def table(evidence: Evidence, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table that `check` fits again."""
    monkeypatch.setattr(recording, "recordings", lambda: ["test-gpu"])
    monkeypatch.setattr(recording, "load_recording", lambda name, *_: evidence)
    path = tmp_path / "table.py"
    path.write_text(module_text(fit(evidence, FitOptions(leaves=3)), as_command(COMMAND)))
    return path


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", FORMATTERS)
@pytest.mark.parametrize("width", [88, 100])
def test_what_is_written_is_formatted(name: str, width: int, tmp_path: Path) -> None:
    path = tmp_path / "table.py"
    for table in TABLES:
        shutil.copy(table, path)
        text = formatted(name, width, path)
        # What is so deep that 88 columns break it, 100 need not.
        if width == template.WIDTH:
            assert text == table.read_text()
        header, body = parse(text, table.name)
        assert body_hash(body) == header.body
    text = GOLDEN.read_text()
    assert max(map(len, text.split("\n"))) <= 88


@pytest.mark.parametrize("name", FORMATTERS)
def test_long_names_in_deep_trees_are_formatted(name: str, tmp_path: Path) -> None:
    path = tmp_path / "table.py"
    key = Key.of("long_operator" * 4, "no_thing", "bfloat16")
    function = FittedFunction(key, deep(10), ("bfloat16", "float16"), decided(1).figures)
    text = body_text([function], everywhere([function])).lstrip()
    assert "return (\n" in text
    path.write_text(text)
    assert formatted(name, template.WIDTH, path) == text


def test_line_ends_of_windows_are_no_edit(table: Path) -> None:
    table.write_bytes(table.read_bytes().replace(b"\n", b"\r\n"))
    report = check(table)
    assert report.failures == () and any("to a fit of recording test-gpu" in note for note in report.notes)
    check_table(table, force=False)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", FORMATTERS)
@pytest.mark.parametrize("width", [40, 79, 88, 120])
def test_a_formatter_is_no_edit(table: Path, name: str, width: int) -> None:
    # As if written otherwise: what `fit` writes would stay as it is.
    by_hand = (
        table.read_text()
        .replace(",\n        ) from", "\n        ) from")
        .replace("TABLES[operator, dtype]", "(TABLES[operator, dtype])")
    )
    table.write_text(re.sub(r'^    \("toy"', "    ('toy'", by_hand, flags=re.MULTILINE))
    assert formatted(name, width, table) != by_hand
    assert "table = TABLES[" in table.read_text()
    report = check(table)
    assert report.failures == ()
    assert any("to a fit of recording test-gpu" in note for note in report.notes)
    check_table(table, force=False)
    assert locate.load(table).lookup("toy", "bfloat16", 1, 64)


def test_a_docstring_of_other_width_and_a_comment_are_no_edit_but_a_comment_is_kept(table: Path) -> None:
    text = table.read_text()
    wrapped = text.replace("several programs a\n            row", "several\n        programs a row")
    assert wrapped != text
    table.write_text(wrapped)
    assert check(table).failures == ()
    check_table(table, force=False)
    table.write_text(text.replace("import NamedTuple", "import NamedTuple  # noqa"))
    assert check(table).failures == ()
    with pytest.raises(UsageError, match="it was edited since normtune wrote it; --force overwrites it"):
        check_table(table, force=False)


def test_a_licence_above_the_first_line_is_no_edit_and_stays(table: Path) -> None:
    text, licence = table.read_text(), "# SPDX-License-Identifier: MIT\n\n"
    table.write_text(licence + text)
    report = check(table)
    assert report.failures == ()
    taken = "cross-validation and what shares a function are taken from its facts"
    assert f"equal, byte for byte, to a fit of recording test-gpu; {taken}" in report.notes
    assert "it answers at rows 1 to 131072, hidden 32 to 8192; the next table elsewhere, or the default config" in (
        report.notes
    )
    check_table(table, force=False)
    write_table(text, table)
    assert table.read_text() == licence + text


def test_the_difference_that_is_shown_is_not_the_formatting(table: Path) -> None:
    formatted("ruff", 40, table)
    text = table.read_text()
    assert text.count("hidden <= 512") == 1
    table.write_text(rehashed(text.replace("hidden <= 512", "hidden <= 520")))
    (failure,) = check(table).failures
    changed = [line for line in failure.split("\n") if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert changed == ["-    if hidden <= 520:", "+    if hidden <= 512:"]


@pytest.mark.slow
def test_the_hash_is_the_same_on_every_python() -> None:
    found = [sys.executable, *(shutil.which(f"python3.{minor}") for minor in range(11, 20))]
    found += [str(path) for path in Path.home().glob(".pyenv/versions/3.1[1-9]*/bin/python")]
    # What pyenv puts in the path may start none.
    pythons = [path for path in found if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0]
    code = "; ".join(
        (
            "import hashlib, importlib.util as u, sys",
            "s = u.spec_from_file_location('syntax', sys.argv[1])",
            "m = u.module_from_spec(s)",
            "s.loader.exec_module(m)",
            "print(hashlib.sha256(m.syntax(sys.stdin.read()).encode()).hexdigest())",
        )
    )
    for table in TABLES:
        _, body = parse(table.read_text(), str(table))
        for python in pythons:
            run = subprocess.run(
                [python, "-I", "-c", code, syntax.__file__], input=body, capture_output=True, text=True
            )
            assert run.returncode == 0, run.stderr
            assert f"sha256:{run.stdout.strip()}" == body_hash(body), python


def test_the_hash_is_of_names_and_not_of_what_a_python_prints() -> None:
    assert syntax.syntax("x = f(1, 'é')  # c\n") == (
        "Module(body=[Assign(targets=[Name(id='x')],value=Call(args=[Constant(value=1),Constant(value='\\xe9')],"
        "func=Name(id='f')))])"
    )
