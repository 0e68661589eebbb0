"""Options of `normtune fit` in pyproject.toml: used where the command line gives none, and nothing else is chosen."""

import re
from pathlib import Path

import pytest

from normtune.errors import UsageError
from normtune.heuristics.commands.project import defaults
from normtune.tests.commands import main, one_line


def written(text: str) -> Path:
    Path("pyproject.toml").write_text(text)
    return Path()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


@pytest.mark.slow
def test_a_fit_takes_the_options_and_the_header_has_them() -> None:
    written('[tool.normtune]\nleaves = 2\ntie = 0.5\noperator = ["rms_norm_forward:no_rstd"]\nbaseline = "none"\n')
    words = ("fit", "--recording", "nvidia-h200", "--out", "table.py")
    done = main(*words)
    assert done.exit_code == 0, done.output
    took = "--operator rms_norm_forward:no_rstd --leaves 2 --tie 0.5 --baseline none"
    assert f"normtune: options of pyproject.toml: {took}\n" in done.stderr
    line = Path("table.py").read_text().splitlines()[1]
    assert line == f"# Regenerate: normtune fit --recording nvidia-h200 {took} --out table.py"
    assert main("check", "--strict", "table.py").exit_code == 0
    assert main(*words, "--leaves", "1").exit_code == 0
    assert "--leaves 1 --tie 0.5" in Path("table.py").read_text().splitlines()[1]


def test_without_a_table_there_are_none() -> None:
    assert defaults(Path()) == {}
    assert defaults(written('[project]\nname = "a"\n')) == {} == defaults(written("[tool.normtune]\n"))


def test_a_file_in_the_folder_may_be_named(folder: Path) -> None:
    (folder / "inside").mkdir()
    (folder / "inside/weights.csv").touch()
    assert defaults(written('[tool.normtune]\nweights = "inside/weights.csv"\n')) == {"weights": "inside/weights.csv"}
    assert defaults(written('[tool.normtune]\nsame-bits-as = "later.py"\n')) == {"same_bits_as": "later.py"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("leaves = true", "leaves is True: expected an integer"),
        ('leaves = "8"', "leaves is '8': expected an integer"),
        ("leaves = 0", "leaves is 0: expected 1 to"),
        ("tie = 1000", "tie is 1000: expected percent"),
        ("operator = [1]", "operators is '[1]': expected a list of names"),
        ('store = "other.db"', "'store' in [tool.normtune]: expected one of leaves, operator"),
        ('load = ["a.py"]', "'load' in [tool.normtune]: expected one of"),
        ('out = "a.py"', "'out' in [tool.normtune]: expected one of"),
        ('weights = "/etc/passwd"', "weights is '/etc/passwd': expected a file in the folder of pyproject.toml"),
        ('weights = "../outside.csv"', "weights is '../outside.csv': expected a file in the folder"),
        ('baseline = "link.py"', "baseline is 'link.py': expected a file in the folder of pyproject.toml"),
        ("leaves = ", "cannot be read (Invalid value"),
    ],
)
def test_nothing_else_is_chosen(text: str, says: str, folder: Path) -> None:
    (folder.parent / "outside.csv").touch()
    (folder / "link.py").symlink_to(folder.parent / "outside.csv")
    with one_line(UsageError, "^pyproject.toml.*" + re.escape(says)):
        defaults(written(f"[tool.normtune]\n{text}\n"))
    with one_line(UsageError, "tool.normtune is '3'"):
        defaults(written("[tool]\nnormtune = 3\n"))
