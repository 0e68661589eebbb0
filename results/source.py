"""Where a command takes its measurements from: a store, or a recording that ships.

In: the options `--store`, `--recording`, `--operator` and `--dtype`. Out: `Evidence`, or what is wrong with an option.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from normtune.errors import UsageError

if TYPE_CHECKING:
    from normtune.results.frame import Evidence


def measured(store: str | None, recording: str | None = None) -> "Evidence":
    """All measurements of a store or of a recording.

    Args:
        store: value of `--store`; None for NORMTUNE_STORE, else the default one.
        recording: value of `--recording`; None for the store.

    Raises:
        UsageError: both are given, or the store's URL or the recording's name is none.
        NormtuneError: there is no such store, or it cannot be read.
    """
    if store is not None and recording is not None:
        raise UsageError("--store and --recording are both given: measurements come from one of them")
    if recording is not None:
        from normtune.results.recording import load_recording

        return load_recording(recording)
    from normtune.results.store import Store, resolve_url

    with Store.open(resolve_url(store), create=False) as opened:
        return opened.load()


def narrowed(evidence: "Evidence", operators: Sequence[str], dtypes: Sequence[str]) -> "Evidence":
    """The measurements of these operators (`a`, or `a:b` for a variant) and dtypes; empty means all.

    Raises:
        UsageError: one of the names, or all of them together, select nothing.
    """
    for name in operators:
        if evidence.select([name]).frame.empty:
            known = sorted(set(evidence.frame["operator"])) or ["(nothing)"]
            raise UsageError(f"--operator is {name!r}: measured are {', '.join(known)}")
    for name in dtypes:
        if evidence.select((), [name]).frame.empty:
            known = sorted(set(evidence.frame["dtype"])) or ["(nothing)"]
            raise UsageError(f"--dtype is {name!r}: measured are {', '.join(known)}")
    selected = evidence.select(operators, dtypes)
    if selected.frame.empty and not evidence.frame.empty:
        raise UsageError("there are no measurements of this operator in this dtype: `normtune data list` says which")
    return selected
