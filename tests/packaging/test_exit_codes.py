"""The rule of exit codes in docs/commands.md, over all kinds of bad stores, files and devices."""

import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from normtune.results.database import schema
from normtune.results.database.store import Store
from normtune.tests.commands import main

TABLE = Path(__file__).parents[2] / "heuristics/tables/nvidia_h200_qk_norm.py"
REPLAY = ("--device", "replay:nvidia-h200")
READERS = {
    "fit": ("fit",),
    "show": ("show",),
    "diff": ("diff", "liger", "quack"),
    "data list": ("data", "list"),
    "data list --runs": ("data", "list", "--runs"),
    "data export": ("data", "export", "--out", "out.parquet"),
    "data drop": ("data", "drop", "abc"),
}
WRITERS = {
    "sweep": ("sweep", *REPLAY, "--shapes", "1x64"),
    "data merge": ("data", "merge", "good.parquet"),
}
# What is wrong with a store, and the exit codes of commands that read and that write it.
STORES = {
    "missing.db": (2, None),
    "folder": (2, 2),
    "text.db": (2, 2),
    "empty.db": (2, None),
    "cut.db": (1, 1),
    "other.db": (2, 2),
    "newer.db": (1, 1),
    "no/folder.db": (2, 2),
    "mysql://host/name": (2, 2),
    "sqlite:///missing.db?mode=ro": (2, 2),
    "": (2, 2),
}
CALLS = [
    (2, "check missing.py"),
    (2, "check text.db"),
    (2, "check folder"),
    (1, "check edited.py --quick"),
    (2, "check {table} --device tpu"),
    (2, "check {table} --device replay:nothing"),
    (2, "check {table} --format xml"),
    (2, "sweep --device tpu --store new.db"),
    (2, "sweep --device replay:nothing --store new.db"),
    (2, "sweep --device replay:nvidia-h200 --store new.db --shapes missing.csv"),
    (2, "sweep --device replay:nvidia-h200 --store new.db --baseline missing.py"),
    (2, "compile sm_1 out"),
    (2, "compile sm_90 text.db"),
    (2, "fit --store good.db --weights missing.csv"),
    (2, "fit --store good.db --weights text.db"),
    (2, "fit --store good.db --baseline missing.py"),
    (2, "fit --store good.db --out text.db"),
    (2, "fit --store good.db --out no/folder.py"),
    (2, "fit --store good.db --operator nothing"),
    (1, "fit --store good.db --leaves 1 --max-slowdown 1"),
    (2, "fit --store good.db --install"),
    (2, "fit --store nothing"),
    (2, "show missing.py --store good.db"),
    (2, "show --store missing.parquet"),
    (1, "show --store text.parquet"),
    (2, "diff missing.py liger --store good.db"),
    (2, "lookup missing.py rms_norm_forward bfloat16 rows=1 hidden=64"),
    (2, "lookup {table} nothing bfloat16 rows=1 hidden=64"),
    (2, "data merge missing.parquet --store new.db"),
    (1, "data merge text.parquet --store new.db"),
    (2, "data export --store good.db --out out.txt"),
    (2, "data list --load missing.py"),
    (2, "fit --no-such-option"),
    (2, "nothing"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a good store and every kind of bad one."""
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        words = ("--shapes", "1,64x256", "--operator", "rms_norm_forward", "--store", "good.db")
        assert main("sweep", *REPLAY, *words).exit_code == 0
        assert main("data", "export", "--store", "good.db", "--out", "good.parquet").exit_code == 0
        Path("folder").mkdir()
        Path("text.db").write_text("This is text.\n" * 100)
        Path("text.parquet").write_text("This is text.\n")
        Path("empty.db").touch()
        with sqlite3.connect("other.db") as other:
            other.execute("CREATE TABLE a (b)")
        Store.open("sqlite:///newer.db").close()
        with sqlite3.connect("newer.db") as newer:
            newer.execute(f"UPDATE {schema.schema.name} SET version = 99")
        Path("cut.db").write_bytes(Path("good.db").read_bytes()[:6000])
        Path("edited.py").write_text(re.sub(r"rows >= (\d+)", r"rows >= 1\1", TABLE.read_text()))
    return folder


@pytest.fixture
def place(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of these files, in the current folder."""
    monkeypatch.chdir(shutil.copytree(files, tmp_path / "place"))
    return tmp_path / "place"


def ends(place: Path, code: int, *arguments: object) -> None:
    """Expects an exit code, one line about it without a traceback, and files as they were."""
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    done = main(*arguments)
    assert done.exit_code == code, done.output
    if not done.stderr.startswith("Usage:"):
        lines = done.stderr.splitlines() or done.stdout.splitlines()
        assert lines[-1].startswith("normtune: error: ") or arguments[0] == "check", done.output
    after = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert after == before


@pytest.mark.slow
@pytest.mark.parametrize("command", [*READERS, *WRITERS])
@pytest.mark.parametrize("store", STORES)
@pytest.mark.one_in(3)
def test_a_bad_store(place: Path, store: str, command: str) -> None:
    reading, writing = STORES[store]
    code = reading if command in READERS else writing
    if code is None:
        pytest.skip("a store is created there")
    ends(place, code, *(READERS | WRITERS)[command], "--store", store)


@pytest.mark.slow
@pytest.mark.parametrize(("code", "call"), CALLS)
def test_a_bad_file_or_device(place: Path, code: int, call: str) -> None:
    ends(place, code, *call.format(table=TABLE).split())


def test_the_rule_is_the_one_in_the_documents(root: Path) -> None:
    table = re.findall(r"^\| (\d+) \| (.+) \|$", (root / "docs/commands.md").read_text(), re.MULTILINE)
    assert [int(code) for code, _ in table] == [0, 1, 2, 3, 130, 141, 143]
    assert {code for codes in STORES.values() for code in codes if code} | {code for code, _ in CALLS} == {1, 2}
