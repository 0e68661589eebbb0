"""`normtune data`: output, files and refusals."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.results.database.store import Store
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import read_parquet, write_parquet
from normtune.tests import commands
from normtune.tests.commands import printed_by
from normtune.tests.results.stores import loaded, merge


@pytest.fixture
def store(varied, tmp_path):
    url = f"sqlite:///{tmp_path / 'store.db'}"
    merge(url, varied)
    return url


def call(*arguments):
    return commands.invoke("data", *arguments)


def refused(told, *arguments, kind=NormtuneError):
    assert told in commands.refused("data", *arguments, kind=kind)


def test_list_counts_by_device_operator_and_dtype(store):
    found = call("list", "--store", store)
    assert found.exit_code == 0
    lines = [" ".join(line.replace("│", " ").split()) for line in found.output.splitlines()]
    place = lines.index("NVIDIA H200, 132 SMs")
    assert lines[place + 2] == "operator dtype problems measurements runs of these"
    assert lines[place + 4 : place + 6] == [
        "rms_norm_backward:no_dweight float32 1 2 1 2 ok",
        "rms_norm_forward bfloat16 1 4 2 3 ok, 1 timeout",
    ]
    assert lines[lines.index("NVIDIA B200, 148 SMs") :][4] == "rms_norm_forward float16 1 1 1"
    counts = json.loads(call("list", "--store", store, "--json").output)["measurements"]
    assert [(row["device"], row["measurements"], row["statuses"]) for row in counts] == [
        ("NVIDIA B200", 1, {"ok": 1}),
        ("NVIDIA H200", 2, {"ok": 2}),
        ("NVIDIA H200", 4, {"ok": 3, "timeout": 1}),
    ]


def test_list_of_a_store_without_measurements(tmp_path):
    Store.open(f"sqlite:///{tmp_path / 'new.db'}").close()
    assert "there are no measurements yet: sweep first" in call("list", "--store", tmp_path / "new.db").output


def test_export_and_import_carry_everything_once(store, varied, tmp_path):
    found = call("export", "--out", tmp_path / "a.parquet", "--store", store)
    assert f"7 measurements of 3 runs, {varied.digest()}" in found.output
    for told in ("7 measurements, 7 new", "7 measurements, 0 new"):
        assert told in call("merge", tmp_path / "a.parquet", "--store", tmp_path / "b.db").output
    assert loaded(f"sqlite:///{tmp_path / 'b.db'}").digest() == varied.digest()


def test_export_takes_all_regimes(store, varied, make, make_run, tmp_path):
    warm, out = make_run(9, protocol={"regime": "warm"}), tmp_path / "a.parquet"
    both = Evidence.from_measurements([*varied.measurements(), make((5, 6), run=warm)], [*varied.runs, warm])
    assert merge(store, both) == 1
    call("export", "--out", out, "--store", store)
    assert read_parquet(out).digest() == both.digest()
    call("merge", out, "--store", tmp_path / "b.db")
    assert loaded(f"sqlite:///{tmp_path / 'b.db'}", regime=None).digest() == both.digest()
    assert " warm " in call("list", "--store", store).output


def test_export_as_csv(store, tmp_path):
    assert call("export", "--out", tmp_path / "a.CSV", "--store", store).exit_code == 0
    assert len((tmp_path / "a.CSV").read_text().splitlines()) == 13


def test_export_refuses_what_it_cannot_write(store, tmp_path):
    def refuse(told, *options):
        refused(told, "export", "--store", store, "--out", *options, kind=UsageError)

    refuse("expected a file that ends in .parquet or .csv", tmp_path / "a.xlsx")
    refuse("none does not exist", tmp_path / "none" / "a.parquet")
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("store.db")] == []
    advice = "name a store that exists, or a recording, one of nvidia-h100-80gb-hbm3, "
    refused(f"there is no store or recording nvidia-h1: {advice}", "list", "--store", "nvidia-h1", kind=UsageError)
    refused("there is no store", "export", "--store", tmp_path / "none.db", "--out", tmp_path / "a.csv")


FOREIGN = pa.table({"a": [1, 2]})


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "A.CSV"])
def test_export_overwrites_its_own_files_and_no_others(store, make_run, make, tmp_path, name):
    out = tmp_path / name
    one = tmp_path / "one.db"
    merge(f"sqlite:///{one}", Evidence.from_measurements([make((5, 6))], [make_run()]))
    arguments = ["--out", out]
    contents = [b"", b"device,sms\n1,2\n", b"PAR1", b"\0" * 99]
    pq.write_table(FOREIGN, tmp_path / "foreign")
    for content in [*contents, (tmp_path / "foreign").read_bytes()]:
        out.write_bytes(content)
        refused(f"cannot write {out}: it exists and normtune did not write it; name another, or move it away",
                "export", *arguments, "--store", one, kind=UsageError)  # fmt: skip
        assert out.read_bytes() == content
    out.unlink()
    for source in (one, one):
        assert call("export", *arguments, "--store", source).exit_code == 0
        written = out.read_bytes()
    out.unlink()
    out.symlink_to("nowhere")
    refused("it exists and normtune did not write it", "export", *arguments, "--store", one, kind=UsageError)
    assert written
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_that_takes_no_files_is_told_before_the_store_is_read(tmp_path):
    refused("cannot write", "export", "--out", "/proc/a.csv", "--store", tmp_path / "none.db", kind=NormtuneError)


def test_the_runs_of_a_store_or_of_a_file_that_the_environment_names(store, varied, tmp_path, monkeypatch):
    file = tmp_path / "own.parquet"
    write_parquet(varied, file)
    for source in (["--store", store], ["--store", file], []):
        monkeypatch.setenv("NORMTUNE_STORE", "" if source else str(file))
        told = json.loads(call("list", "--runs", "--json", *source).stdout)["runs"]
        assert {one["id"] for one in told} == {run.id for run in varied.runs}
        assert {one["device"] for one in told} == {run.device.label for run in varied.runs}
        lines = call("list", "--runs", *source).stdout.splitlines()
        assert {line[:32] for line in lines} == {run.id for run in varied.runs}


def test_no_store_has_the_name_of_a_parquet_file(store, tmp_path):
    new = tmp_path / "all.parquet"
    refused("the name of a Parquet file, which is only read", "merge", store, "--store", new, kind=UsageError)
    assert not new.exists()


def test_an_import_with_one_bad_file_changes_nothing(store, varied, make, make_run, tmp_path):
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    write_parquet(varied.select(["rms_norm_backward"]), good)
    bad.write_bytes(good.read_bytes()[:-20])
    refused("bad.parquet is no Parquet file or a damaged one", "merge", good, bad, "--store", tmp_path / "new.db")
    assert not (tmp_path / "new.db").exists()
    refused("none.parquet does not exist", "merge", tmp_path / "none.parquet", "--store", store, kind=UsageError)

    other = [run._replace(software={"torch": "9"}) for run in varied.runs]
    write_parquet(type(varied)(varied.frame, tuple(other)), bad)
    refused("cannot merge", "merge", bad, "--store", store)
    assert loaded(store).digest() == varied.digest()


def test_the_commands_import_nothing_heavy():
    heavy = "{'numpy', 'pandas', 'pyarrow', 'sqlalchemy', 'torch', 'triton'}"
    code = f"import sys, normtune.results.commands; print(sorted({heavy} & set(sys.modules)))"
    assert printed_by(code) == "[]\n"


@pytest.mark.slow
def test_results_import_neither_torch_nor_triton():
    modules = "exchange.recording, normtune.results.database.store, normtune.results.statistics"
    code = f"import sys, normtune.results.{modules}; print(sorted({{'torch', 'triton'}} & set(sys.modules)))"
    assert printed_by(code) == "[]\n"
