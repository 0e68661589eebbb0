"""Parquet is lossless and checked on reading; CSV has the same content as text."""

import csv
import json
import os
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.config import COPY
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.rms_norm.operator import FINISHES, SCHEDULES, RMSNormConfig
from normtune.results.database.store import Store
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import read_parquet, write_csv, write_parquet
from normtune.results.records import STATUSES, Measurement, TimedCode
from normtune.tests.commands import one_line

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12)
words = st.from_regex("[a-z_][a-z0-9_]{0,9}", fullmatch=True)
configs = st.just(COPY) | st.builds(
    RMSNormConfig,
    st.sampled_from(SCHEDULES),
    *(st.integers(least, 1 << 20) for least in (1, 1, 1, 0)),
    st.sampled_from(FINISHES),
    st.integers(0, 1 << 20),
)
problems = st.builds(
    Problem.of, words, st.integers(1, MAX_ROWS), st.integers(1, 2**16), words, st.sampled_from(["", "no_rstd"])
)

codes = st.none() | st.builds(TimedCode, st.binary(min_size=1, max_size=32), st.binary(max_size=32))


@st.composite
def measurements(draw):
    samples = draw(st.dictionaries(st.integers(0, 2**31 - 1), st.integers(1, 2**31 - 1), max_size=6))
    rounds = sorted(samples)
    status = "ok" if samples else draw(st.sampled_from(STATUSES[1:]))
    return Measurement(
        draw(problems),
        draw(configs),
        f"{draw(st.integers(0, 1)):032x}",
        draw(texts),
        status,
        "" if samples else draw(texts.filter(str.strip)),
        np.array(rounds, np.int32),
        np.array([samples[number] for number in rounds], np.int32),
        draw(codes),
    )


def identity(item):
    return (item.problem, item.config, item.run, item.rounds[0] if len(item.rounds) else -1)


@pytest.mark.slow
@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(items=st.lists(measurements(), max_size=8, unique_by=identity))
def test_the_digest_is_the_same_in_memory_file_and_store(items, make_run, plain_rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trip")
    evidence = Evidence.from_measurements(items, [make_run(0), make_run(1, name="NVIDIA B200")])
    write_parquet(evidence, folder / "a.parquet")
    read = read_parquet(folder / "a.parquet")
    with Store.open(f"sqlite:///{folder / 'store.db'}") as store:
        assert store.merge(read) == len(items)
        assert store.merge(read) == 0
        loaded = store.load()
    write_parquet(loaded, folder / "b.parquet")
    assert plain_rows(read.measurements()) == plain_rows(loaded.measurements()) == plain_rows(evidence.measurements())
    assert {read.digest(), loaded.digest(), read_parquet(folder / "b.parquet").digest()} == {evidence.digest()}
    assert (read.runs, loaded.runs) == (evidence.runs, evidence.runs)
    assert (folder / "a.parquet").read_bytes() == (folder / "b.parquet").read_bytes()


@pytest.fixture
def file(varied, tmp_path):
    path = tmp_path / "data.parquet"
    write_parquet(varied, path)
    return path


@pytest.mark.parametrize("kept", [0, 3, 100, 0.5, 0.99])
def test_a_truncated_file(file, kept):
    content = file.read_bytes()
    file.write_bytes(content[: kept if isinstance(kept, int) else int(len(content) * kept)])
    with one_line(NormtuneError, r"data\.parquet is no Parquet file or a damaged one"):
        read_parquet(file)


def test_a_parquet_file_of_somebody_else(tmp_path):
    path = tmp_path / "cities.parquet"
    pq.write_table(pa.table({"city": ["Ulm"]}), path)
    with pytest.raises(NormtuneError, match=r"cities\.parquet is a Parquet file that normtune did not write"):
        read_parquet(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(UsageError, match=r"none\.parquet does not exist: expected a Parquet file"):
        read_parquet(tmp_path / "none.parquet")
    os.mkfifo(tmp_path / "pipe.parquet")
    for path in (tmp_path, tmp_path / "pipe.parquet"):
        with pytest.raises(UsageError, match=f"{path} is no regular file: expected a Parquet file"):
            read_parquet(path)


def test_a_file_that_may_not_be_read(file, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(pq, "read_schema", refuse)
    with pytest.raises(
        NormtuneError, match=r"data\.parquet cannot be read \(Permission denied\): change its permissions"
    ):
        read_parquet(file)


def replace(name, values):
    def change(table, head):
        return table.set_column(table.column_names.index(name), name, values(table.column(name).to_pylist())), head

    return change


def config(**fields):
    """Gives the last config, which is no copy, these fields."""
    return replace(
        "config", lambda old: pa.array([*old[:-1], RMSNormConfig.from_json(old[-1])._replace(**fields).to_json()])
    )


def coded(launch, assembly):
    """Says that the first measurement launched this."""

    def change(table, head):
        for name, value in (("launch", launch), ("assembly", assembly)):
            table = table.append_column(name, [pa.array([value, *[None] * (len(table) - 1)])])
        return table, head

    return change


def drop_runs(table, head):
    return table, {**head, "runs": []}


def break_device(table, head):
    head["runs"][0]["device"]["sms"] = "132"
    return table, head


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda table, head: (table, {**head, "format": 2}), "has format '2', this normtune reads 1: update normtune"),
        (lambda table, head: (table, {**head, "format": "new\n" * 99}), r"has format 'new\\nnew\\n"),
        (lambda table, head: (table, [head]), "has content that normtune does not write"),
        (lambda table, head: (table, {**head, "runs": 3}), "has content that normtune does not write"),
        (lambda table, head: (table, {**head, "runs": [{"id": "x" * 10**6}]}), r"not a run: .\{'id': 'x+"),
        (lambda table, head: (table, {"runs": []}), "format"),
        (lambda table, head: (table.drop_columns(["samples"]), head), "there is no column samples"),
        (drop_runs, "not among the runs"),
        (break_device, "sms of a device is '132', expected int"),
        (replace("rows", lambda old: pa.array([0, *old[1:]])), "rows is 0"),
        (replace("rows", lambda old: pa.array([None, *old[1:]], pa.int64())), "column rows has nulls"),
        (replace("hidden", lambda old: pa.array([str(size) for size in old])), "column hidden is string"),
        (replace("status", lambda old: pa.array(["good", *old[1:]])), "status is 'good'"),
        (replace("config", lambda old: pa.array(["{}", *old[1:]])), "not a config"),
        (config(num_warps=0), "num_warps of a config is 0, expected 1 to"),
        (config(block_row=0), "block_row of a config is 0, expected 1 to"),
        (config(block_row=1 << 40), "block_row of a config is 1099511627776, expected 1 to"),
        (config(schedule="row; import os"), "schedule of a config is 'row; import os', expected a word"),
        (config(finish="\x1b[2J"), "finish of a config is '.x1b.2J', expected a word"),
        (replace("rows", lambda old: pa.array([1 << 62, *old[1:]])), "rows is 4611686018427387904, expected"),
        (replace("samples", lambda old: pa.array([[1.5] * len(row) for row in old])), "expected list<int32>"),
        (replace("samples", lambda old: pa.array([*old[:-1], [1, 2]], pa.list_(pa.int32()))), "2 samples have 1 round"),
        (coded(b"x" * 33, b""), "digests of code have 33, 0 bytes, expected 1 to 32 of the launch"),
        (coded(b"x" * 8, b"y" * 99), "digests of code have 8, 99 bytes"),
        (coded("x", b""), "column launch is string, expected binary"),
        (replace("rounds", lambda old: pa.array([[-1 - n for n in r] for r in old], pa.list_(pa.int32()))), "a round"),
    ],
)
def test_a_file_whose_content_was_changed(file, change, told):
    table = pq.read_table(file)
    head = json.loads(table.schema.metadata[b"normtune"])
    table, head = change(table.replace_schema_metadata(None), head)
    pq.write_table(table.replace_schema_metadata({b"normtune": json.dumps(head).encode()}), file)
    with one_line(NormtuneError, told, 599):
        read_parquet(file)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"", b"[" * 100_000, b'{"format": 1, "runs": [' + b"9" * 5000 + b"]}"])
def test_metadata_that_is_no_json(file, text):
    pq.write_table(pq.read_table(file).replace_schema_metadata({b"normtune": text}), file)
    with one_line(NormtuneError, r"data\.parquet has content that normtune does not write", 599):
        read_parquet(file)


def test_a_page_that_its_header_hides_is_missed(file):
    content = bytearray(file.read_bytes())
    page = pq.ParquetFile(file).metadata.row_group(0).column(0).data_page_offset
    assert content[page + 1] == 0, "a page of data"
    content[page + 1] = 2  # of an index, which no reader reads
    file.write_bytes(content)
    with one_line(NormtuneError, r"damaged one \(0 of 7 rows\): export it again", 599):
        read_parquet(file)


@pytest.mark.slow
def test_a_flipped_bit_of_the_data_is_found(file, varied):
    good = file.read_bytes()
    draw = random.Random(3)
    # The data stand before the footer, whose length stands before the last word.
    end = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    for _ in range(200):
        content = bytearray(good)
        content[draw.randrange(4, end)] ^= 1 << draw.randrange(8)
        file.write_bytes(content)
        try:
            assert read_parquet(file).digest() == varied.digest()
        except NormtuneError as error:
            assert "\n" not in str(error)


def test_csv_has_a_line_a_sample_and_one_a_failure(varied, tmp_path):
    path = tmp_path / "data.csv"
    write_csv(varied, path)
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    runs = {run.id: run for run in varied.runs}
    expected = []
    for item in varied.measurements():
        pairs = list(zip(item.rounds.tolist(), item.samples.tolist(), strict=True)) or [("", "")]
        device = runs[item.run].device
        for number, nanoseconds in pairs:
            expected.append(
                {
                    **{"device": device.label, "sms": device.sms, "run": item.run, "started": runs[item.run].started},
                    "regime": "cold",
                    **dict(zip(("operator", "rows", "hidden", "dtype", "variant"), item.problem.columns, strict=True)),
                    **item.config._asdict(),
                    **{"fingerprint": item.fingerprint, "status": item.status, "reason": item.reason},
                    **{"round": number, "nanoseconds": nanoseconds},
                }
            )
    assert lines == [{name: str(value) for name, value in line.items()} for line in expected]


@pytest.mark.parametrize("write", [write_parquet, write_csv])
def test_a_file_is_replaced_whole_or_stays(write, varied, tmp_path, monkeypatch):
    path = tmp_path / "data.out"
    path.write_text("precious")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(NormtuneError, match=r"cannot write .*data\.out: No space left on device"):
            write(varied, path)
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == ["data.out"]
    write(varied, path)
    assert path.read_bytes()[:8] != b"precious"
    assert os.listdir(tmp_path) == ["data.out"]


@pytest.mark.parametrize("write", [write_parquet, write_csv])
def test_a_missing_output_folder(write, varied, tmp_path):
    with pytest.raises(UsageError, match=r"the folder .*none does not exist"):
        write(varied, tmp_path / "none" / "data.out")
    with pytest.raises(UsageError, match="it is a folder"):
        write(varied, tmp_path)
    with pytest.raises(UsageError, match="/dev/null is no folder; name another"):
        write(varied, Path("/dev/null/data.out"))
    assert os.listdir(tmp_path) == []
