"""CSV files of users: accepted ones, and the errors of others."""

import pytest

from normtune.errors import UsageError
from normtune.results.exchange import csv_file
from normtune.results.exchange.csv_file import positive, read_lines
from normtune.tests.commands import one_line


@pytest.fixture
def file(tmp_path):
    return tmp_path / "shapes.csv"


def test_columns_are_found_by_name_and_lines_by_number(file):
    file.write_bytes(b'\xef\xbb\xbfname, hidden ,rows\r\n\r\n"a, b",768, 4096\r\n , ,\r\nc,64\r\n')
    first, second = read_lines(file, ("rows", "hidden"), ("weight",))
    assert first == (f"{file}, line 3", {"rows": "4096", "hidden": "768"})
    assert second == (f"{file}, line 5", {"rows": "", "hidden": "64"})
    assert positive(first, "rows") == 4096


def test_optional_columns_are_given_where_they_are(file):
    file.write_text("rows,hidden,weight\n1,2,3\n")
    assert read_lines(file, ("rows",), ("weight", "dtype"))[0].cells == {"rows": "1", "weight": "3"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", r"has no column 'rows' but '': expected a CSV file whose first line names the columns rows,hidden"),
        (b"4096,768\n", r"has no column 'rows' but '4096,768'"),
        (b"rows;hidden\n1;2\n", r"has no column 'rows' but 'rows;hidden'"),
        (b"rows,Hidden\n1,2\n", r"has no column 'hidden' but 'rows,Hidden'"),
        (b"rows,hidden,rows\n1,2,3\n", r"names the column 'rows' 2 times"),
        (b"rows,hidden\n\n , \n", r"has no lines below its first"),
        (b"rows,hidden\n\xff\xfe,1\n", r"is no CSV file \('utf-8' codec"),
        (b'rows,hidden\n"1,2\n', r"is no CSV file \(unexpected end of data\)"),
    ],
)
def test_what_is_no_such_file_is_refused_in_one_line(file, content, told):
    file.write_bytes(content)
    with one_line(UsageError, told) as caught:
        read_lines(file, ("rows", "hidden"))
    assert str(file) in str(caught.value)


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(UsageError, match=r"none\.csv does not exist: expected a CSV file"):
        read_lines(tmp_path / "none.csv", ("rows",))
    with pytest.raises(UsageError, match="is no regular file: expected a CSV file"):
        read_lines(tmp_path, ("rows",))


def test_another_kind_of_file_is_not_read_to_its_end(file, monkeypatch):
    monkeypatch.setattr(csv_file, "MOST_LINES", 3)
    file.write_text("rows\n" + "1\n" * 4)
    with pytest.raises(UsageError, match="has over 3 lines"):
        read_lines(file, ("rows",))


@pytest.mark.parametrize("text", ["", "0", "-1", "1.0", "1e3", "x", "٣", "9" * 5000, "1_000"])
def test_what_is_no_positive_integer_is_named_with_its_line(file, text):
    file.write_text(f"rows,name\n1,a\n{text},b\n", encoding="utf-8")
    line = read_lines(file, ("rows",))[1]
    with pytest.raises(UsageError, match=r"shapes\.csv, line 3: rows is '.*', expected a positive integer") as caught:
        positive(line, "rows")
    assert len(str(caught.value)) < 300
