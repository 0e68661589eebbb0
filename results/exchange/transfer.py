"""Export of measurements to a file or a recording, and import of files.

In: a function that loads measurements of all regimes, or one that merges them into a store. Out: files and `Exported`,
or `Imported` for each file. Paths are checked before anything is loaded. `parquet_csv` and `recording` write the files.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.results.elsewhere import Elsewhere
from normtune.results.evidence import Evidence
from normtune.results.exchange.foreign_file import read_foreign
from normtune.results.exchange.parquet_csv import check_export, read_parquet, writer_of
from normtune.results.exchange.recording import check_folder, write_recording
from normtune.results.regimes import check_regime, in_regime, narrowed

Load = Callable[[], Evidence]


class Exported(NamedTuple):
    """Result of an export.

    Attributes:
        paths: the files.
        evidence: the exported measurements; a recording has only those with the newest kernels of each operator.
        left_out: number of measurements in other regimes.
        regimes: names of these regimes.
    """

    paths: tuple[Path, ...]
    evidence: Evidence
    left_out: int
    regimes: tuple[str, ...]


class Imported(NamedTuple):
    """Result of an import.

    Attributes:
        path: the file.
        measurements: number of measurements in it.
        added: number of new ones among them.
    """

    path: Path
    measurements: int
    added: int


def export_file(load: Load, path: Path, regime: str | None) -> Exported:
    """Write measurements of one regime, or of all, to a Parquet or CSV file.

    Raises:
        UsageError: the file has another ending or must not be overwritten, or there are no such measurements.
        NormtuneError: the measurements cannot be loaded, or the file cannot be written.
    """
    write = writer_of(path)
    _check(regime)
    check_export(path)
    result = _of_regime(load(), regime)
    write(result.evidence, path)
    return result._replace(paths=(path,))


def export_recording(load: Load, name: str, folder: Path, regime: str | None) -> Exported:
    """Write measurements of one regime, or of all, as a recording.

    Raises:
        UsageError: as `write_recording`, or there are no such measurements.
        NormtuneError: the measurements cannot be loaded, or as `write_recording`.
    """
    _check(regime)
    check_folder(folder)
    result = _of_regime(load(), regime)
    return result._replace(paths=tuple(write_recording(result.evidence, name, folder)))


def _check(regime: str | None) -> None:
    if regime is not None:
        check_regime(regime)


def _of_regime(whole: Evidence, regime: str | None) -> Exported:
    evidence = whole if regime is None else in_regime(whole, regime, "the store")
    if evidence.frame.empty:
        raise UsageError("there are no measurements to export: run `normtune sweep` first")
    others = tuple(name for name in whole.regimes() if name != regime)
    left_out = len(whole.frame) - len(evidence.frame)
    return Exported((), evidence, left_out, others if left_out else ())


def read_files(
    files: Iterable[str | os.PathLike[str]], elsewhere: Elsewhere | None = None, operators: Sequence[str] = ()
) -> list[tuple[Path, Evidence]]:
    """Read and check files that normtune exported, or files of another program's measurements.

    Args:
        files: paths.
        elsewhere: what a file of another program does not say.
        operators: only these, if there are any; a single one names that of all rows of a file without such a column.

    Raises:
        UsageError: no file is named, one does not exist, or one is a T4 file; or a file of another program cannot be
            read, or has no measurements of an operator.
        NormtuneError: a file is damaged, or normtune did not write it.
    """
    paths, elsewhere = list(map(Path, files)), elsewhere or Elsewhere()
    for path in paths:
        if path.name.endswith((".json", ".json.gz")):
            raise UsageError(
                f"{path} cannot be imported: the samples of a T4 file were not taken in rounds, so a store cannot "
                "compare them; `python benchmarks/strategies.py` replays such files"
            )
    if not paths:
        raise UsageError("no files are given: expected files that `normtune data export` or another program wrote")
    return [
        (
            path,
            narrowed(
                read_foreign(path, elsewhere, operators) if elsewhere.is_of(path) else read_parquet(path), operators, ()
            ),
        )
        for path in paths
    ]


def merged(parts: Sequence[tuple[Path, Evidence]], merge: Callable[[Evidence], int]) -> Iterator[Imported]:
    """Merge files into a store, one after the other.

    Raises:
        NormtuneError: a file contradicts the store; nothing of it is stored.
    """
    for path, evidence in parts:
        try:
            added = merge(evidence)
        except ValueError as error:
            raise NormtuneError(f"cannot import {path}: {error}") from None
        yield Imported(path, len(evidence.frame), added)
