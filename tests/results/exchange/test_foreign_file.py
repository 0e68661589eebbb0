"""Files of measurements of other programs: what is read of them, and the errors of others."""

import json
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.config import Config
from normtune.results.elsewhere import Elsewhere, columns_of
from normtune.results.evidence import Evidence
from normtune.results.exchange import csv_file
from normtune.results.exchange.csv_file import quoted, unquoted
from normtune.results.exchange.foreign_file import read_foreign
from normtune.results.exchange.parquet_csv import read_parquet, write_csv, write_parquet
from normtune.results.exchange.recording import write_recording
from normtune.results.records import Device
from normtune.results.runs import check_same
from normtune.tests.commands import main, one_line, refused, succeed
from normtune.tests.results.stores import loaded, merge

GPU = Elsewhere(name="NVIDIA H100", target="sm_90", sms=114)
FLAGS = ("--name", "NVIDIA H100", "--target", "sm_90", "--sms", "114")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(text: str, name: str = "times.csv") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def read(text: str, columns: str = "") -> Evidence:
    return read_foreign(written(text), with_columns(columns))


def with_columns(columns: str) -> Elsewhere:
    return Elsewhere(
        name=GPU.name, target=GPU.target, sms=GPU.sms, columns=columns_of(filter(None, columns.split(",")))
    )


def times_of(evidence: Evidence) -> dict[tuple[str, int, int, str], list[int]]:
    """The nanoseconds of each cell, by operator, shape and config."""
    return {
        (one.problem.operator, *one.problem.shape, str(one.config)): one.samples.tolist()
        for one in evidence.measurements()
    }


@pytest.mark.parametrize(
    ("unit", "first", "second"),
    [
        ("nanoseconds", "2500", "3000.4"),
        ("microseconds", "2.5", "3.0004"),
        ("milliseconds", "0.0025", "3.0004e-3"),
        ("seconds", ".0000025", "0.0000030004"),
    ],
)
def test_the_name_of_a_column_is_the_unit_of_its_times(unit: str, first: str, second: str) -> None:
    text = f"operator,dtype,rows,hidden,BLOCK,{unit}\nmine,float16,8,64,128,{first}\nmine,float16,8,64,256,{second}\n"
    evidence = read(text)
    # One time stands for both halves of the blocks.
    assert times_of(evidence) == {("mine", 8, 64, "BLOCK=128"): [2500] * 2, ("mine", 8, 64, "BLOCK=256"): [3000] * 2}
    (run,) = evidence.runs
    assert run.is_unpaired and run.device[:3] == ("NVIDIA H100", "sm_90", 114)
    assert evidence.unpaired() == ("mine",)


def test_columns_of_other_names_and_what_all_rows_share() -> None:
    """As `triton.testing.perf_report` writes them: sizes, meta-parameters and a line of milliseconds."""
    text = "M,BLOCK_M,GROUP,Triton (ms)\n128.0,64,8,0.5\n128.0,32,8,0.7\n256.0,64,8,0.9\n"
    evidence = read(text, "operator=matmul.K=512,rows=M,hidden=4096,dtype=torch.bfloat16,milliseconds=Triton (ms)")
    assert times_of(evidence) == {
        ("matmul.K=512", 128, 4096, "BLOCK_M=64 GROUP=8"): [500_000] * 2,
        ("matmul.K=512", 128, 4096, "BLOCK_M=32 GROUP=8"): [700_000] * 2,
        ("matmul.K=512", 256, 4096, "BLOCK_M=64 GROUP=8"): [900_000] * 2,
    }
    assert set(evidence.frame["dtype"]) == {"bfloat16"}


def test_named_knobs_leave_the_other_columns_out() -> None:
    """As Kernel Tuner's results: figures beside the parameters that were tuned."""
    text = "block_x,unroll,layout,time,compile_time,GFLOP/s\n32,1,row,1.5,20.5,3\n64,2,column,1.25,30.25,4\n"
    sizes = "operator=convolution,rows=64,hidden=64,dtype=float32,milliseconds=time"
    assert times_of(read(text, f"{sizes},block_x,how=layout")) == {
        ("convolution", 64, 64, "block_x=32 row"): [1_500_000] * 2,
        ("convolution", 64, 64, "block_x=64 column"): [1_250_000] * 2,
    }
    with one_line(
        UsageError, "compile_time of line 2 of times.csv is 20.5, no whole number and no word such as 128x64"
    ):
        read(
            text.replace("GFLOP/s", "gflops"), "operator=convolution,rows=64,hidden=64,dtype=float32,milliseconds=time"
        )
    with one_line(UsageError, r"column 'GFLOP/s' has no name of a knob of convolution: name the columns"):
        read(text, sizes)


def test_rows_of_one_config_are_its_samples() -> None:
    lines = [f"mine,fp16,8,64,{block},{time}" for time in (30, 31, 32) for block in (1, 2)]
    evidence = read("operator,dtype,rows,hidden,B,microseconds\n" + "\n".join(lines))
    assert times_of(evidence)["mine", 8, 64, "B=1"] == [30_000, 31_000, 32_000]
    assert {tuple(rounds) for rounds in evidence.frame["rounds"]} == {(0, 2, 4)}


def test_an_operator_of_normtune_has_its_own_knobs() -> None:
    text = (
        "operator,dtype,rows,hidden,schedule,num_warps,note,microseconds\n"
        "rms_norm_forward,bf16,64,1024,row,8,first try,3\nrms_norm_forward:no_rstd,bf16,64,1024,row,4,,2.5\n"
    )
    evidence = read(text)
    assert {str(one.problem.key): str(one.config) for one in evidence.measurements()} == {
        "rms_norm_forward bfloat16": "row warps=8",
        "rms_norm_forward:no_rstd bfloat16": "row warps=4",
    }
    assert set(evidence.frame["fingerprint"]) == {"unknown"}


def test_a_config_may_be_json_and_operators_have_knobs_of_their_own() -> None:
    frame = pd.DataFrame(
        {
            "operator": ["a", "b"],
            "dtype": "float16",
            "rows": 8,
            "hidden": 64,
            "config": [json.dumps({"B": 2}), json.dumps({"C": "row", "W": 4})],
            "samples": [[1000, 1001], [2000]],
        }
    )
    frame.to_parquet("times.parquet")
    found = times_of(read_foreign(Path("times.parquet"), GPU))
    assert found == {("a", 8, 64, "B=2"): [1000, 1001], ("b", 8, 64, "row W=4"): [2000] * 2}
    columns = pd.DataFrame({"B": [2, np.nan], "C": [None, "row"], "W": [np.nan, 4]})
    pd.concat([frame.drop(columns="config"), columns], axis=1).to_parquet("columns.parquet")
    assert times_of(read_foreign(Path("columns.parquet"), GPU)) == found


def test_the_same_file_has_the_same_runs_and_another_one_others() -> None:
    text = "operator,dtype,rows,hidden,B,microseconds\nmine,float16,8,64,1,5\n"
    one, again, other = read(text), read(text), read(text.replace(",5\n", ",6\n"))
    assert one.runs == again.runs and one.digest() == again.digest()
    assert one.runs[0].id != other.runs[0].id


def test_the_mark_survives_stores_and_exports_and_is_part_of_the_digest() -> None:
    written("operator,dtype,rows,hidden,B,microseconds\nmine,float16,8,64,1,5\nmine,float16,8,64,2,6\n")
    assert succeed("data", "merge", "times.csv", *FLAGS, "--store", "a.db") == "times.csv: 2 measurements, 2 new\n"
    assert succeed("data", "merge", "times.csv", *FLAGS, "--store", "a.db") == "times.csv: 2 measurements, 0 new\n"
    assert "unpaired, not gated" in succeed("data", "list", "--store", "a.db")
    assert "cold, unpaired, not gated" in succeed("data", "list", "--runs", "--store", "a.db")
    succeed("data", "export", "--store", "a.db", "--out", "b.parquet")
    succeed("data", "merge", "b.parquet", "--store", "c.db")
    for evidence in (loaded("a.db"), read_parquet(Path("b.parquet")), loaded("c.db")):
        assert evidence.unpaired() == ("mine",)
        assert evidence.digest() == loaded("a.db").digest()
    (run,) = loaded("a.db").runs
    paired = Evidence(loaded("a.db").frame, (run._replace(protocol={}),))
    assert paired.unpaired() == () and paired.digest() != loaded("a.db").digest()
    write_csv(loaded("a.db"), Path("b.csv"))
    assert pd.read_csv("b.csv")["unpaired"].all()
    assert read_foreign(Path("b.csv"), GPU).unpaired() == ("mine",)
    gated = run._replace(protocol={}, device=run.device._replace(uuid="hash:1"))
    with pytest.raises(ValueError, match="is stored with another is_unpaired: False, not True"):
        check_same(gated, gated._replace(protocol=run.protocol))
    with one_line(UsageError, "another program measured mine: a recording is of a sweep on a GPU"):
        write_recording(loaded("a.db"), "gpu", Path())


def test_measurements_of_normtune_outrank_those_of_others_whatever_their_day(make, make_run) -> None:
    own = Evidence.from_measurements([make(run=make_run(1))], [make_run(1)])
    line = "rms_norm_forward,bfloat16,4096,1024,row,8,2099-01-01,3"
    text = f"operator,dtype,rows,hidden,schedule,num_warps,started,microseconds\n{line}\n"
    both = Evidence.concat([own, read_foreign(written(text), Elsewhere(name="NVIDIA H200", target="sm_90"))])
    assert len(both.frame) == 2
    assert both.current().digest() == own.digest()


def test_a_sweep_measures_what_only_others_measured(make, make_run) -> None:
    run = make_run(1)
    unpaired = run._replace(id="other", protocol={"unpaired": True})
    merge("a.db", Evidence.from_measurements([make(run=unpaired)], [unpaired]))
    from normtune.results.database.store import Store

    with Store.open("a.db") as store:
        assert store.coverage(run.device) == {}
    merge("a.db", Evidence.from_measurements([make(run=run)], [run]))
    with Store.open("a.db") as store:
        assert [found.status for found in store.coverage(run.device).values()] == ["ok"]


HEAD = "operator,dtype,rows,hidden,B,microseconds\n"
GOOD = "mine,float16,8,64,1,5\n"


@pytest.mark.parametrize(
    ("content", "columns", "told"),
    [
        ("", "", "times.csv is empty: expected a CSV file in UTF-8"),
        (HEAD, "", "times.csv has no rows"),
        ("\n\n", "", "times.csv is empty"),
        ("dtype,rows,hidden,B,microseconds\nfloat16,8,64,1,5\n", "", "no column operator: .*; --columns operator=NAME"),
        (GOOD, "", "no column operator, dtype, rows, hidden, .*: it has mine, float16, 8, 64, 1, 5"),
        (HEAD.replace("rows", "M") + GOOD, "", "no column rows: .*; --columns rows=NAME says which has rows"),
        (
            HEAD.replace("microseconds", "time") + GOOD,
            "",
            r"no column samples \(or .*\): .*; --columns milliseconds=NAME",
        ),
        (HEAD.replace("microseconds", "minutes") + GOOD, "", r"no column samples \(or nanoseconds, microseconds"),
        (HEAD.replace(",B", ",config") + GOOD, "", "config of line 2 of times.csv is 1: expected a Config or its JSON"),
        (HEAD.replace(",B", "") + "mine,float16,8,64,5\n", "", r"no column config \(or a column for each knob"),
        (HEAD.replace("B", "rows") + GOOD, "", "times.csv has the column 'rows' 2 times"),
        (HEAD + GOOD, "rows=M", "--columns has rows=M, but times.csv has no column 'M': it has operator, dtype"),
        (HEAD + GOOD, "dtype=int3", "--columns has dtype=int3, but times.csv has no column 'int3'"),
        (HEAD + GOOD, "rows=-4", "--columns has rows=-4, but"),
        (
            HEAD.replace("B", "schedule") + "rms_norm_forward,float16,8,64,row,5\n",
            "minutes=schedule",
            "--columns names 'minutes', which is no column that is read and no knob of rms_norm_forward",
        ),
        (
            HEAD + GOOD + "mine,float16,8,64,2,fast\n",
            "",
            "microseconds of line 3 of times.csv is 'fast': .*; leave failures out, or",
        ),
        (
            HEAD + GOOD + "\n\nmine,float16,8,64,2,-5\n",
            "",
            "microseconds of line 5 of times.csv is -5: expected microsec",
        ),
        (HEAD + GOOD + "mine,float16,8,64,2,\n", "", "microseconds of line 3 of times.csv is None"),
        (HEAD + GOOD + "mine,float16,8,64,2,0\n", "", "microseconds of line 3 of times.csv is 0: .*of 1 ns to 2.147 s"),
        (HEAD + GOOD + "mine,float16,8,64,2,9e9\n", "", "microseconds of line 3 of times.csv is 9000000000"),
        (HEAD + GOOD + "mine,float16,8,64,2,nan\n", "", "microseconds of line 3 of times.csv is 'nan'"),
        (HEAD + GOOD + "mine,float16,eight,64,2,5\n", "", "line 3 of times.csv: 'eight' is no whole number"),
        (HEAD + GOOD + "mine,float16,8.5,64,2,5\n", "", "line 3 of times.csv: 8.5 is no whole number"),
        (HEAD + GOOD + "mine,float16,,64,2,5\n", "", "column 'rows' has no value in line 3 of times.csv"),
        (
            HEAD + GOOD + "mine,int3,8,64,2,5\n",
            "",
            "line 3 of times.csv: unknown dtype 'int3': mine takes bfloat16, float16",
        ),
        (HEAD + GOOD + "mine:odd,float16,8,64,2,5\n", "", "line 3 of times.csv: unknown variant 'odd': mine has none"),
        (HEAD + GOOD + "mine,float16,8,64,big,5\n", "", "B of line 3 of times.csv is 'big', and of line 2 .* a number"),
        (
            HEAD + GOOD + "mine,float16,8,64,a b,5\n",
            "",
            "B of line 3 of times.csv is 'a b', no whole number and no word such as 128x64",
        ),
        (HEAD + GOOD + "mine,float16,8,64,2,5,6\n", "", "line 3 of times.csv has 7 cells, and the first line 6 names"),
        (HEAD + 'mine,"float16\n', "", r"times.csv is no CSV file \(unexpected end of data\)"),
        ("device," + HEAD + "A," + GOOD + "B," + GOOD, "", "column 'device' has 2 values: a table is for one"),
        (HEAD.replace("\n", ",milliseconds\n") + "mine,float16,8,64,1,5,6\n", "", "times in microseconds and millisec"),
        (HEAD.replace("\n", ",status\n") + GOOD.replace("\n", ",great\n"), "", "status is 'great', expected one of ok"),
        (
            HEAD + GOOD.replace("1,5", "a b,5"),
            "",
            "B of line 2 of times.csv is 'a b', no whole number and no word such as 128x64",
        ),
    ],
)
def test_one_line_says_what_is_wrong(content: str, columns: str, told: str) -> None:
    with one_line(UsageError, told, 499):
        read(content, columns)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("latin.csv", *FLAGS), "latin.csv is no CSV file ('utf-8' codec"),
        (("none.csv", *FLAGS), "none.csv does not exist: expected a CSV file"),
        ((".", *FLAGS), "'.' is read with --name, --target, --sms: expected a file that ends in .csv or .parquet"),
        (("folder.csv", *FLAGS), "folder.csv is no regular file"),
        (("x" * 300 + ".csv", *FLAGS), "cannot be opened (File name too long)"),
        (("odd.parquet", *FLAGS), "odd.parquet is no Parquet file, or a damaged one"),
        (("own.parquet", *FLAGS), "own.parquet was written by normtune and says what its GPU and columns are"),
        (("good.csv",), "--name is missing: name the GPU, such as --name 'NVIDIA H200' --target sm_90"),
        (("good.csv", "--name", "A"), "--target is missing"),
        (("good.csv", "--name", "A", "--target", "sm_10"), "sm_10"),
        (("good.csv", "--name", "A", "--target", "sm_91"), "--sms is None: expected the number of multiprocessors"),
        (("good.csv", *FLAGS[:4], "--sms", "9999999"), "--sms is 9999999: expected at most"),
        (("good.csv", *FLAGS, "--columns", "rows=M=N,=B"), "--columns has '=B': expected NAME=COLUMN"),
        (("good.csv", *FLAGS, "--columns", "rows=M,rows=N"), "--columns names rows twice"),
    ],
)
def test_the_import_of_another_file_ends_in_one_line_and_code_2(arguments: tuple[str, ...], told: str) -> None:
    written(HEAD + GOOD, "good.csv")
    Path("latin.csv").write_bytes((HEAD + GOOD).encode() + "größe,float16,8,64,1,5\n".encode("latin-1"))
    Path("folder.csv").mkdir()
    written("PAR1 but not really PAR1", "odd.parquet")
    write_parquet(read(HEAD + GOOD), Path("own.parquet"))
    result = main("data", "merge", *arguments, "--store", "a.db")
    assert result.exit_code == 2
    assert told in result.stderr and result.stderr.count("\n") == 1
    assert not Path("a.db").exists()


def test_a_large_file_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_file, "MOST_LINES", 2)
    with one_line(UsageError, "times.csv has over 2 lines"):
        read(HEAD + GOOD * 3)
    monkeypatch.setattr(csv_file, "MOST_BYTES", 10)
    with one_line(UsageError, "times.csv has .* bytes, at most 10 are read"):
        read(HEAD + GOOD)


def test_a_parquet_file_of_another_program_is_not_taken_for_an_export() -> None:
    pd.DataFrame({"a": [1]}).to_parquet("theirs.parquet")
    told = refused("data", "merge", "theirs.parquet", "--store", "a.db", kind=NormtuneError)
    assert "is a Parquet file that normtune did not write" in told and "--name, --target and --columns read" in told


def test_a_frame_that_is_a_file_has_the_device_of_the_options() -> None:
    evidence = read(HEAD + GOOD)
    assert evidence.devices() == [
        Device("NVIDIA H100", "sm_90", 114, 60 << 20, 0, evidence.runs[0].device.uuid, "unknown")
    ]
    assert [type(one.config).__mro__[-3] for one in evidence.measurements()] == [Config]


LIGER = (
    "kernel_name,x_value,kernel_provider,metric_unit,mode,y_value_50\n"
    "rms_norm,1024,liger,ms,forward,0.1\nrms_norm,1024,torch,ms,forward,0.2\n"
    "rms_norm,1024,liger,MB,forward,90\nrms_norm,1024,torch,MB,forward,50\n"
    "rms_norm,1024,liger,ms,full,0.3\nrms_norm,1024,torch,ms,full,0.5\n"
)
_LIGER_COLUMNS = "operator=kernel_name,hidden=x_value,rows=2048,dtype=bfloat16,milliseconds=y_value_50,kernel_provider"


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ({}, "column 'metric_unit' is 'ms' in line 2 of .*, and in line 4 of .*, 'MB': --where metric_unit=ms picks"),
        ({"metric_unit": "ms"}, "column 'mode' is 'forward' in line 2 of .*, and in line 6 of .*, 'full'"),
        ({"metric_unit": "ns"}, "--where has metric_unit=ns, but times.csv has there 'ms', 'MB'"),
        ({"unit": "ms"}, "--where has unit=ms, but times.csv has no column 'unit': it has kernel_name"),
    ],
)
def test_a_column_that_nobody_named_is_not_pooled(where: dict[str, str], told: str) -> None:
    with one_line(UsageError, told, 600):
        read_foreign(written(LIGER), replace(with_columns(_LIGER_COLUMNS), where=where))


def test_the_rows_of_some_values_are_picked() -> None:
    elsewhere = replace(with_columns(_LIGER_COLUMNS), where={"metric_unit": "ms", "mode": "full"})
    evidence = read_foreign(written(LIGER), elsewhere)
    assert times_of(evidence) == {
        ("rms_norm", 2048, 1024, "liger"): [300_000] * 2,
        ("rms_norm", 2048, 1024, "torch"): [500_000] * 2,
    }


def test_a_third_size_that_nobody_named_is_not_pooled() -> None:
    text = "M,N,K,B,time\n64,64,128,1,5\n64,64,4096,1,9\n"
    columns = "operator=gemm,rows=M,hidden=N,dtype=float16,microseconds=time,B"
    with one_line(UsageError, "column 'K' is '128' in line 2 .*, and in line 3 .*'4096': .*a third size needs", 600):
        read(text, columns)
    written(text)
    picked = read_foreign(Path("times.csv"), replace(with_columns(columns), where={"K": 4096}))
    assert times_of(picked) == {("gemm", 64, 64, "B=1"): [9000] * 2}
    both = read_foreign(Path("times.csv"), replace(with_columns(columns), where={"K": "*"}))
    assert times_of(both) == {("gemm", 64, 64, "B=1"): [5000, 9000]}


def test_rows_are_picked_on_the_command_line() -> None:
    written(LIGER)
    columns = ("--columns", _LIGER_COLUMNS, "--where", "metric_unit=ms,mode=full")
    assert ", 0 new" not in succeed("data", "merge", "times.csv", *FLAGS, *columns, "--store", "a.db")
    told = refused("data", "merge", "times.csv", *FLAGS, "--where", "metric_unit", "--store", "b.db")
    assert told == "--where has metric_unit=metric_unit, but times.csv has there 'ms', 'MB'"
    told = refused("data", "merge", "times.csv", *FLAGS, "--where", "metric_unit=", "--store", "b.db")
    assert told == "--where has 'metric_unit=': expected COLUMN=VALUE, as unit=ms"


def _table(**columns: Any) -> Path:
    count = len(next(iter(columns.values())))
    named = {"operator": ["mine"] * count, "dtype": ["float16"] * count, "rows": [8] * count, "hidden": [64] * count}
    named |= {"B": list(range(1, count + 1)), "microseconds": [5] * count} | columns
    pq.write_table(pa.table(named), "theirs.parquet")
    return Path("theirs.parquet")


def test_numbers_of_other_types_are_read_from_parquet() -> None:
    times = pa.array([Decimal("1.50"), Decimal("2.25")], pa.decimal128(10, 2))
    blocks = pa.array([Decimal(64), Decimal(128)], pa.decimal128(10, 0))
    assert times_of(read_foreign(_table(microseconds=times, B=blocks), GPU)) == {
        ("mine", 8, 64, "B=64"): [1500] * 2,
        ("mine", 8, 64, "B=128"): [2250] * 2,
    }
    half = pa.array(np.array([1.5, 2.5], np.float16))
    assert times_of(read_foreign(_table(microseconds=half), GPU))["mine", 8, 64, "B=1"] == [1500] * 2


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_a_start_may_be_a_timestamp(zone: str | None) -> None:
    starts = pa.array([datetime(2026, 11, 23, 12, 0, 5)] * 2, pa.timestamp("us", zone))
    (run,) = read_foreign(_table(started=starts), GPU).runs
    assert run.started == "2026-11-23T12:00:05+00:00"


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"B": pa.array([b"0" * 16], pa.uuid())}, r"B of row 0 is UUID\('30303030-.*, no whole number"),
        ({"B": pa.array([b"ab"])}, "B of row 0 is b'ab', no whole number and no word"),
        ({"rows": pa.array([Decimal("8.5")])}, r"row 0: Decimal\('8.5'\) is no whole number"),
    ],
)
def test_a_value_of_another_type_is_named(columns: dict[str, Any], told: str) -> None:
    with one_line(UsageError, told):
        read_foreign(_table(**columns), GPU)


def test_two_columns_of_one_name_are_named() -> None:
    table = pq.read_table(_table(B=[1]))
    pq.write_table(table.append_column("B", pa.array([2])), "theirs.parquet")
    with one_line(UsageError, "theirs.parquet has the column 'B' 2 times: expected once"):
        read_foreign(Path("theirs.parquet"), GPU)


@pytest.mark.parametrize(
    "name", ["mine\n##[error]x", "##[error]x", "größe", "a b", "a..b", "x" * 201, "::error::x", "a.b=c", "1"]
)
def test_an_operator_is_words_joined_by_dots(name: str, make, make_run) -> None:
    text = HEAD + GOOD.replace("mine", f'"{name}"')
    with one_line(
        UsageError,
        "times.csv(: unknown variant ':error::x'| cannot be fitted: operator is .*, expected words joined by dots)",
    ):
        read(text)
    one = make(run=make_run(1))
    named = one._replace(problem=one.problem._replace(key=one.problem.key._replace(family=name)))
    with pytest.raises(ValueError, match=r"operator is .*, expected words joined by dots"):
        Evidence.from_measurements([named], [make_run(1)])


def test_no_device_begins_a_line_with_a_command_of_a_log() -> None:
    written(HEAD + GOOD)
    succeed("data", "merge", "times.csv", "--name", "##[error]A", "--target", "sm_90", "--store", "a.db")
    told = succeed("fit", "--store", "a.db")
    assert "\nerror]A, sm_90" in told and "\n##[" not in told


def test_a_knob_has_no_name_of_a_method() -> None:
    with one_line(UsageError, "a knob is named 'to_json', as a method of a config: rename it"):
        read(HEAD.replace(",B,", ",to_json,") + GOOD)


def test_cells_that_a_spreadsheet_would_run_are_quoted_and_read_back(make, make_run) -> None:
    run = make_run(1)
    reason = "=HYPERLINK(1)"
    failed = make((), run=run)._replace(status="crashed", reason=reason)
    evidence = Evidence.from_measurements([failed], [run])
    write_csv(evidence, Path("export.csv"))
    assert f",'{reason}," in Path("export.csv").read_text()
    assert read_foreign(Path("export.csv"), GPU).frame["reason"].tolist() == [reason]
    for text in ("=1", "+a", "-a", "@a", "'=a", "'", "a", "-5"):
        assert unquoted(quoted(text)) == text
