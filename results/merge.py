"""Merges of files and stores into a store, for `normtune data merge`.

In: names of sources. Out: `Merged` for each. All are opened, and files read and checked, before the store is.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.results.database.store import Store, resolve_url
from normtune.results.elsewhere import Elsewhere
from normtune.results.evidence import Evidence
from normtune.results.exchange.foreign_file import read_foreign
from normtune.results.exchange.parquet_csv import read_parquet
from normtune.results.regimes import narrowed
from normtune.results.source import is_parquet


class Merged(NamedTuple):
    """Result of a merge.

    Attributes:
        source: the file or store, as messages name it.
        measurements: number of measurements in it, damaged ones excepted.
        added: number of new ones among them.
        damage: line about damaged measurements, which were left out; empty without any.
    """

    source: str
    measurements: int
    added: int
    damage: str = ""


def merged(
    sources: Sequence[str | os.PathLike[str]],
    open_store: Callable[[], AbstractContextManager[Store]],
    elsewhere: Elsewhere,
    operators: Sequence[str],
) -> Iterator[Merged]:
    """Merge sources into a store, one after the other; all are opened, and files read, before the store is.

    Args:
        sources: files that normtune exported, files of another program's measurements, and stores: files or URLs.
        open_store: opens the store.
        elsewhere: what a file of another program does not say.
        operators: only these, if there are any; a single one names that of all rows of a file without such a column.

    Raises:
        UsageError: there are no sources, one does not exist, or is a T4 file; or a file of another program cannot be
            read, or has no measurements of an operator.
        NormtuneError: a source is damaged, or normtune did not write it, or it contradicts the store, in which case
            nothing of it is stored.
    """
    if not sources:
        raise UsageError("no sources are given: expected files that `normtune data export` wrote, or stores")
    with ExitStack() as stack:
        opened = [_opened(os.fspath(source), stack, elsewhere, operators) for source in sources]
        store = stack.enter_context(open_store())
        for source, (name, data) in zip(sources, opened, strict=True):
            try:
                count, added = store.joined(data)
            except ValueError as error:
                raise NormtuneError(f"cannot merge {source}: {error}") from None
            yield Merged(name, count, added, "" if isinstance(data, Evidence) else data.damage)


def _opened(
    source: str, stack: ExitStack, elsewhere: Elsewhere, operators: Sequence[str]
) -> tuple[str, Evidence | Store]:
    """The name of a source, and its measurements or the open store."""
    if source.endswith((".json", ".json.gz")):
        raise UsageError(
            f"{source} cannot be merged: the samples of a T4 file were not taken in rounds, so a store cannot compare "
            "them; `python benchmarks/strategies.py` replays such files"
        )
    if elsewhere.is_of(source):
        return source, narrowed(read_foreign(Path(source), elsewhere, operators), operators, ())
    if is_parquet(source):
        return source, narrowed(read_parquet(Path(source)), operators, ())
    store = stack.enter_context(Store.open(resolve_url(source), create=False))
    return store.name, narrowed(store.load(regime=None), operators, ()) if operators else store
