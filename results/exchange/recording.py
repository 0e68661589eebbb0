"""Recordings: exhaustive sweeps that ship with the package, as Parquet files per device and operator (and dtype).

In: the name of a recording. Out: its evidence; or the files of a new recording. `tuner.device.replay` replays them.
"""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path

from normtune.errors import NormtuneError, UsageError
from normtune.results.atomic import replaced
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import check_export, read_parquet, write_table
from normtune.results.exchange.recorded_code import RecordedCode, code_of, column_of, read_code
from normtune.results.paths import unwritable
from normtune.results.records import REPLAY_PREFIX
from normtune.results.regimes import COLD

FOLDER = Path(__file__).parents[1] / "recordings"
MAX_BYTES = 2_000_000
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_DTYPE = re.compile(r"[a-z0-9_]+")


def recordings() -> list[str]:
    """Names of the shipped recordings, in order."""
    return sorted({path.name.split(".")[0] for path in FOLDER.glob("*.*.parquet")})


def load_recording(name: str, regime: str | None = COLD) -> Evidence:
    """Load all operators of a recording, in one regime; None for all.

    Raises:
        UsageError: no such recording is shipped.
        NormtuneError: a file of it is damaged.
    """
    names = recordings()
    if name not in names:
        raise UsageError(f"unknown recording {name!r}: expected one of {', '.join(names) or '(none is shipped)'}")
    evidence = Evidence.concat([*map(read_parquet, files_of(name))])
    return evidence if regime is None else evidence.regime(regime)


def recorded_code(name: str) -> RecordedCode:
    """The digests of the code of a shipped recording.

    Raises:
        NormtuneError: a file of it is damaged.
    """
    return read_code(files_of(name))


def write_code(code: RecordedCode, name: str, fingerprints: Mapping[str, str]) -> None:
    """Replace the digests of the code of a shipped recording, and the fingerprints of its operators.

    Raises:
        NormtuneError: a file of it cannot be written, or would be larger than `MAX_BYTES`; none is changed.
    """
    with ExitStack() as stack:
        for path in files_of(name):
            part = read_parquet(path)
            marks = [*map(fingerprints.get, part.frame["operator"], part.frame["fingerprint"])]
            _replace(path, _content(Evidence(part.frame.assign(fingerprint=marks), part.runs), code), stack)


def files_of(name: str) -> list[Path]:
    """The files of a shipped recording, in order."""
    return sorted(FOLDER.glob(f"{name}.*.parquet"))


def write_recording(evidence: Evidence, name: str, folder: Path) -> list[Path]:
    """Write a recording: a file per operator, or per operator and dtype if one file would be too large.

    Only measurements with each operator's newest kernels are written, with all variants. Files of a written operator in
    the other layout are removed.

    Args:
        evidence: measurements of one device.
        name: of the recording, such as `nvidia-h200`.
        folder: for the files, `NAME.OPERATOR.parquet` or `NAME.OPERATOR.DTYPE.parquet`.

    Returns:
        The files, in order.

    Raises:
        UsageError: the name is not valid, the folder does not exist or is not writable, a file of normtune's name there
            is of another program, or the evidence is empty, of several devices or of a replay.
        NormtuneError: a file would be larger than `MAX_BYTES`, or cannot be written; existing files are not changed.
    """
    _check(evidence, name)
    check_folder(folder)
    current = evidence.current()
    code = code_of(current)
    operators = current.frame["operator"].unique().tolist()
    stems = [f"{name}.{operator}" for operator in operators]
    existing = {path for stem in stems for path in _existing(folder, stem)}
    for path in sorted(existing | {folder / f"{stem}.parquet" for stem in stems}):
        check_export(path)
    paths: list[Path] = []
    with ExitStack() as stack:  # all files are replaced, or none
        for operator, stem in zip(operators, stems, strict=True):
            paths += _write(current.select([operator]), code, folder, stem, stack)
    for path in existing.difference(paths):
        path.unlink()
    return paths


def _existing(folder: Path, stem: str) -> list[Path]:
    """The files of an operator in either layout; names of other operators may begin with the same text."""
    part = re.compile(rf"{re.escape(stem)}(\.{_DTYPE.pattern})?\.parquet")
    return [path for path in folder.iterdir() if part.fullmatch(path.name)]


def _write(evidence: Evidence, code: RecordedCode, folder: Path, stem: str, stack: ExitStack) -> list[Path]:
    """Write an operator's measurements to temporary files, which replace the old ones at the end of the stack."""
    contents = {folder / f"{stem}.parquet": _content(evidence, code)}
    dtypes = evidence.frame["dtype"].unique().tolist()
    if any(len(content) > MAX_BYTES for content in contents.values()) and len(dtypes) > 1:
        parts = {dtype: evidence.select(dtypes=[dtype]) for dtype in dtypes}
        contents = {folder / f"{stem}.{dtype}.parquet": _content(part, code) for dtype, part in parts.items()}
    for path, content in contents.items():
        _replace(path, content, stack)
    return list(contents)


def _replace(path: Path, content: bytes, stack: ExitStack) -> None:
    if len(content) > MAX_BYTES:
        raise NormtuneError(
            f"{path} would have {len(content)} bytes, a recording ships with at most {MAX_BYTES}: record fewer problems"
        )
    stack.enter_context(replaced(path)).write_bytes(content)


def _content(evidence: Evidence, code: RecordedCode) -> bytes:
    """The bytes of a file; the digest of a measurement is that of its cell."""
    file = BytesIO()
    bare = Evidence(evidence.frame.assign(code=None), evidence.runs)
    columns = column_of(evidence, code)
    write_table(bare, file, columns, {"triton": code.triton} if columns else {})
    return file.getvalue()


def check_folder(folder: Path) -> None:
    """Raise `UsageError` if no recording can be written to a folder."""
    if not folder.is_dir():
        raise UsageError(f"the folder {folder} does not exist: create it or name another")
    if reason := unwritable(folder):
        raise UsageError(f"cannot write a recording: {reason}; name another folder")


def _check(evidence: Evidence, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(f"the recording's name is {name!r}: expected small letters, digits and dashes, as nvidia-h200")
    devices = evidence.devices()
    if not devices:
        raise UsageError("there are no measurements to record: sweep first")
    if len(devices) > 1:
        names = ", ".join(f"{device.label} with {device.sms} SMs" for device in devices)
        raise UsageError(f"a recording is of one device, the store has {len(devices)} ({names}): name another store")
    if names := ", ".join(evidence.unpaired()):
        raise UsageError(f"another program measured {names}: a recording is of a sweep on a GPU")
    if devices[0].uuid.startswith(REPLAY_PREFIX):
        raise UsageError(f"the measurements are a replay ({devices[0].uuid}): a recording is of a sweep on a GPU")
