"""The table under test: its trees and its claimed mean regret.

In: the path of a table. Out: `TableUnderTest`: its functions, the measured sizes, and notes.
`session` checks it.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.case import TableEntry
from normtune.heuristics.regret.legality import registered
from normtune.heuristics.writing.entries import AnyGpuEntry, entries
from normtune.kernels.key import Key
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.header import Header, is_edited, parse
from normtune.kernels.tablefile.parse import normalised_trees, trees
from normtune.kernels.tablefile.relative_tree import RelativeTree, on_sms
from normtune.kernels.tablefile.tree import Box, Tree
from normtune.results.regimes import COLD

# Fewer measurements than these of a function are of some 50 shapes or less: its claims are guesses.
_FEW = 1000


class Promise(NamedTuple):
    """A function's claimed loss, from the header, millionths of a logarithm.

    Attributes:
        mean: over shapes; 0 without a claim.
        worst: of the shapes that it was fitted on; None without a claim.
        figure: the name of the mean in the header; empty if there is none.
        price: part of the mean that a batch-invariant function costs beside the usual one, as measured on the grid.
        is_of_few: whether the function rests on few shapes, by the number of measurements; so the claim is uncertain.
    """

    mean: int = 0
    worst: int | None = None
    figure: str = ""
    price: int = 0
    is_of_few: bool = False

    @property
    def is_off_grid(self) -> bool:
        """Whether the mean is over shapes that the function was not fitted on, as those of a check are."""
        return "cross-validated" in self.figure

    @property
    def unpriced(self) -> int:
        """The mean without the price: what the shapes of the fit leave open."""
        return self.mean - self.price


class Checked(NamedTuple):
    """One function of a table.

    Attributes:
        key: of the data it was fitted on.
        tree: the tree.
        served: the keys of all entries of `TABLES` that it answers for.
        promise: its claimed loss.
    """

    key: Key
    tree: Tree
    served: tuple[Key, ...]
    promise: Promise

    @property
    def is_plain(self) -> bool:
        """Whether it is neither a variant's nor the batch-invariant one, so that most launches use it."""
        return not self.key.variant


class TableUnderTest(NamedTuple):
    """A table under test.

    Attributes:
        header: its own.
        functions: that can be checked; of a table for any GPU, those for one multiprocessor: see `on`.
        box: that it was measured on.
        notes: for the user: entries that cannot be checked, an edit by hand.
        normalised: the trees of a table for any GPU; None for a table of one GPU.
        changed: a line for each operator whose kernels changed since, once a check has looked.
    """

    header: Header
    functions: tuple[Checked, ...]
    box: Box
    notes: tuple[str, ...]
    normalised: Mapping[Key, RelativeTree] | None = None
    changed: tuple[str, ...] = ()

    def on(self, sms: int) -> "TableUnderTest":
        """The same table on a GPU with that many multiprocessors."""
        if not self.normalised:
            return self
        trees_here = _bound(self.normalised, sms)
        return self._replace(
            functions=tuple(function._replace(tree=trees_here[function.served[0]]) for function in self.functions)
        )

    @property
    def regime(self) -> str:
        """Regime of its times."""
        return self.header.data.regime or COLD


def read(path: Path) -> TableUnderTest:
    """The table in a file.

    Raises:
        UsageError: it cannot be read, is not a table, or has nothing that can be checked.
    """
    name = locate.told(path)
    text = locate.read(path)
    header, body = parse(text, name)
    try:
        normalised = normalised_trees(text) if header.is_for_any_gpu else None
        checked, notes = functions(header, _bound(normalised, 1) if normalised else trees(text))
    except NormtuneError as error:
        raise UsageError(f"table {name} cannot be checked: {error}; fit it again") from None
    box = header.box
    if not checked or not box:
        why = "; ".join(notes) if box else "its header does not say which sizes were measured"
        raise UsageError(f"table {name} cannot be checked: {why or 'it has no functions'}; fit it again")
    if is_edited(header, body):
        notes.append("its code was edited since it was fitted")
    return TableUnderTest(header, tuple(checked), box, tuple(notes), normalised)


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
                notes.append(f"{key} is not checked: there is no such operator here")
        if not usable:
            continue
        own = next((one for one in usable if one in of_header and not of_header[one].donor), usable[0])
        promise = _promise(of_header[own])._replace(is_of_few=is_of_few) if own in of_header else Promise()
        result.append(Checked(own, tree, tuple(served), promise))
    return result, notes


def _is_of_few(header: Header, of_header: Iterable[Key]) -> bool:
    """Whether the functions of a table have few measurements each; a batch-invariant one has those of the usual one."""
    measured = [key for key in of_header if not key.is_batch_invariant]
    return header.data.measurements < _FEW * max(1, len(measured))


def _promise(entry: TableEntry | AnyGpuEntry) -> Promise:
    """The claim of an entry: the best there is, off the grid before on it, and equal weights before the fit's.

    A check draws shapes evenly.
    """
    if isinstance(entry, AnyGpuEntry):
        first = entry.figures[:1]
        return Promise(first[0].lost.mean, first[0].lost.worst, "mean") if first else Promise()
    figures, loss = entry.figures, entry.figures.loss
    means = {
        "plain cross-validated": figures.plain_validated,
        "cross-validated": figures.cross_validated,
        "plain mean": loss.plain,
    }
    figure = next(name for name, mean in means.items() if mean is not None)
    return Promise(means[figure] or 0, loss.worst, figure, entry.beside.mean if entry.beside else 0)


def _bound(normalised: Mapping[Key, RelativeTree], sms: int) -> dict[Key, Tree]:
    """The functions of a table for any GPU on one with that many multiprocessors; equal objects stay equal.

    Raises:
        NormtuneError: a function depends on the L2 cache, so that its thresholds are not in rows and hidden.
    """
    known: dict[int, Tree] = {}
    for tree in normalised.values():
        here = known.get(id(tree)) or on_sms(tree, sms)
        if here is None:
            raise NormtuneError("it has thresholds in bytes of the L2 cache")
        known[id(tree)] = here
    return {entry: known[id(tree)] for entry, tree in normalised.items()}


def _by_function(trees: Mapping[Key, Tree]) -> list[tuple[Tree, list[Key]]]:
    """The trees with the entries that each answers for; entries of one function of the file have the same object."""
    groups: dict[int, tuple[Tree, list[Key]]] = {}
    for entry, tree in trees.items():
        groups.setdefault(id(tree), (tree, []))[1].append(entry)
    return list(groups.values())
