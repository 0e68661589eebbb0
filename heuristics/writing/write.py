"""Files that `fit` writes, replaced whole or not at all, and files that it must not overwrite."""

import keyword
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from normtune.errors import UsageError
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import comment_of, is_edited, parse
from normtune.kernels.tablefile.syntax import has_comments
from normtune.results.atomic import replaced
from normtune.results.paths import check_place

if TYPE_CHECKING:
    from normtune.results.records import Device


# In the first line of files in a form other than a table.
WRITTEN = "Written by normtune"


def is_folder(place: str) -> bool:
    """Whether an option names a folder, for one file per device."""
    return place.endswith(("/", os.sep)) or os.path.isdir(place)


def files(place: str | None, names: Sequence[str], suffix: str) -> list[Path]:
    """The file of each name: `place`, or if that is a folder, which is created, a file in it; empty without a place.

    Raises:
        UsageError: the folder cannot be created.
    """
    if not place or not names:
        return []
    if not is_folder(place):
        return [Path(place)] * len(names)
    make_folder(Path(place))
    return [Path(place) / f"{name}{suffix}" for name in names]


def names(devices: "Sequence[Device]") -> list[str]:
    """File names for devices; devices of one name are distinguished by their multiprocessors."""
    slugs = [locate.slug(device.label) for device in devices]
    return [
        f"{slug}_{device.sms}_sms" if slugs.count(slug) > 1 else slug
        for slug, device in zip(slugs, devices, strict=True)
    ]


def make_folder(folder: Path, parents: bool = False, advice: str = "name another") -> None:
    """Create a folder unless it exists; with `parents`, also all missing parents.

    Raises:
        UsageError: the folder cannot be created; the message ends with `advice`.
    """
    try:
        folder.mkdir(parents=parents, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create the folder {folder}: {error.strerror or error}; {advice}") from None


def check_files(table: Path | None, data: Path | None, force: bool) -> None:
    """Refuse to overwrite files that somebody may want to keep; None for a file that is not written.

    Raises:
        UsageError: a file would be overwritten, or a name or folder is wrong.
    """
    if table:
        check_table(table, force)
    if data:
        check_evidence(data, force)


def check_table(path: Path, force: bool) -> None:
    """Refuse to overwrite a file that somebody may want to keep.

    Raises:
        UsageError: the path is not a regular file; or normtune did not write it, or it was edited since, and `force` is
            not set.
    """
    if _replaceable(path, force) and (why := not_as_written(path)):
        raise UsageError(f"cannot write {path}: {why}; --force overwrites it")


def check_text(path: Path, force: bool) -> None:
    """The same as `check_table` for a file in another form, whose edits are not noticed.

    Raises:
        UsageError: the path is not a regular file, or normtune did not write it and `force` is not set.
    """
    if _replaceable(path, force) and WRITTEN.encode() not in _begins(path, 80):
        raise UsageError(f"cannot write {path}: it exists and normtune did not write it; --force overwrites it")


def is_importable(path: Path) -> bool:
    """Whether Python can import a file by its name."""
    return path.stem.isidentifier() and not keyword.iskeyword(path.stem)


def not_as_written(path: Path) -> str:
    """Why a file is not an unedited table of normtune, for a message; empty if it is one.

    Raises:
        UsageError: the file cannot be read.
    """
    _begins(path, 1)
    try:
        text = locate.read(path)
        comment_of(text.split("\n"))
    except (UsageError, ValueError):
        return "it exists and normtune did not write it"
    try:
        header, body = parse(text, str(path))
        # `check` ignores comments, but a user who wrote them would lose them.
        edited = is_edited(header, body) or has_comments(body)
    except UsageError:
        edited = True
    return "it was edited since normtune wrote it" if edited else ""


def check_evidence(path: Path, force: bool) -> None:
    """Refuse to overwrite a file that is not a Parquet file of normtune.

    Raises:
        UsageError: the name does not end in .parquet; the path is not a regular file; or normtune did not write it, and
            `force` is not set.
    """
    from normtune.results.exchange import parquet_csv

    if path.suffix.lower() != ".parquet":
        raise UsageError(f"--evidence is {str(path)!r}: expected a file that ends in .parquet")
    if _replaceable(path, force) and not parquet_csv.is_export(path):
        raise UsageError(f"cannot write {path}: it exists and normtune did not write it; --force overwrites it")


def write_table(text: str, path: Path) -> None:
    """Write the text of a module to a file, which is replaced if it exists; comments above a table stay.

    Raises:
        UsageError: its folder does not exist.
        NormtuneError: it cannot be written.
    """
    above = ""
    with suppress(UsageError, ValueError):  # there is no table
        lines = locate.read(path).split("\n")
        above = "".join(f"{line}\n" for line in lines[: comment_of(lines).start])
    with replaced(path) as temporary:
        temporary.write_text(above + text, "utf-8", newline="\n")


def _replaceable(path: Path, force: bool) -> bool:
    """Whether there is a file to inspect before it is replaced.

    Raises:
        UsageError: the folder is missing, or the path is not a regular file.
    """
    check_place(path)
    if os.path.lexists(path) and not path.is_file():
        raise UsageError(f"cannot write {path}: it is not a regular file, name another")
    return path.exists() and not force


def _begins(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: it exists and cannot be read ({error.strerror}); name another"
        ) from None
