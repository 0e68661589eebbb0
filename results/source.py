"""The measurements that a command or a Python function reads: from a store, a file, a recording, or given as they are.

In: the options `--store`, `--operator` and `--dtype`, or the arguments of a Python function.
Out: `Evidence`, or an error that names the option.
"""

import os
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from normtune.errors import DataWarning, NormtuneError, UsageError
from normtune.results.options import DEVICE_DOC, as_names, keyword, option
from normtune.results.regimes import COLD, check_others, check_regime, in_regime, narrowed

if TYPE_CHECKING:
    from normtune.results.database.store import Store
    from normtune.results.evidence import Evidence
    from normtune.results.records import Counted, Run

STORE_HELP = (
    "Store: an SQLite file or a URL; or a Parquet file that `data export` or `fit --evidence` wrote; or a recording, "
    "nvidia-h200. Default: NORMTUNE_STORE, else ./normtune.db."
)
_RECORDING = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
# Number of GPUs that a message names.
_NAMED = 5
NOTHING = "there are no measurements yet: sweep first"
# The measurements as an argument of a Python function: evidence, or a store, open or by its file or URL, or the name of
# a recording; None for the default store.
Measured: TypeAlias = Union["Evidence", "Store", str, "os.PathLike[str]", None]


def data_option() -> Any:
    """The field `data` of a dataclass of options, `--store` of a command."""
    return option(
        STORE_HELP,
        *("URL", "store"),
        read=str,
        doc="A store, open or by its file or URL, a Parquet file of measurements, the name of a recording that ships "
        "with normtune (`nvidia-h200`), or evidence. Default: the default store.",
    )


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The operators and dtypes to which a command or a Python function is restricted."""

    operators: str | Iterable[str] = option(
        "Only this operator, or variant (rms_norm_forward:no_rstd). Repeatable.",
        default=(),
        name="operator",
        doc="Only these operators, or variants (rms_norm_forward:no_rstd). Default: all.",
    )
    dtypes: str | Iterable[str] = option(
        "Only this dtype. Repeatable.", default=(), name="dtype", doc="Only these dtypes. Default: all."
    )

    def of(self, evidence: "Evidence") -> "Evidence":
        """The measurements of these operators and dtypes.

        Raises:
            UsageError: one of them was not measured.
        """
        return narrowed(evidence, as_names("operators", self.operators), as_names("dtypes", self.dtypes))


@dataclass(frozen=True, kw_only=True)
class Selection(Keys):
    """Options that select measurements, except `--store`."""

    regime: str = keyword("Only times measured `cold`, `warm` or `eager`.", default=COLD)
    device: str | None = keyword(DEVICE_DOC)

    def load(self, data: Measured) -> "Evidence":
        """The selected measurements, as in `read_evidence`."""
        return self.of(read_evidence(data, self.regime, self.device))


def read_evidence(
    data: Measured,
    regime: str | None = COLD,
    device: str | None = None,
) -> "Evidence":
    """The measurements of one regime; of a store, nothing else is read. A `DataWarning` tells of damaged ones.

    Args:
        data: as in `Measured`; a text may also name a Parquet file of measurements.
        regime: a name of `REGIMES`; None for all.
        device: only measurements of this GPU, by its label; None for all.

    Raises:
        UsageError: an argument is invalid, the store does not exist, or there are only measurements of other regimes.
        NormtuneError: the store cannot be read.
    """
    if regime is not None:
        check_regime(regime)
    data = _named(data)
    with _opened(data) as store:
        if store is not None:
            return _loaded(store, regime, device)
    evidence, source = _read(data)
    if device is not None:
        evidence = on_device(evidence, device)
    return in_regime(evidence, regime, source)


def on_device(evidence: "Evidence", label: str) -> "Evidence":
    """The measurements of the GPU with this label.

    Raises:
        UsageError: there are none, but of others.
    """
    _check_device(label, (run.device.label for run in evidence.runs))
    return evidence.labelled(label)


def _check_device(label: str, labels: Iterable[str]) -> None:
    measured = sorted({*labels})
    if measured and label not in measured:
        more = f" and {len(measured) - _NAMED} more" if len(measured) > _NAMED else ""
        raise UsageError(f"--device is {label[:80]!r}: measured are {', '.join(measured[:_NAMED])}{more}")


def _named(data: Measured) -> Measured:
    """Data, or the Parquet file or recording that NORMTUNE_STORE names."""
    default = os.environ.get("NORMTUNE_STORE")
    return default if data is None and (is_parquet(default) or is_recording(default)) else data


@contextmanager
def _opened(data: Measured) -> "Iterator[Store | None]":
    """The store that has the measurements; None if they are elsewhere."""
    text = os.fspath(data) if isinstance(data, str | os.PathLike) else None
    if is_parquet(text) or is_recording(text):
        yield None
        return
    from normtune.results.database.store import Store

    if text and _RECORDING.fullmatch(text) and not os.path.lexists(text):
        from normtune.results.exchange.recording import recordings

        raise UsageError(
            f"there is no store or recording {text}: name a store that exists, or a recording, one of "
            f"{', '.join(recordings())}"
        )
    if data is None or text is not None:
        with Store.open(text, create=False) as store:
            yield store
    else:
        yield data if isinstance(data, Store) else None


def _read(data: Measured) -> "tuple[Evidence, str]":
    """The measurements of all regimes that are in no store, and their source for messages."""
    if isinstance(data, str) and is_recording(data):
        from normtune.results.exchange.recording import load_recording

        return load_recording(data, None), f"recording {data}"
    if isinstance(data, str | os.PathLike) and is_parquet(file := os.fspath(data)):
        from normtune.results.exchange.parquet_csv import read_parquet

        try:
            return read_parquet(Path(file)), file
        except NormtuneError as error:
            source = "NORMTUNE_STORE: " if file == os.environ.get("NORMTUNE_STORE") else ""
            raise type(error)(f"{source}{error}") from None
    from normtune.results.evidence import Evidence

    if not isinstance(data, Evidence):
        raise UsageError(
            f"the measurements are a {type(data).__name__}: expected a store, its file or URL, or evidence"
        )
    return data, "the evidence"


def is_parquet(store: str | None) -> bool:
    """Whether the value of `--store` is a Parquet file of measurements."""
    return store is not None and store.endswith(".parquet") and "://" not in store


def is_recording(store: str | None) -> bool:
    """Whether the value of `--store` is the name of a recording; of a file with such a name it is not, as `./NAME`."""
    if store is None or not _RECORDING.fullmatch(store):
        return False
    from normtune.results.exchange.recording import recordings

    return store in recordings()


def counted(data: Measured) -> "list[Counted]":
    """The numbers of measurements, those of damaged ones included. Arguments and errors as `read_evidence`."""
    data = _named(data)
    with _opened(data) as store:
        if store is None:
            counts = _read(data)[0].counts()
        else:
            counts = store.counts()
            _warn_of_runs(store)
    return counts


def listed_runs(data: Measured) -> "list[Run]":
    """The runs, of a store those that were set aside as well. Arguments and errors as `read_evidence`."""
    data = _named(data)
    with _opened(data) as store:
        if store is None:
            return [*_read(data)[0].runs]
        _warn_of_runs(store)
        return store.runs(dropped=True)


def _loaded(store: "Store", regime: str | None, device: str | None) -> "Evidence":
    runs = store.runs()
    if device is not None:
        _check_device(device, (run.device.label for run in runs))
    evidence = store.load(devices=None if device is None else [device], regime=regime)
    warn_of_damage(store.damage)
    _warn_of_runs(store)
    if regime is not None and evidence.frame.empty:
        counts = (one.run for one in store.counts() if device in (None, one.run.device.label))
        check_others((run.regime for run in counts), regime, "the store")
    return evidence


def warn_of_damage(damage: str) -> None:
    """Warn of damaged measurements; `damage` is the line of `Store.damage`, possibly empty."""
    if damage:
        warnings.warn(f"{damage}; a sweep over their problems measures them again", DataWarning, stacklevel=2)


def _warn_of_runs(store: "Store") -> None:
    """Warn of runs of a store that start in the future."""
    if store.ahead:
        warnings.warn(store.ahead, DataWarning, stacklevel=2)
