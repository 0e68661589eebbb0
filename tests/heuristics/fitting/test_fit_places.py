"""Output files of `fit`: several devices, folders, evidence, files to keep, full disks, odd names."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normtune.errors import NormtuneError
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.tablefile import locate
from normtune.results.database.store import Store
from normtune.results.exchange.parquet_csv import read_parquet
from normtune.tests import commands
from normtune.tests.commands import invoke, python, succeed
from normtune.tuner.checking.offline import check

SHAPES = [(rows, hidden) for rows in (1, 64, 4096) for hidden in (64, 512, 4096)]
NAMES = ["NVIDIA A", "NVIDIA B"]


@pytest.fixture
def store(measure, penalty, run, spec, here: Path) -> Callable[..., str]:
    """Makes a store with measurements of `toy` on GPUs of these names."""

    def make(*names: str, sms: tuple[int, ...] = ()) -> str:
        with Store.open("sqlite:///measured.db") as opened:
            for number, name in enumerate(names):
                device = run.device._replace(name=name, sms=sms[number] if sms else 132)
                opened.begin_run(run._replace(id=f"run{number}", device=device))
                shapes = SHAPES if number else SHAPES[:-1]
                opened.add(measure(penalty, shapes, run=f"run{number}", fingerprint=fingerprint(spec)))
        return "measured.db"

    return make


WORDS = ("fit", "--store", "measured.db", "--leaves", "2")


def fit(*arguments: str) -> str:
    """What `normtune fit` prints."""
    return succeed(*WORDS, *arguments)


def refused(*arguments: str) -> str:
    return commands.refused(*WORDS, *arguments)


def test_several_devices_need_a_folder(store) -> None:
    store(*NAMES)
    for arguments in ([], ["--out", "table.py"], ["--install", "--out", "table.py"]):
        told = refused(*arguments)
        assert "measurements of 2: NVIDIA A with 132 SMs; NVIDIA B with 132 SMs; --out DIR/ writes a table for" in told
    assert not Path("table.py").exists()


@pytest.mark.slow
def test_a_folder_gets_a_table_of_each_device_with_its_own_figures(store) -> None:
    store(*NAMES)
    told = fit("--out", "tables/", "--evidence", "tables/")
    assert sorted(os.listdir("tables")) == ["nvidia_a.parquet", "nvidia_a.py", "nvidia_b.parquet", "nvidia_b.py"]
    for name, count in (("a", len(SHAPES) - 1), ("b", len(SHAPES))):
        header = locate.load(f"tables/nvidia_{name}.py").header
        assert header.label == f"NVIDIA {name.upper()}"
        places = {"out": f"nvidia_{name}.py", "evidence": f"nvidia_{name}.parquet"}
        assert header.command == {"store": "../measured.db", "options": {"leaves": 2}, **places}
        measured = read_parquet(Path(f"tables/nvidia_{name}.parquet"))
        assert len({*zip(measured.frame["rows"], measured.frame["hidden"], strict=True)}) == count
        assert f"NVIDIA {name.upper()}, sm_90, 132 SMs: {len(measured.frame)} measurements" in told
        report = check(Path(f"tables/nvidia_{name}.py"))
        assert report.failures == ()
        assert report.notes[0].startswith(f"equal, byte for byte, to a fit of nvidia_{name}.parquet; ")
    before = {path: path.read_bytes() for path in Path("tables").iterdir()}
    fit("--out", "tables", "--evidence", "tables")
    assert {path: path.read_bytes() for path in Path("tables").iterdir()} == before


def test_devices_of_one_name_are_told_apart_by_their_multiprocessors(store) -> None:
    store("NVIDIA A", "NVIDIA A", sms=(66, 132))
    fit("--out", "tables/")
    assert sorted(os.listdir("tables")) == ["nvidia_a_132_sms.py", "nvidia_a_66_sms.py"]
    assert "--install would write one file for several devices" in refused("--install")


@pytest.mark.one_in(5)
@pytest.mark.parametrize("names", [("NVIDIA H200", "Nvidia H200"), ("NVIDIA A-10", "NVIDIA A 10")])
@pytest.mark.parametrize("places", [["--out", "tables/"], ["--out", "a/", "--evidence", "a/"], ["--install"]])
def test_two_names_of_one_file_are_refused_before_anything_is_written(store, names, places: list[str]) -> None:
    store(*names)
    told = refused(*places)
    assert f"{places[0]} would write one file for several devices: '{sorted(names)[0]}' with 132 SMs" in told
    assert told.endswith("; --device NAME chooses one")
    assert not [*Path().rglob("*.py"), *Path().rglob("*.parquet"), *locate.installed()]
    fit("--device", names[1], *places)


def test_each_device_is_installed_for_itself(store) -> None:
    store(*NAMES)
    fit("--install")
    for name in NAMES:
        assert locate.select(name, "sm_90", 132).tables[0][1]().header.label == name


@pytest.mark.parametrize("option", ["--out", "--evidence", "--baseline"])
def test_an_empty_place_is_none(store, option: str) -> None:
    store("NVIDIA A")
    assert refused(option, "") == f"{option} is empty: name a file, or leave it out"


def test_a_new_folder_needs_one_to_stand_in(store) -> None:
    store("NVIDIA A")
    assert "cannot create the folder none/deep: No such file or directory" in refused("--out", "none/deep/")
    Path("file").write_text("")
    assert "cannot create the folder file: " in refused("--out", "file/")
    assert Path("file").read_text() == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--out", "/proc/table.py"],
        ["--out", "/proc/"],
        ["--evidence", "/proc/data.parquet"],
    ],
)
def test_a_folder_that_takes_no_files_is_told_before_the_fit(store, arguments: list[str], monkeypatch) -> None:
    # Where it is called: a module that is first imported now would keep what is put in its place.
    from normtune.heuristics.api import fit as api

    store("NVIDIA A")
    monkeypatch.setattr(api, "fit_evidence", None)
    told = commands.refused(*WORDS, *arguments, kind=NormtuneError)
    assert told.startswith("cannot write /proc/")


@pytest.mark.slow
def test_only_force_overwrites_what_normtune_did_not_write(store) -> None:
    store("NVIDIA A")
    for content in (b"x = 1\n", b"", b"\xff" * 40):
        Path("mine.py").write_bytes(content)
        assert "mine.py: it exists and normtune did not write it; --force overwrites it" in refused("--out", "mine.py")
        assert Path("mine.py").read_bytes() == content
    fit("--out", "mine.py", "--force")
    whole = Path("mine.py").read_text()
    assert locate.load("mine.py")
    fit("--out", "mine.py")
    for edit in (whole + "# mine\n", whole.replace("# Facts of", "# Tales of"), whole.replace("ROW_WARPS", "WARPS")):
        assert edit != whole
        Path("mine.py").write_text(edit)
        assert "mine.py: it was edited since normtune wrote it; --force overwrites it" in refused("--out", "mine.py")
        assert Path("mine.py").read_text() == edit
    fit("--out", "mine.py", "--force")
    assert Path("mine.py").read_text() == whole


def test_what_is_no_file_is_never_overwritten(store) -> None:
    store("NVIDIA A")
    os.mkfifo("pipe.py")
    Path("gone.py").symlink_to("none/nowhere.py")
    for place in ("/dev/full", "pipe.py", "gone.py"):
        for force in ([], ["--force"]):
            assert f"cannot write {place}: it is not a regular file" in refused("--out", place, *force)
    assert Path("/dev/full").is_char_device()
    assert Path("pipe.py").is_fifo()


def test_evidence_is_a_parquet_file_and_overwrites_no_other(store) -> None:
    store("NVIDIA A")
    assert "--evidence is 'data.csv': expected a file that ends in .parquet" in refused("--evidence", "data.csv")
    Path("data.parquet").write_text("a,b\n")
    assert "data.parquet: it exists and normtune did not write it; --force" in refused("--evidence", "data.parquet")
    assert Path("data.parquet").read_text() == "a,b\n"
    pq.write_table(pa.table({"a": [1]}), "data.parquet")
    foreign = Path("data.parquet").read_bytes()
    assert "data.parquet: it exists and normtune did not write it; --force" in refused("--evidence", "data.parquet")
    assert Path("data.parquet").read_bytes() == foreign
    fit("--evidence", "data.parquet", "--force")
    told = fit("--evidence", "data.parquet")
    assert "wrote data.parquet" in told
    assert "No table was written: --out FILE writes it" in told


@pytest.fixture
def committed(store) -> Path:
    """A table and its evidence as a repository has them, without the store."""
    store("NVIDIA A")
    Path("repo/lib").mkdir(parents=True)
    Path("repo/.git").mkdir()
    Path("repo/data").mkdir()
    fit("--out", "repo/lib/heuristics.py", "--evidence", "repo/data/it's h200.parquet")
    shutil.move("repo", "elsewhere")
    Path("measured.db").unlink()
    return Path("elsewhere/lib/heuristics.py")


def test_a_check_finds_the_evidence_beside_the_table(committed: Path) -> None:
    header = locate.load(committed).header
    assert header.command["evidence"] == "../data/it's h200.parquet"
    report = check(committed)
    assert report.failures == ()
    assert (
        "equal, byte for byte, to a fit of ../data/it's h200.parquet; cross-validation and what shares a function are "
        "taken from its facts" in report.notes
    )
    committed.write_text(re.sub(r'"worst": \d+', '"worst": 7', committed.read_text()))
    assert any("it differs from a fit of ../data/it's h200.parquet" in line for line in check(committed).failures)


@pytest.mark.slow
def test_evidence_that_is_missing_other_or_damaged_is_told(committed: Path, store) -> None:
    path = Path("elsewhere/data/it's h200.parquet")
    kept = path.read_bytes()
    path.unlink()
    (failure,) = check(committed).failures
    assert f"the file of its measurements is missing: {path.absolute()}; put it back" in failure
    result = invoke("check", str(committed))
    assert result.exit_code == 1
    assert f"{committed}: FAILED" in result.output
    path.write_bytes(kept[:100])
    assert any("is no Parquet file or a damaged one" in line for line in check(committed).failures)
    store("NVIDIA B", "NVIDIA A")
    Path("other").mkdir()
    fit("--out", "other/", "--evidence", "other/")
    shutil.copy("other/nvidia_b.parquet", path)
    (failure,) = check(committed).failures
    assert "it's h200.parquet holds other measurements than the table was fitted to" in failure


def test_a_header_with_an_odd_command_fails_and_does_not_crash(committed: Path) -> None:
    text = committed.read_text()
    for odd in ("normtune fit 'unclosed", "normtune fit --evidence ../data --leaves x"):
        committed.write_text(re.sub("# Regenerate: .*", f"# Regenerate: {odd}", text))
        check(committed)
    committed.write_text(text.replace('"leaves": 2', '"leaves": "two"'))
    assert any("cannot be fitted as its command says" in line for line in check(committed).failures)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("A\"B\nC'D", "A\"B C'D"),
        ("../../etc/passwd", "etc/passwd"),
        ("", "unnamed GPU"),
        ("\n\t\0", "unnamed GPU"),
        ("ГПУ № 1", "1"),
        ("X" * 300, "X" * 80),
        ("long name " * 30, ("long name " * 8).strip()),
        ("A, sm_80, 7 SMs", "A, sm_80, 7 SMs"),
        ("\x1b[31mred\u2028\u202e", "31mred"),
        ("GPU™ \x9b2J", "GPU? 2J"),
    ],
)
def test_a_hostile_gpu_name_stays_sane(store, name: str, shown: str) -> None:
    store(name)
    told = fit("--out", "tables/", "--evidence", "tables/")
    (table,) = Path("tables").glob("*.py")
    assert re.fullmatch(r"[a-z0-9_]+\.py", table.name)
    header = locate.load(table).header
    assert (header.gpu, header.target, header.sms) == (shown, "sm_90", 132)
    assert check(table).failures == ()
    assert all(line.isprintable() for line in told.split("\n"))
    assert f"{shown}, sm_90, 132 SMs:" in told
    fit("--install")
    found = locate.select(name, "sm_90", 132)
    assert found.exact
    assert found.tables[0][1]().source.parent == Path(os.environ["XDG_DATA_HOME"]) / "normtune" / "tables"


def test_a_data_folder_that_is_none_is_told(store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store("NVIDIA A")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    assert "cannot create the folder" in refused("--install")
    assert "Not a directory; set XDG_DATA_HOME to a folder" in refused("--install")


@pytest.mark.long
@pytest.mark.slow
def test_a_full_disk_leaves_the_old_table(store) -> None:
    store("NVIDIA A")
    fit("--out", "table.py")
    before = Path("table.py").read_bytes()
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512));"
        "from normtune.cli import main; main()"
    )
    # The operator of these tests is unknown to another process.
    data = ["--store", "nvidia-h200", "--operator", "rms_norm_forward", "--leaves", "3"]
    done = python("-c", code, "fit", *data, "--out", "table.py")
    assert done.returncode == 1, done.stderr
    assert "\nnormtune: error: cannot write table.py: File too large" in done.stderr
    assert Path("table.py").read_bytes() == before
    assert [path.name for path in Path().glob(".normtune*")] == []


def test_a_broken_table_does_not_keep_the_others_from_their_check(committed: Path) -> None:
    Path("broken.py").write_text("x = 1\n")
    result = invoke("check", "broken.py", str(committed))
    assert isinstance(result.exception, NormtuneError)
    assert "broken.py is no table" in str(result.exception)
    assert f"{committed}: OK" in result.output


@pytest.mark.slow
def test_a_file_of_measurements_is_fitted_shown_and_checked_as_its_store_is(store) -> None:
    store("NVIDIA A")
    succeed("data", "export", "--store", "measured.db", "--out", "a.parquet")
    read = ("--store", "a.parquet")
    assert succeed("show", *read) == succeed("show", "--store", "measured.db")
    assert succeed("data", "list", *read) == succeed("data", "list", "--store", "measured.db")
    succeed("fit", *read, "--leaves", "2", "--out", "table.py")
    assert '"command": {"store": "a.parquet", "options": {"leaves": 2}' in Path("table.py").read_text()
    assert "# Regenerate: normtune fit --like table.py\n" in Path("table.py").read_text()
    assert "equal, byte for byte, to a fit of a.parquet" in succeed("check", "--strict", "table.py")
    before = Path("table.py").read_bytes()
    succeed("fit", *read, "--leaves", "2", "--out", "table.py", "--baseline", "none")
    Path("a.parquet").rename("b.parquet")
    assert "the file of its measurements is missing" in invoke("check", "table.py").output
    succeed("data", "export", "--store", "measured.db", "--out", "a.parquet")
    succeed("fit", *read, "--leaves", "2", "--out", "new.py")
    assert Path("new.py").read_bytes().replace(b"new.py", b"table.py") == before


@pytest.mark.parametrize(("name", "told"), [("class", True), ("my-table", True), ("1", True), ("klass", False)])
def test_a_name_that_cannot_be_imported_is_told(store, name: str, told: bool) -> None:
    store("NVIDIA A")
    assert (f"'{name}.py' is not the name of a module" in fit("--out", f"{name}.py")) == told
