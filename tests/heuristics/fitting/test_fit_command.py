from pathlib import Path

import pytest

from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.writing.entries import entries
from normtune.kernels.tablefile import locate
from normtune.results.evidence import Evidence
from normtune.tests.commands import invoke, refused, succeed
from normtune.tests.heuristics.made_up import SHAPES, regenerate
from normtune.tests.results.stores import loaded, record


def test_without_a_place_nothing_is_written_and_the_option_is_named(store: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    told = succeed("fit", "--store", store, "--leaves", "3")
    assert sorted(tmp_path.rglob("*")) == before
    for word in (
        "toy bfloat16: ",
        "from the best possible",
        "worst",
        "between",
        "No table was written: --out FILE writes it",
        "--details",
    ):
        assert word in told


def test_a_fit_says_what_it_fits(store: str) -> None:
    assert invoke("fit", "--store", store, "--leaves", "3").stderr == "normtune: fitting 300 measurements\n"


def test_the_figures_are_those_of_the_facts(store: str) -> None:
    told = succeed("fit", "--store", store, "--leaves", "1", "--out", "table.py", "--details")
    (entry,) = entries(locate.load("table.py").header)
    figures, loss = entry.figures, entry.figures.loss
    assert (figures.leaves, figures.configs, figures.gap) == (1, 1, 0)
    shown = [percent(loss.mean), percent(loss.plain), percent(loss.worst, 1), percent(figures.cross_validated)]
    (row,) = (words for words in map(str.split, told.splitlines()) if words[:1] == ["bfloat16"])
    assert row == ["bfloat16", "1", "1", *(text.removesuffix(" %") for text in shown), "0.00"]
    assert float(row[3]) > 10
    line = f"# toy bfloat16: 1 region, loss {percent(loss.plain, 1)} (worst {percent(loss.worst, 1)})"
    assert Path("table.py").read_text().split("\n")[3].startswith(line)


def test_out_writes_a_table_whose_command_names_no_folder(store: str, tmp_path: Path) -> None:
    out = tmp_path / "heuristics.py"
    assert f"wrote {out}" in succeed("fit", "--store", store, "--leaves", "3", "--out", str(out), "--operator", "toy")
    table = locate.load(out)
    assert regenerate(table.header) == "normtune fit --like heuristics.py"
    options = {"leaves": 3, "operators": ["toy"]}
    assert table.header.command == {"store": "measured.db", "options": options, "out": "heuristics.py"}
    assert table.lookup("toy", "bfloat16", 4096, 128)[:3] == ("block_row", 4, 4)
    first = out.read_bytes()
    succeed("fit", "--store", store, "--leaves", "3", "--out", str(out), "--operator", "toy")
    assert out.read_bytes() == first


def test_install_puts_the_table_where_its_gpu_finds_it(store: str) -> None:
    succeed("fit", "--store", store, "--leaves", "3", "--install")
    found = locate.select("Test GPU", "sm_90", 132)
    assert found.exact
    assert found.tables[0][1]().source == locate.installed_path("Test GPU")
    header = found.tables[0][1]().header
    assert regenerate(header) == "normtune fit --like test_gpu.py"
    assert header.command == {"store": "../../../measured.db", "options": {"leaves": 3}, "out": "test_gpu.py"}


@pytest.mark.slow
def test_a_table_of_a_recording_passes_check(store: str, record_as) -> None:
    record_as(loaded(f"sqlite:///{store}"))
    succeed("fit", "--store", "test-gpu", "--out", "table.py")
    assert "table.py: OK" in succeed("check", "table.py", "--strict")
    edited = Path("table.py").read_text().replace("hidden <= 512", "hidden <= 640")
    Path("table.py").write_text(edited)
    result = invoke("check", "table.py")
    assert result.exit_code == 1
    assert "table.py: FAILED" in result.output


def test_stale_kernels_fail_only_a_strict_check(evidence: Evidence, store: str, run) -> None:
    record("sqlite:///stale.db", run, evidence.measurements())
    succeed("fit", "--store", "stale.db", "--leaves", "3", "--out", "stale.py")
    told = succeed("check", "stale.py")
    assert "stale.py: STALE" in told
    assert "  the kernels of toy changed since they were measured: sweep with --stale, then fit\n" in told
    assert invoke("check", "stale.py", "--strict").exit_code == 1


@pytest.mark.slow
def test_one_bad_table_fails_a_check_of_several(store: str) -> None:
    succeed("fit", "--store", store, "--leaves", "3", "--out", "good.py")
    Path("bad.py").write_text(Path("good.py").read_text().replace("hidden <= 512", "hidden <= 640"))
    result = invoke("check", "good.py", "bad.py")
    assert result.exit_code == 1
    assert "good.py: OK" in result.output
    assert "bad.py: FAILED" in result.output


def test_files_that_normtune_did_not_write_stay_as_they_were(store: str) -> None:
    Path("mine.py").write_text("x = 1\n")
    assert "mine.py: it exists and normtune did not write it" in refused("fit", "--store", store, "--out", "mine.py")
    assert Path("mine.py").read_text() == "x = 1\n"
    path = locate.installed_path("Test GPU")
    path.parent.mkdir(parents=True)
    path.write_text("x = 1\n")
    assert "normtune did not write it" in refused("fit", "--store", store, "--leaves", "3", "--install")
    assert path.read_text() == "x = 1\n"


def test_a_missing_folder_is_named_and_not_made(store: str, tmp_path: Path) -> None:
    assert "the folder none does not exist" in refused("fit", "--store", store, "--out", "none/table.py")
    assert "cannot create the folder none/deep" in refused("fit", "--store", store, "--out", "none/deep/")
    assert not (tmp_path / "none").exists()


def test_a_failed_fit_leaves_the_table_as_it_was(store: str, run, measure, penalty) -> None:
    succeed("fit", "--store", store, "--leaves", "3", "--out", "table.py")
    before = Path("table.py").read_bytes()
    other = run._replace(id="other", device=run.device._replace(name="Other GPU"))
    record(f"sqlite:///{store}", other, measure(penalty, SHAPES[:3], run="other"))
    told = refused("fit", "--store", store, "--leaves", "3", "--out", "table.py")
    assert "Other GPU with 132 SMs; Test GPU with 132 SMs" in told
    assert Path("table.py").read_bytes() == before


def test_the_default_store_is_in_the_working_folder(store: str) -> None:
    Path(store).rename("normtune.db")
    succeed("fit", "--leaves", "3", "--out", "table.py")
    assert locate.load("table.py").header.command["store"] == "normtune.db"
