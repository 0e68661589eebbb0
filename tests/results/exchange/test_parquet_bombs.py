"""Small files that would decode to much: refused by what their footer says, or at the batch that is too much."""

import random
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.results.elsewhere import Elsewhere
from normtune.results.evidence import Evidence
from normtune.results.exchange import csv_file, parquet_file
from normtune.results.exchange.csv_file import read_lines
from normtune.results.exchange.foreign_file import read_foreign
from normtune.results.exchange.parquet_csv import read_parquet, write_parquet
from normtune.tests.commands import one_line, python


@pytest.fixture
def written(make, make_run, tmp_path):
    """Writes a file of ours with this number of equal rows, some of its columns replaced."""
    run = make_run(1)
    path = tmp_path / "data.parquet"
    write_parquet(Evidence.from_measurements([make(run=run)], [run]), path)
    one = pq.read_table(path)

    def write(rows, columns=None, **options):
        table = one.take(np.zeros(rows, np.int64))
        for name, values in (columns or {}).items():
            place = table.schema.get_field_index(name)
            table = table.append_column(name, values) if place < 0 else table.set_column(place, name, values)
        pq.write_table(table, path, compression="zstd", **options)
        return path

    return write


def coded(rows, value, kind):
    """A column of one value, which is in the file once."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value], kind))


def refused(path, told, monkeypatch):
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(parquet_file, "MOST_BYTES", 1 << 24)
    with one_line(NormtuneError, told, 399):
        read_parquet(path)


def footer_of(content):
    """Where the footer of a file begins, whose length stands before the last word."""
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def undecoded(monkeypatch):
    """No column is read."""
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)


def test_very_many_rows(written, monkeypatch):
    path = written(40_000)
    undecoded(monkeypatch)
    refused(path, "takes over 16 MB of memory to be read: export fewer measurements in a file", monkeypatch)


def test_a_row_with_very_many_samples(written, monkeypatch):
    many = pa.ListArray.from_arrays(pa.array([0, 4_000_000], pa.int32()), pa.array(np.full(4_000_000, 7, np.int32)))
    path = written(1, {"rounds": many, "samples": many})
    undecoded(monkeypatch)
    refused(path, "takes over 16 MB of memory to be read", monkeypatch)


def test_one_long_text_in_all_rows(written, monkeypatch):
    path = written(2000, {"reason": pa.array(["x" * 20_000] * 2000)})
    refused(path, "the texts of column reason have over 16 MB", monkeypatch)


def test_texts_that_are_made_of_the_one_before(written, monkeypatch):
    texts = pa.array([f"{'y' * 5000}{number}" for number in range(2000)])
    options = {"use_dictionary": False, "column_encoding": {"reason": "DELTA_BYTE_ARRAY"}}
    path = written(2000, {"reason": texts}, **options)
    undecoded(monkeypatch)
    refused(path, "texts in the encoding DELTA_BYTE_ARRAY", monkeypatch)


def test_values_of_a_fixed_length_are_counted_batch_by_batch(tmp_path, monkeypatch):
    """The footer counts one value, which the dictionary of the column has for all rows."""
    kind, path = pa.binary(10_000), tmp_path / "theirs.parquet"
    pq.write_table(pa.table({"more": coded(20_000, b"z" * 10_000, kind).cast(kind)}), path)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(parquet_file, "MOST_BYTES", 1 << 25)
    with one_line(NormtuneError, "takes over 32 MB of memory to be read", 399):
        read_foreign(path, Elsewhere(name="GPU", target="sm_90"))


def test_a_file_that_is_larger_than_the_limit_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "large.parquet"
    path.write_bytes(bytes(2000))
    monkeypatch.setattr(parquet_file, "MOST_BYTES", 1000)
    with one_line(NormtuneError, "takes over 0 MB of memory to be read", 399):
        read_parquet(path)


def test_a_file_that_is_truncated_while_it_is_read_ends_no_process(varied, tmp_path, monkeypatch):
    path = tmp_path / "data.parquet"
    write_parquet(varied, path)
    opened = parquet_file.opened

    def truncated(place):
        file = opened(place)
        path.write_bytes(b"")
        return file

    monkeypatch.setattr(parquet_file, "opened", truncated)
    assert read_parquet(path).digest() == varied.digest()


@pytest.mark.parametrize(
    ("name", "values"),
    [("rows", coded(2000, b"z" * 10_000, pa.binary())), ("samples", coded(2000, "z" * 10_000, pa.string()))],
)
def test_a_column_of_another_type_is_not_decoded(written, monkeypatch, name, values):
    path = written(2000, {name: values})
    undecoded(monkeypatch)
    refused(path, f"column {name} is .*, expected", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_damaged_file_takes_no_more_than_a_whole_one(varied, tmp_path, seeds):
    """In a process that may take 2 GB more than it has: a footer or a page's header may claim what it likes.

    pyarrow 26 aborts the process at some footers, 3 of 1500, which no caller can catch. Another reads what is left.
    """
    whole = tmp_path / "whole.parquet"
    write_parquet(varied, whole)
    good = whole.read_bytes()
    footer = footer_of(good)
    draw = random.Random(5)
    folder = tmp_path / "damaged"
    folder.mkdir()
    for number in range(seeds):
        content = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        (folder / f"{number}.parquet").write_bytes(content)
    code = (
        "import re, resource, sys\nfrom pathlib import Path\nfrom normtune.errors import NormtuneError\n"
        "from normtune.results.exchange.parquet_csv import read_parquet\n"
        "read_parquet(Path(sys.argv[1]))\n"
        "pages = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (pages + (2 << 30), -1))\n"
        "for path in sorted(Path(sys.argv[2]).iterdir()):\n"
        "    try:\n        read_parquet(path)\n"
        "    except NormtuneError as error:\n        assert len(str(error)) < 1000 and '\\n' not in str(error), error\n"
        # The peak of getrusage would be that of the process that forked this one, where it is higher.
        "    print(*re.findall(r'VmHWM:\\s*(\\d+) kB', Path('/proc/self/status').read_text()), flush=True)\n"
        "    path.unlink()\n"
    )
    aborted = 0
    while any(folder.iterdir()):
        done = python("-P", "-c", code, whole, folder, timeout=600)
        assert max(map(int, done.stdout.split()), default=0) < 600_000, "KB"
        if done.returncode != -signal.SIGABRT:
            assert done.returncode == 0, done.stderr[-2000:]
            continue
        aborted += 1
        culprit = min(folder.iterdir())
        assert culprit.read_bytes()[footer:] != good[footer:], "aborted, and the footer is whole"
        culprit.unlink()
    assert aborted <= seeds // 50


def test_a_very_large_file_of_weights_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "weights.csv"
    path.write_text("rows,hidden,weight\n" + "1,64,1\n" * 100)
    monkeypatch.setattr(csv_file, "MOST_BYTES", 100)
    with pytest.raises(
        UsageError, match=r"weights\.csv has 719 bytes, at most 100 are read: expected a CSV file whose"
    ):
        read_lines(path, ("rows", "hidden", "weight"))
