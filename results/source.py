"""The measurements that a command or a Python function reads: from a store, a file, a recording, or given as they are.

In: the options `--store`, `--recording`, `--operator`, `--dtype` and `--regime`, or the arguments of a Python function.
Out: `Evidence`, or an error that names the option.
"""

import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from normtune.errors import UsageError
from normtune.results.options import as_names, option
from normtune.results.regimes import COLD, REGIMES, check_regime, in_regime, narrowed
from normtune.results.terminal import say

if TYPE_CHECKING:
    from normtune.results.database.store import Store
    from normtune.results.evidence import Evidence

STORE_HELP = (
    "Store: an SQLite file or a URL; or a Parquet file that `data export` or `fit --evidence` wrote. Default: "
    "NORMTUNE_STORE, else ./normtune.db."
)
NOTHING = "there are no measurements yet: run `normtune sweep`"
# The measurements as an argument of a Python function: evidence, or a store, open or by its file or URL; None for the
# default store.
Measured: TypeAlias = Union["Evidence", "Store", str, "os.PathLike[str]", None]
Warn = Callable[[str], None]


def on_stderr(text: str) -> None:
    """Print a warning of a command."""
    say(f"normtune: {text}", error=True)


def data_option() -> Any:
    """The field `data` of a dataclass of options, `--store` of a command."""
    return option(
        STORE_HELP,
        *("URL", "store"),
        read=str,
        doc="A store, open or by its file or URL, a Parquet file of measurements, or evidence. Default: the default "
        "store.",
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

    recording: str | None = option(
        "Read a recording that ships with normtune, in place of a store.",
        doc="Name of a recording that ships with normtune, in place of data.",
    )
    regime: str = option("Only times measured cold, warm or eager.", default=COLD)

    @property
    def source(self) -> str:
        """Where the measurements come from, for messages."""
        return f"recording {self.recording}" if self.recording else "the store"

    def load(self, data: Measured, warn: "Warn | None" = None, every_regime: bool = False) -> "Evidence":
        """The selected measurements, as in `taken`; with `every_regime`, those of all regimes."""
        return self.of(taken(data, self.recording, None if every_regime else self.regime, warn))


def _as_warning(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def taken(data: Measured, recording: str | None, regime: str | None, warn: "Warn | None" = None) -> "Evidence":
    """The measurements of one regime.

    Args:
        data: as in `Measured`; a text may also name a Parquet file of measurements.
        recording: name of a recording, instead of data.
        regime: a name of `REGIMES`; None for all.
        warn: takes a line about measurements that are left out; None for a `warnings.warn`.

    Raises:
        UsageError: data and a recording are both given, an argument is invalid, the store does not exist, or there are
            only measurements of other regimes.
        NormtuneError: the store cannot be read.
    """
    if data is not None and recording is not None:
        both = "--store and --recording" if isinstance(data, str | os.PathLike) else "data and a recording"
        raise UsageError(f"{both} are both given: measurements come from one of them")
    if regime is not None:
        check_regime(regime)
    evidence, source = _read(data, recording, warn or _as_warning)
    return evidence if regime is None else in_regime(evidence, regime, source)


def measured(
    store: str | None, recording: str | None = None, regime: str | None = COLD, warn: Warn = on_stderr
) -> "Evidence":
    """As `taken`, for the values of a command's options."""
    return taken(store, recording, regime, warn)


def _read(data: Measured, recording: str | None, warn: Warn) -> "tuple[Evidence, str]":
    """The measurements of all regimes, and their source for messages."""
    if recording is not None:
        from normtune.results.exchange.recording import load_recording

        return load_recording(recording, None), f"recording {recording}"
    if isinstance(data, str | os.PathLike) and is_parquet(file := os.fspath(data)):
        from normtune.results.exchange.parquet_csv import read_parquet

        return _of_known_regimes(read_parquet(Path(file)), warn), file
    from normtune.results.database.store import Store, resolve_url

    if isinstance(data, Store):
        return _loaded(data, warn), "the store"
    if data is None or isinstance(data, str | os.PathLike):
        with Store.open(resolve_url(None if data is None else os.fspath(data)), create=False) as opened:
            return _loaded(opened, warn), "the store"
    from normtune.results.evidence import Evidence

    if not isinstance(data, Evidence):
        raise UsageError(
            f"the measurements are a {type(data).__name__}: expected a store, its file or URL, or evidence"
        )
    return data, "the evidence"


def is_parquet(store: str | None) -> bool:
    """Whether the value of `--store` is a Parquet file of measurements."""
    return store is not None and store.endswith(".parquet") and "://" not in store


def _loaded(store: "Store", warn: Warn) -> "Evidence":
    evidence = _of_known_regimes(store.load(regime=None), warn)
    warn_of_damage(store.damage, warn)
    warn_of_runs(store, warn)
    return evidence


def warn_of_damage(damage: str, warn: Warn = on_stderr) -> None:
    """Report damaged measurements; `damage` is the line of `Store.damage`, possibly empty."""
    if damage:
        warn(f"warning: {damage}; a sweep over their problems measures them again")


def warn_of_runs(store: "Store", warn: Warn = on_stderr) -> None:
    """Report runs of a store that start in the future."""
    if store.ahead:
        warn(f"warning: {store.ahead}")


def _of_known_regimes(evidence: "Evidence", warn: Warn) -> "Evidence":
    """The measurements of known regimes; unknown ones are reported."""
    unknown = [name for name in evidence.regimes() if name not in REGIMES]
    if not unknown:
        return evidence
    runs = sum(run.regime in unknown for run in evidence.runs)
    warn(
        f"left out {runs} run{'s' * (runs > 1)} of the store, with times of regime "
        f"{', '.join(repr(name[:40]) for name in unknown[:3])}; known are {', '.join(REGIMES)}"
    )
    return evidence.in_regimes(REGIMES)
