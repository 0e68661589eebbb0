"""The command in a table's header, run from the table's folder, writes the same table, wherever the files are."""

import os
import shlex
from pathlib import Path

import pytest

import normtune
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.tablefile import locate
from normtune.results.database.store import Store
from normtune.tests.commands import invoke, succeed
from normtune.tests.heuristics.made_up import regenerate
from normtune.tests.results.stores import loaded

pytestmark = pytest.mark.long

SHAPES = [(rows, hidden) for rows in (1, 64, 4096) for hidden in (64, 512, 4096)]


@pytest.fixture
def repository(measure, penalty, run, spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with stores of one GPU and of two, weights, a table to compare with, a package and a link to it."""
    root = tmp_path / "repository"
    (tmp_path / ".git").mkdir()
    for folder in ("mylib/heuristics", "stores", "data"):
        (root / folder).mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (root / "linked").symlink_to(tmp_path / "elsewhere")
    monkeypatch.chdir(root)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data home"))
    for place, names in (("normtune.db", "A"), ("stores/my store.db", "A"), ("stores/two.db", "AB")):
        with Store.open(f"sqlite:///{place}") as opened:
            for name in names:
                opened.begin_run(run._replace(id=name, device=run.device._replace(name=f"NVIDIA {name}")))
                opened.add(measure(penalty, SHAPES, run=name, fingerprint=fingerprint(spec)))
    Path("weights.csv").write_text("rows,hidden,weight\n" + "".join(f"{rows},{size},1\n" for rows, size in SHAPES))
    succeed("fit", "--leaves", "1", "--out", "data/before.py")
    return root


LAYOUTS = [
    "--out heuristics.py",
    "--out heuristics.py --evidence data.parquet",
    "--out heuristics.py --evidence data/",
    "--out heuristics.py --evidence new/",
    "--out mylib/heuristics.py --evidence data/h200.parquet",
    "--out mylib/heuristics/",
    "--out mylib/heuristics --evidence data",
    "--out mylib/heuristics/ --evidence mylib/heuristics/",
    "--out mylib/heuristics/ --evidence data/h200.parquet",
    "--out mylib/$x.py --evidence 'data/it is.parquet'",
    "--out linked/heuristics.py --evidence linked/h200.parquet",
    "--out linked/heuristics.py --evidence data/h200.parquet",
    "--out {root}/mylib/heuristics.py --evidence {root}/data/h200.parquet --store {root}/normtune.db",
    "--out mylib/heuristics.py --weights weights.csv --evidence data/h200.parquet",
    "--out mylib/heuristics.py --baseline data/before.py --evidence data/h200.parquet",
    "--out mylib/heuristics.py --baseline liger --evidence data/h200.parquet",
    "--out mylib/heuristics.py --store 'stores/my store.db' --evidence data/",
    "--out mylib/heuristics.py --portable --evidence data/",
    "--out mylib/heuristics/ --store stores/two.db --evidence data/",
    "--out mylib/heuristics/ --store stores/two.db --evidence mylib/heuristics",
    "--out ./ --store stores/two.db --evidence .",
    "--install",
    "--install --store stores/two.db --weights weights.csv",
]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_command_writes_the_same_table_from_its_folder(repository: Path, layout: str, tmp_path: Path) -> None:
    before = set(tmp_path.rglob("*.py"))
    succeed("fit", "--leaves", "2", *shlex.split(layout.format(root=repository)))
    tables = sorted(set(tmp_path.rglob("*.py")) - before)
    assert len(tables) == 1 + ("two.db" in layout)
    for table in tables:
        written = table.read_bytes()
        lines = table.read_text().splitlines()
        name, _, command = lines[1].partition(": ")
        assert name == "# Regenerate"
        there = {path for path in tmp_path.rglob("*") if "db-" not in path.name}
        os.chdir(table.parent)
        succeed(*shlex.split(command)[1:])
        os.chdir(repository)
        assert table.read_bytes() == written
        assert {path for path in tmp_path.rglob("*") if "db-" not in path.name} == there
        told = succeed("check", "--strict", str(table))
        assert f"{table}: OK\n" in told
        assert ("equal, byte for byte, to a fit of" in told) == ("--evidence" in layout)


def test_a_store_in_the_environment_is_named_by_its_file(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url, named in (
        ("sqlite:///stores/my store.db", "../stores/my store.db"),
        (str(repository / "normtune.db"), "../normtune.db"),
    ):
        monkeypatch.setenv("NORMTUNE_STORE", url)
        succeed("fit", "--leaves", "2", "--out", "mylib/heuristics.py")
        command = locate.load("mylib/heuristics.py").header.command
        assert command == {"store": named, "options": {"leaves": 2}, "out": "heuristics.py"}


def test_a_table_saved_from_python_names_what_it_was_given(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = normtune.fit(loaded("sqlite:///normtune.db"), leaves=2, weights="weights.csv", baseline="data/before.py")
    found.save("mylib/heuristics.py", evidence="data/h200.parquet")
    written = Path("mylib/heuristics.py").read_bytes()
    monkeypatch.setenv("NORMTUNE_STORE", str(repository / "normtune.db"))
    monkeypatch.chdir("mylib")
    succeed(*shlex.split(regenerate(locate.load("heuristics.py").header))[1:])
    assert Path("heuristics.py").read_bytes() == written


@pytest.mark.parametrize("layout", ["--evidence data/", "--evidence data/h200.parquet"])
def test_evidence_that_moved_is_named_with_the_path_that_was_looked_at(repository: Path, layout: str) -> None:
    store = "stores/two.db" if layout.endswith("/") else "normtune.db"
    succeed("fit", "--leaves", "2", "--out", "mylib/heuristics/", "--store", store, *layout.split())
    name = "nvidia_a" if layout.endswith("/") else "h200"
    Path(f"data/{name}.parquet").rename("moved.parquet")
    for strict in ([], ["--strict"]):
        result = invoke("check", *strict, "mylib/heuristics/nvidia_a.py")
        assert result.exit_code == 1
        assert "mylib/heuristics/nvidia_a.py: FAILED\n" in result.output
        place = repository / "data" / f"{name}.parquet"
        assert f"the file of its measurements is missing: {place}; put it back, or fit again" in result.output


@pytest.mark.slow
def test_a_check_through_a_link_finds_the_evidence(repository: Path) -> None:
    succeed("fit", "--leaves", "2", "--out", "linked/heuristics.py", "--evidence", "data/h200.parquet")
    told = succeed("check", "linked/heuristics.py")
    assert "equal, byte for byte, to a fit of ../repository/data/h200.parquet" in told


def test_other_measurements_and_options_replace_those_of_the_facts(repository: Path) -> None:
    succeed("fit", "--leaves", "2", "--weights", "weights.csv", "--out", "mylib/heuristics.py")
    words = ("fit", "--like", "mylib/heuristics.py", "--store", "stores/my store.db", "--max-slowdown", "3")
    succeed(*words, "--out", "data/other.py")
    options = {"leaves": 2, "max_slowdown": 3, "weights": "../weights.csv"}
    expected = {"store": "../stores/my store.db", "options": options, "out": "other.py"}
    assert locate.load("data/other.py").header.command == expected
    assert locate.load("mylib/heuristics.py").header.command["options"] == {"leaves": 2, "weights": "../weights.csv"}
