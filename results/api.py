"""`normtune data` for Python.

In: measurements, files. Out: a frame of counts, files, or more measurements in a store. Paths are checked before
anything is read. Nothing is printed.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from normtune.errors import UsageError
from normtune.kernels.arguments import checked
from normtune.results.database.store import Store
from normtune.results.elsewhere import Columns, Elsewhere
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import check_export, writer_of
from normtune.results.exchange.recording import check_folder, write_recording
from normtune.results.merge import Merged, merged
from normtune.results.overview import COLUMNS, overview
from normtune.results.regimes import COLD, check_regime, in_regime
from normtune.results.source import Keys, Measured, counted, read_evidence


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


@checked
def list_data(data: Measured = None) -> pd.DataFrame:
    """Count measurements by device, operator, dtype and regime, as `normtune data list` does.

    Args:
        data: a store, open or by its file or URL, the name of a recording, or evidence; None for the default store.

    Returns:
        Columns device, sms (number of its multiprocessors), operator (with its variant), dtype, regime, unpaired
        (whether another program measured); the numbers of problems, measurements and runs; and statuses, a dictionary
        with the number of measurements by status.

    Raises:
        UsageError: data are not measurements.
        NormtuneError: the store cannot be read.
    """
    return pd.DataFrame(overview(counted(data)), columns=list(COLUMNS))


@checked
def export_data(
    path: str | os.PathLike[str],
    data: Measured = None,
    *,
    operators: str | Iterable[str] = (),
    dtypes: str | Iterable[str] = (),
    regime: str | None = COLD,
) -> Exported:
    """Write measurements to a file, as `normtune data export` does.

    Args:
        path: of the file, `.parquet` (to import or to fit elsewhere) or `.csv` (a line per sample); a file that
            normtune wrote there before is replaced.
        data: a store, open or by its file or URL, or evidence; None for the default store.
        operators: only these, plain names or names with a variant; empty means all.
        dtypes: only these; empty means all.
        regime: only times measured `cold`, `warm` or `eager`; None for all.

    Raises:
        UsageError: the file has another ending or must not be overwritten, or there are no such measurements.
        NormtuneError: the store cannot be read, or the file cannot be written.
    """
    file = Path(path)
    write = writer_of(file)
    check_export(file)
    exported = _selected(data, Keys(operators=operators, dtypes=dtypes), regime)
    write(exported.evidence, file)
    return exported._replace(paths=(file,))


@checked
def export_recording(
    name: str,
    folder: str | os.PathLike[str],
    data: Measured = None,
    *,
    operators: str | Iterable[str] = (),
    dtypes: str | Iterable[str] = (),
    regime: str | None = COLD,
) -> Exported:
    """Write measurements of one device as a recording, as those that ship with normtune.

    Args:
        name: of the recording, such as `nvidia-h200`.
        folder: for its files, `NAME.OPERATOR.parquet` for each operator; if that would be over 2 MB,
            `NAME.OPERATOR.DTYPE.parquet` for each dtype.
        data: as in `export_data`.
        operators: as in `export_data`.
        dtypes: as in `export_data`.
        regime: as in `export_data`.

    Raises:
        UsageError: the name is not valid, the folder does not exist or is not writable, a file of normtune's name there
            is of another program, or the measurements are none, of several devices or of a replay.
        NormtuneError: the store cannot be read, or a file would be too large or cannot be written.
    """
    check_folder(Path(folder))
    exported = _selected(data, Keys(operators=operators, dtypes=dtypes), regime)
    return exported._replace(paths=tuple(write_recording(exported.evidence, name, Path(folder))))


def _selected(data: Measured, keys: Keys, regime: str | None) -> Exported:
    """The measurements of one regime, None for all, and what is left out."""
    if regime is not None:
        check_regime(regime)
    whole = keys.of(read_evidence(data, None))
    evidence = in_regime(whole, regime, "the store")
    if evidence.frame.empty:
        raise UsageError("there are no measurements to export: sweep first")
    left_out = len(whole.frame) - len(evidence.frame)
    return Exported((), evidence, left_out, tuple(name for name in whole.regimes() if left_out and name != regime))


@checked
def merge_data(
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    store: Store | str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    target: str | None = None,
    sms: int | None = None,
    columns: Columns | None = None,
    where: Columns | None = None,
) -> tuple[Merged, ...]:
    """Add the measurements of files and stores to a store, as `normtune data merge` does.

    The order of sources makes no difference, nor does merging one again.

    Args:
        sources: one or several: Parquet files that normtune exported, CSV and Parquet files of another program, and
            stores, by their files or URLs; all are opened and files checked before the store is.
        store: open, or by its file or URL, created if it is missing; None for NORMTUNE_STORE, else `normtune.db` in the
            current folder.
        name: the driver's name of the GPU of another program's files.
        target: the compiler's name of that GPU, `sm_90`.
        sms: its multiprocessors; None for those of the best-known GPU of the target.
        columns: names of columns, as in `fit`.
        where: only rows of another program's files with these values, as in `fit`.

    Raises:
        UsageError: there are no sources, one does not exist, the URL is not that of a store, or another program's file
            lacks a column, has an invalid value or no fact of its GPU.
        NormtuneError: a source cannot be read or contradicts the store; nothing of it is stored.
    """
    elsewhere = Elsewhere(name=name, target=target, sms=sms, columns=columns, where=where)
    paths = [sources] if isinstance(sources, str | os.PathLike) else sources
    return tuple(merged(paths, store, elsewhere))
