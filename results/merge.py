"""Merges of files and stores into a store, for `normtune data merge`.

In: names of sources. Out: `Merged` for each. All are opened, and files read and checked, before the store is.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.results.database.store import Store
from normtune.results.database.url import StoreUrl
from normtune.results.elsewhere import Elsewhere
from normtune.results.evidence import Evidence
from normtune.results.exchange.foreign_file import read_foreign
from normtune.results.exchange.parquet_csv import read_parquet
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
    sources: Iterable[str | os.PathLike[str]],
    store: Store | str | os.PathLike[str] | None,
    elsewhere: Elsewhere,
) -> Iterator[Merged]:
    """Merge sources into a store, one after the other; all are opened, and files read, before the store is.

    Args:
        sources: files that normtune exported, files of another program's measurements, and stores: files or URLs.
        store: open, or by its file or URL; None for the default store.
        elsewhere: what a file of another program does not say.

    Raises:
        UsageError: there are no sources, one does not exist, or is a T4 file; or a file of another program cannot be
            read, or has no measurements of an operator.
        NormtuneError: a source is damaged, or normtune did not write it, or it contradicts the store, in which case
            nothing of it is stored.
    """
    if not isinstance(store, Store | str | os.PathLike | None):
        raise UsageError(f"store is {store!r:.80}: expected a store, its file or URL")
    place = store if isinstance(store, Store) else StoreUrl.of(store)
    paths = list(sources) if isinstance(sources, Iterable) else [sources]
    if wrong := [path for path in paths if not isinstance(path, str | os.PathLike)]:
        raise UsageError(f"sources has {wrong[0]!r}: expected files and stores")
    if not paths:
        raise UsageError("no sources are given: expected files that `normtune data export` wrote, or stores")
    with ExitStack() as stack:
        opened = [_opened(os.fspath(path), stack, elsewhere) for path in paths]
        into = place if isinstance(place, Store) else stack.enter_context(Store.at(place))
        for source, (name, data) in zip(paths, opened, strict=True):
            try:
                count, added = into.joined(data)
            except ValueError as error:
                raise NormtuneError(f"cannot merge {source}: {error}") from None
            yield Merged(name, count, added, "" if isinstance(data, Evidence) else data.damage)


def _opened(source: str, stack: ExitStack, elsewhere: Elsewhere) -> tuple[str, Evidence | Store]:
    """The name of a source, and its measurements or the open store."""
    if source.endswith((".json", ".json.gz")):
        raise UsageError(
            f"{source} cannot be merged: the samples of a T4 file were not taken in rounds, so a store cannot compare "
            "them; `python benchmarks/strategies.py` replays such files"
        )
    if elsewhere.is_of(source):
        return source, read_foreign(Path(source), elsewhere)
    if is_parquet(source):
        return source, read_parquet(Path(source))
    store = stack.enter_context(Store.open(source, create=False))
    return store.name, store
