"""`normtune data` for Python.

In: measurements, files. Out: a frame of counts, files, or more measurements in a store. `exchange` does the work;
nothing is printed.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pandas as pd

from normtune.errors import UsageError
from normtune.kernels.arguments import checked
from normtune.kernels.key import Key
from normtune.results.database.store import Store, resolve_url
from normtune.results.elsewhere import Columns, Elsewhere
from normtune.results.evidence import Evidence
from normtune.results.exchange import transfer
from normtune.results.exchange.transfer import Exported, Imported
from normtune.results.options import as_names
from normtune.results.regimes import COLD
from normtune.results.source import Keys, Measured, taken

_OVERVIEW = (
    *("device", "sms", "operator", "dtype", "regime", "unpaired"),
    *("problems", "measurements", "runs", "statuses"),
)


@checked
def list_data(data: Measured = None, *, recording: str | None = None) -> pd.DataFrame:
    """Count measurements by device, operator, dtype and regime, as `normtune data list` does.

    Args:
        data: a store, open or by its file or URL, or evidence; None for the default store.
        recording: name of a recording that ships with normtune, in place of data.

    Returns:
        Columns device, sms (number of its multiprocessors), operator (with its variant), dtype, regime, unpaired
        (whether another program measured); the numbers of problems, measurements and runs; and statuses, a dictionary
        with the number of measurements by status.

    Raises:
        UsageError: data and a recording are both given, or one of them is invalid.
        NormtuneError: the store cannot be read.
    """
    return overview(taken(data, recording, None))


def overview(evidence: Evidence) -> pd.DataFrame:
    """The frame of `list_data`."""
    runs = {run.id: run for run in evidence.runs}
    devices = {run.id: f"{run.device.label}, {run.device.sms} SMs" for run in evidence.runs}
    frame = evidence.frame.assign(
        device=evidence.frame["run"].map(devices),
        regime=evidence.frame["run"].map({run.id: run.regime for run in evidence.runs}),
        unpaired=evidence.unpaired_rows(),
    )
    rows = []
    for (*names, unpaired), part in frame.groupby(["device", "operator", "variant", "dtype", "regime", "unpaired"]):
        _, operator, variant, dtype, regime = map(str, names)
        device = runs[part["run"].iloc[0]].device
        counts = part["status"].value_counts()
        statuses = {str(status): int(counts[status]) for status in sorted(counts.index, key=lambda s: (s != "ok", s))}
        problems = len(part[["rows", "hidden"]].drop_duplicates())
        numbers = problems, len(part), part["run"].nunique()
        key = Key.of(operator, variant, dtype)
        rows.append((device.label, device.sms, key.text, dtype, regime, bool(unpaired), *numbers, statuses))
    return pd.DataFrame(rows, columns=list(_OVERVIEW))


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
    return transfer.export_file(
        lambda: Keys(operators=operators, dtypes=dtypes).of(taken(data, None, None)), Path(path), regime
    )


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
    """Write measurements of one device as a recording, as `normtune data export --recording` does.

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
    keys = Keys(operators=operators, dtypes=dtypes)
    return transfer.export_recording(lambda: keys.of(taken(data, None, None)), name, Path(folder), regime)


@checked
def import_data(
    files: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    store: Store | str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    target: str | None = None,
    sms: int | None = None,
    columns: Columns | None = None,
    operators: str | Iterable[str] = (),
) -> tuple[Imported, ...]:
    """Add the measurements of files to a store, as `normtune data import` does; stored ones are not changed.

    Args:
        files: a path or several, of Parquet files that normtune exported or of CSV and Parquet files of another
            program; all files are read and checked before the store is opened.
        store: open, or by its file or URL, created if it is missing; None for NORMTUNE_STORE, else `normtune.db` in the
            current folder.
        name: the driver's name of the GPU of another program's files.
        target: the compiler's name of that GPU, `sm_90`.
        sms: its multiprocessors; None for those of the best-known GPU of the target.
        columns: names of columns, as in `fit`.
        operators: only these; one is that of all rows of a file without such a column.

    Raises:
        UsageError: no file is named, a file does not exist, the URL is not that of a store, or another program's file
            lacks a column, has an invalid value or no fact of its GPU.
        NormtuneError: a file cannot be read or contradicts the store; nothing of it is stored.
    """
    elsewhere = Elsewhere(name=name, target=target, sms=sms, columns=columns)
    paths = [files] if isinstance(files, str | os.PathLike) else files
    return tuple(imported(paths, store, elsewhere, as_names("operators", operators)))


def imported(
    files: Iterable[str | os.PathLike[str]],
    store: Store | str | os.PathLike[str] | None,
    elsewhere: Elsewhere,
    operators: Sequence[str],
) -> Iterator[Imported]:
    """Import files one after the other, as `import_data`."""
    if not isinstance(store, Store | str | os.PathLike | None):
        raise UsageError(f"store is {store!r:.80}: expected a store, its file or URL")
    url = "" if isinstance(store, Store) else resolve_url(None if store is None else os.fspath(store))
    paths = list(files) if isinstance(files, Iterable) else [files]
    if wrong := [path for path in paths if not isinstance(path, str | os.PathLike)]:
        raise UsageError(f"files has {wrong[0]!r}: expected paths of files")
    parts = transfer.read_files(paths, elsewhere, operators)
    with nullcontext(store) if isinstance(store, Store) else Store.open(url) as opened:
        yield from transfer.merged(parts, opened.merge)
