"""Source of a command's measurements: a store, or a shipped recording.

In: the options `--store`, `--recording` and `--regime`, or the arguments of a Python function. Out: `Evidence`, or an
error that names the option.
"""

import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from normtune.errors import UsageError
from normtune.results.filters import in_regime, narrowed
from normtune.results.names import named
from normtune.results.options import option
from normtune.results.regimes import COLD, REGIMES, check_regime
from normtune.results.terminal import say

if TYPE_CHECKING:
    from normtune.results.database.store import Store
    from normtune.results.evidence import Evidence

STORE_HELP = (
    "Store: an SQLite file or a URL; or a Parquet file that `data export` or `fit --evidence` wrote. Default: "
    "NORMTUNE_STORE, else ./normtune.db."
)
NOTHING = "there are no measurements yet: run `normtune sweep`"
# Measurements as an argument of a Python function: evidence, or a store, open or by its file or URL; None for the
# default store.
Measured: TypeAlias = Union["Evidence", "Store", str, "os.PathLike[str]", None]
Warn = Callable[[str], None]


def on_stderr(text: str) -> None:
    """Tell a user of the command line."""
    say(f"normtune: {text}", error=True)


def data_option() -> Any:
    """The field of the measurements, `--store` of a command."""
    return option(
        STORE_HELP,
        *("URL", "store"),
        read=str,
        doc="A store, open or by its file or URL, a Parquet file of measurements, or evidence. Default: the default "
        "store.",
    )


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Operators and dtypes that a command or a Python function is about."""

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
        """The measurements of these.

        Raises:
            UsageError: one of them was not measured.
        """
        return narrowed(evidence, named("operators", self.operators), named("dtypes", self.dtypes))


@dataclass(frozen=True, kw_only=True)
class Selection(Keys):
    """Which measurements a command or a Python function reads, beside the store."""

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
        """The measurements; see `taken`. `every_regime`: those of all regimes, for a comparison of two."""
        return self.of(taken(data, self.recording, None if every_regime else self.regime, warn))


def _as_warning(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def taken(data: Measured, recording: str | None, regime: str | None, warn: "Warn | None" = None) -> "Evidence":
    """The measurements of one regime.

    Args:
        data: see `Measured`.
        recording: name of a recording, in place of data.
        regime: a name of `REGIMES`; None for all.
        warn: called with a line about measurements that are left out; None to issue a warning of Python.

    Raises:
        UsageError: data and a recording are both given, an argument is invalid, or there are only measurements of
            other regimes; or the store does not exist.
        NormtuneError: the store cannot be read.
    """
    warn = warn or _as_warning
    if regime is not None:
        check_regime(regime)
    if data is None or isinstance(data, str | os.PathLike):
        return measured(None if data is None else os.fspath(data), recording, regime, warn)
    if recording is not None:
        raise UsageError("data and a recording are both given: measurements come from one of them")
    from normtune.results.database.store import Store
    from normtune.results.evidence import Evidence

    name = "the evidence"
    if isinstance(data, Store):
        data, name = _loaded(data, warn), "the store"
    elif not isinstance(data, Evidence):
        raise UsageError(
            f"the measurements are a {type(data).__name__}: expected a store, its file or URL, or evidence"
        )
    return data if regime is None else in_regime(data, regime, name)


def measured(
    store: str | None, recording: str | None = None, regime: str | None = COLD, warn: Warn = on_stderr
) -> "Evidence":
    """Load the measurements of a store or a recording in one regime.

    Args:
        store: value of `--store`, which may be a Parquet file of measurements; None for NORMTUNE_STORE, else the
            default store.
        recording: value of `--recording`; None for the store.
        regime: value of `--regime`; None for all.
        warn: called with a line about measurements that are left out.

    Raises:
        UsageError: both are given, the URL, the recording or the regime is invalid, or there are only measurements
            of other regimes; or the store does not exist.
        NormtuneError: the store cannot be read.
    """
    if store is not None and recording is not None:
        raise UsageError("--store and --recording are both given: measurements come from one of them")
    if regime is not None:
        check_regime(regime)
    if recording is not None:
        from normtune.results.exchange.recording import load_recording

        evidence = load_recording(recording, None)
        source = f"recording {recording}"
    elif is_parquet(store):
        from normtune.results.exchange.parquet_csv import read_parquet

        evidence, source = _of_known_regimes(read_parquet(Path(str(store))), warn), str(store)
    else:
        from normtune.results.database.store import Store, resolve_url

        with Store.open(resolve_url(store), create=False) as opened:
            evidence = _loaded(opened, warn)
        source = "the store"
    return evidence if regime is None else in_regime(evidence, regime, source)


def is_parquet(store: str | None) -> bool:
    """Whether a store is named that is a file of measurements, to be read only."""
    return store is not None and store.endswith(".parquet") and "://" not in store


def _loaded(store: "Store", warn: Warn) -> "Evidence":
    evidence = _of_known_regimes(store.load(regime=None), warn)
    warn_of_damage(store.damage, warn)
    warn_of_runs(store, warn)
    return evidence


def warn_of_damage(damage: str, warn: Warn = on_stderr) -> None:
    """Report damaged measurements, by the line `Store.damage`; nothing if it is empty."""
    if damage:
        warn(f"warning: {damage}; a sweep over their problems measures them again")


def warn_of_runs(store: "Store", warn: Warn = on_stderr) -> None:
    """Report runs of a store with a start in the future."""
    if store.ahead:
        warn(f"warning: {store.ahead}")


def _of_known_regimes(evidence: "Evidence", warn: Warn) -> "Evidence":
    """Measurements of known regimes; others are reported."""
    unknown = [name for name in evidence.regimes() if name not in REGIMES]
    if not unknown:
        return evidence
    runs = sum(run.regime in unknown for run in evidence.runs)
    warn(
        f"left out {runs} run{'s' * (runs > 1)} of the store, with times of regime "
        f"{', '.join(repr(name[:40]) for name in unknown[:3])}; known are {', '.join(REGIMES)}"
    )
    return evidence.in_regimes(REGIMES)
