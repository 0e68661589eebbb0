"""The table under test: its functions with the losses that its header promises, the measured sizes, and notes."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.case import TableEntry
from normtune.heuristics.regret.legality import registered
from normtune.heuristics.writing.entries import entries
from normtune.kernels.box import Box
from normtune.kernels.key import Key
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import Header, is_edited, parse
from normtune.kernels.tablefile.tree import Tree
from normtune.results.regimes import COLD

# With fewer measurements a function is fitted to about 50 shapes or less, and its promise is uncertain.
_FEW = 1000


class Promise(NamedTuple):
    """The loss that the header promises for a function, log_ppm.

    Attributes:
        mean: over shapes; 0 without a promise.
        worst: over the shapes of the fit; None without a promise.
        figure: name of the mean in the header; empty without a promise.
        price: part of the mean that batch invariance costs, relative to the usual function on the shapes of the fit.
        is_of_few: whether the function was fitted to few shapes, so that the promise is uncertain.
    """

    mean: int = 0
    worst: int | None = None
    figure: str = ""
    price: int = 0
    is_of_few: bool = False

    @property
    def is_off_grid(self) -> bool:
        """Whether the mean is over shapes outside of the fit, as in a check."""
        return "cross-validated" in self.figure

    @property
    def unpriced(self) -> int:
        """The mean without the price."""
        return self.mean - self.price


class Checked(NamedTuple):
    """One function of a table.

    Attributes:
        key: of the data of its fit.
        tree: its tree.
        served: the keys of all entries of `TABLES` with this function.
        promise: the loss that its header promises.
    """

    key: Key
    tree: Tree
    served: tuple[Key, ...]
    promise: Promise

    @property
    def is_plain(self) -> bool:
        """Whether it is neither a variant's nor batch-invariant: most launches use such functions."""
        return not self.key.variant


class TableUnderTest(NamedTuple):
    """A table under test.

    Attributes:
        header: of the table.
        functions: the functions that can be checked.
        measured: the measured sizes of each key.
        notes: for the user: entries that cannot be checked, an edit by hand.
        changed: a line for each operator whose kernels changed since the fit; set by the check.
    """

    header: Header
    functions: tuple[Checked, ...]
    measured: Mapping[Key, Box]
    notes: tuple[str, ...]
    changed: tuple[str, ...] = ()

    @property
    def box(self) -> Box:
        """The least box of all measured sizes."""
        return Box.around(self.measured.values())

    @property
    def regime(self) -> str:
        """Regime of its times."""
        return self.header.data.regime or COLD


def read(path: Path) -> TableUnderTest:
    """The table in a file.

    Raises:
        UsageError: the file cannot be read, is not a table, or has no function that can be checked.
    """
    name = locate.quoted(path)
    table, (header, body) = locate.load(path), parse(locate.read(path), name)
    try:
        checked, notes = functions(header, table.trees)
    except NormtuneError as error:
        raise UsageError(f"table {name} cannot be checked: {error}; fit it again") from None
    if not checked:
        reason = "; ".join(notes) or "it has no functions"
        raise UsageError(f"table {name} cannot be checked: {reason}; fit it again")
    if is_edited(header, body):
        notes.append("its code was edited since it was fitted")
    return TableUnderTest(header, tuple(checked), table.measured, tuple(notes))


def functions(header: Header, trees: Mapping[Key, Tree]) -> tuple[list[Checked], list[str]]:
    """The functions of a table that can be checked, and notes on the entries that cannot."""
    of_header = {entry.key: entry for entry in entries(header)}
    is_of_few = _is_of_few(header, of_header)
    result: list[Checked] = []
    notes = []
    for tree, served in _by_function(trees):
        usable = []
        for key in served:
            if registered(key):
                usable.append(key)
            else:
                notes.append(f"{key} is not checked: the operator is not registered here")
        if not usable:
            continue
        main = next((key for key in usable if key in of_header and not of_header[key].donor), usable[0])
        promise = _promise(of_header[main])._replace(is_of_few=is_of_few) if main in of_header else Promise()
        result.append(Checked(main, tree, tuple(served), promise))
    return result, notes


def _is_of_few(header: Header, of_header: Iterable[Key]) -> bool:
    """Whether the functions of a table have few measurements each; batch-invariant ones share those of others."""
    measured = [key for key in of_header if not key.is_batch_invariant]
    return header.data.measurements < _FEW * max(1, len(measured))


def _promise(entry: TableEntry) -> Promise:
    """The promise of an entry: preferably cross-validated and with equal weights, like the shapes of a check."""
    figures, loss = entry.figures, entry.figures.loss
    means = {
        "plain cross-validated": figures.plain_validated,
        "cross-validated": figures.cross_validated,
        "plain mean": loss.plain,
    }
    figure = next(name for name, mean in means.items() if mean is not None)
    return Promise(means[figure] or 0, loss.worst, figure, entry.beside.mean if entry.beside else 0)


def _by_function(trees: Mapping[Key, Tree]) -> list[tuple[Tree, list[Key]]]:
    """Each tree with its entries; entries with the same function in the file have the same object."""
    groups: dict[int, tuple[Tree, list[Key]]] = {}
    for entry, tree in trees.items():
        groups.setdefault(id(tree), (tree, []))[1].append(entry)
    return list(groups.values())
