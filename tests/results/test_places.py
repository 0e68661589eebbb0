"""What a path can be read or written as: every answer of the operating system is a fault in words."""

import os
import re
import secrets
import stat

import pytest

from normtune.errors import NormtuneError, UsageError
from normtune.results.atomic import replaced
from normtune.results.paths import check_place, unreadable, unwritable

LONG = "(" * 300


@pytest.fixture
def folder(tmp_path):
    """A folder with a file, a folder, and a pipe."""
    (tmp_path / "file.csv").write_text("rows")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("file.csv", ""),
        ("none.csv", "does not exist"),
        ("file.csv/x", "does not exist"),
        ("folder", "is no regular file"),
        ("pipe", "is no regular file"),
        (LONG, "cannot be opened (File name too long)"),
        ("a/" * 3000, "cannot be opened (File name too long)"),
        ("a\0b", "cannot be opened (a NUL in its name)"),
    ],
)
def test_unreadable(folder, name, told):
    assert unreadable(folder / name) == told


@pytest.mark.skipif(os.getuid() == 0, reason="root may search any folder")
def test_a_folder_that_may_not_be_searched(folder):
    (folder / "folder").chmod(0)
    assert unreadable(folder / "folder" / "x") == "cannot be opened (Permission denied)"
    (folder / "folder").chmod(stat.S_IRWXU)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none/x.py", "the folder .*none does not exist; create it or name another"),
        ("file.csv/x.py", ".*file.csv is no folder; name another"),
        ("folder", "it is a folder, expected a file name"),
        (LONG, "File name too long; name another place"),
        (f"{LONG}/x.py", "the folder .* does not exist"),
        ("a\0b", "a NUL in its name; name another place"),
    ],
)
def test_no_file_can_be_written(folder, name, told):
    with pytest.raises(UsageError, match=rf"(?s)cannot write {re.escape(str(folder))}.*: {told}"):
        check_place(folder / name)


@pytest.mark.parametrize("name", ["file.csv", "new.py", "x" * 243, "x" * 255])
def test_a_file_can_be_written(folder, name):
    check_place(folder / name)
    assert not unwritable(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["file.csv", "folder", "pipe"]


@pytest.mark.parametrize("name", ["x" * 243, "x" * 255])
def test_a_file_of_the_longest_name_is_replaced(folder, name):
    for text in ("old", "new"):
        with replaced(folder / name) as temporary:
            temporary.write_text(text)
        assert (folder / name).read_text() == text


def test_a_link_in_place_of_the_temporary_file_is_not_followed(folder, monkeypatch):
    file, new = folder / "file.csv", folder / "new.csv"
    (folder / f".normtune.{os.getpid()}.tmp").symlink_to(file)
    with replaced(new) as temporary:
        temporary.write_text("hidden")
    monkeypatch.setattr(secrets, "token_hex", lambda count: "foreseen")
    (folder / ".normtune.foreseen.tmp").symlink_to(file)
    with pytest.raises(NormtuneError, match=r"cannot write .*other.csv: File exists"), replaced(folder / "other.csv"):
        pytest.fail("it was opened")
    assert (file.read_text(), new.read_text()) == ("rows", "hidden")


def test_a_new_file_has_the_mode_that_the_umask_leaves_it(folder):
    before = os.umask(0o027)
    try:
        with replaced(folder / "new.csv") as temporary:
            temporary.write_text("rows")
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "new.csv").stat().st_mode) == 0o640
