"""Export of measurements to a file or a recording.

In: a function that loads measurements of all regimes. Out: files and `Exported`. Paths are checked before anything is
loaded. `parquet_csv` and `recording` write the files.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import check_export, writer_of
from normtune.results.exchange.recording import check_folder, write_recording
from normtune.results.regimes import check_regime, in_regime

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


def export_file(load: Load, path: Path, regime: str | None) -> Exported:
    """Write measurements of one regime, or of all, to a Parquet or CSV file.

    Raises:
        UsageError: the file has another ending or must not be overwritten, or there are no such measurements.
        NormtuneError: the measurements cannot be loaded, or the file cannot be written.
    """
    write = writer_of(path)
    result = _loaded(load, regime, check_export, path)
    write(result.evidence, path)
    return result._replace(paths=(path,))


def export_recording(load: Load, name: str, folder: Path, regime: str | None) -> Exported:
    """Write measurements of one regime, or of all, as a recording.

    Raises:
        UsageError: as `write_recording`, or there are no such measurements.
        NormtuneError: the measurements cannot be loaded, or as `write_recording`.
    """
    result = _loaded(load, regime, check_folder, folder)
    return result._replace(paths=tuple(write_recording(result.evidence, name, folder)))


def _loaded(load: Load, regime: str | None, check: Callable[[Path], None], path: Path) -> Exported:
    """The measurements of one regime, loaded after the checks, and what is left out."""
    if regime is not None:
        check_regime(regime)
    check(path)
    whole = load()
    evidence = in_regime(whole, regime, "the store")
    if evidence.frame.empty:
        raise UsageError("there are no measurements to export: sweep first")
    others = tuple(name for name in whole.regimes() if name != regime)
    left_out = len(whole.frame) - len(evidence.frame)
    return Exported((), evidence, left_out, others if left_out else ())
