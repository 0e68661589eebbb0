"""Classes of configs that sum a row in the same order, for each bin of hidden sizes, the axis along which a row lies.

Two configs of one class give a row the same bits, at every number of rows, and at every hidden size of the bin that
was measured or whose rows begin at multiples of 16 bytes. At the others few models have a norm, nothing is known about
times, and launches differ more, by the alignment: there the dispatch gives all rows the config of the most rows if the
orders differ. The operator's launches have the order (`Launch.row_sum`).

Only some of these sizes are tested. Between two powers of two, two multiples of the shortest chunk, and two sizes at
which the chunk of held rows changes (`held_chunk` of the gated norm), the order depends only on the alignment of
hidden: one size of each alignment is enough. Blocks and chunks only grow with hidden, so a config with the same order
at two sizes of one alignment has this order between them: bisection finds the sizes where the order changes.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.solver.bins import Bins
from normtune.kernels.alignment import alignment_of
from normtune.kernels.box import EVERYWHERE, Interval
from normtune.kernels.config import Config
from normtune.kernels.problem import ITEMSIZE, MAX_ROWS, Problem
from normtune.kernels.tablefile.tree import Split, Tree, regions, walk

HIDDEN = "hidden"
# The shortest chunk of columns in any space of configs, and the longest row that one program takes.
_CHUNK, _LONGEST = 512, 65536
_ALIGNMENTS = (1, 2, 4, 8, 16)
# Numbers of rows at which launches are compared: the operators of normtune are tested at all of them.
_ROWS = (1, 2, 16, 100, 4096, 65536, 1 << 24, MAX_ROWS)


class RowClasses:
    """The classes of one operator's configs, for all keys of a function; results are cached for the folds."""

    def __init__(self, legality: Legality) -> None:
        self._legality = legality
        # The order of a launch's sum depends on the dtype only by its size.
        self._served_by_size = {(ITEMSIZE[key.dtype], key.modes): key for key in legality.served}
        self._numbers: dict[Hashable, int] = {}
        self._number_of: dict[tuple[Config, int, int], int | None] = {}
        self._orders: dict[tuple[Config, tuple[tuple[int, ...], ...]], Hashable] = {}
        # Elements of 16 bytes, in the shortest dtype.
        self._aligned = max(16 // itemsize for itemsize, _ in self._served_by_size)

    def of(self, in_bins: Bins, measured: Collection[int]) -> NDArray[np.int64]:
        """Int64 (C, H): the class of each config in each bin of hidden; -1 without a class.

        `measured`: the hidden sizes with times. A config has no class if it has no time or is illegal at all rows, or
        if the order of its sum depends on the number of rows or is unknown.
        """
        place = [axis.name for axis in in_bins.axes].index(HIDDEN)
        others = tuple(axis + 1 for axis in range(len(in_bins.axes)) if axis != place)
        answers: NDArray[np.bool_] = np.logical_or.reduce(in_bins.legal & ~in_bins.barred, axis=others)
        classes = np.full(answers.shape, -1, np.int64)
        for column, ends in enumerate(_ends(in_bins.axes[place].tops)):
            numbers: dict[Hashable, int] = {}
            tested = self._compared(*ends, measured)
            for index in np.flatnonzero(answers[:, column]).tolist():
                order = self._order(in_bins.configs[index], tested)
                if order is not None:
                    classes[index, column] = numbers.setdefault(order, len(numbers))
        return classes

    def mixed(self, tree: Tree) -> Iterator[Interval]:
        """Each interval of hidden sizes in which a tree's configs have several classes, whatever was measured."""
        cuts = {node.threshold for node, _ in walk(tree, EVERYWHERE) if isinstance(node, Split) and node.axis == HIDDEN}
        for ends in _ends(sorted({*cuts, self._legality.spec.max_hidden})):
            stretch, tested = Interval(HIDDEN, *ends), self._compared(*ends, ())
            configs = {config for config, _ in regions(tree, EVERYWHERE.with_interval(stretch))}
            orders = {self._order(config, tested) for config in configs}
            if len(configs) > 1 and (len(orders) > 1 or None in orders):
                yield stretch

    def _compared(self, least: int, most: int, measured: Collection[int]) -> tuple[tuple[int, ...], ...]:
        """The sizes of a bin at which orders are compared, as `representatives`."""
        of_all = representatives(least, most)
        aligned = [of_one for of_one in of_all if alignment_of(of_one[0]) >= self._aligned]
        others = [(size,) for size in sorted(measured) if least <= size <= most]
        return (*aligned, *others) or of_all

    def _order(self, config: Config, tested: tuple[tuple[int, ...], ...]) -> Hashable:
        """The order in which a config sums rows of these sizes; None without a fixed order."""
        key = config, tested
        if key not in self._orders:
            self._orders[key] = self._tested_order(*key)
        return self._orders[key]

    def _tested_order(self, config: Config, tested: tuple[tuple[int, ...], ...]) -> Hashable:
        most = max(size for of_one in tested for size in of_one)
        of_rows = _bisected(partial(self._number, config, most), _ROWS)
        if of_rows[0] is None or {*of_rows} - {of_rows[0], None}:
            return None
        number = partial(self._number, config, rows=1)
        of_sizes = tuple(order for of_one in tested for order in _bisected(number, of_one))
        return None if None in of_sizes else of_sizes

    def _number(self, config: Config, hidden: int, rows: int) -> int | None:
        """A number for the order of sums, for all keys; None if it is unknown or the config is illegal."""
        key = config, hidden, rows
        if key not in self._number_of:
            spec, target = self._legality.spec, self._legality.target
            problems = (Problem(key, rows, hidden) for key in self._served_by_size.values())
            sums = tuple(getattr(spec.launch_of(config, problem, target), "row_sum", None) for problem in problems)
            self._number_of[key] = None if None in sums else self._numbers.setdefault(sums, len(self._numbers))
        return self._number_of[key]


def _bisected(function: Callable[[int], Hashable], sizes: Sequence[int]) -> list[Hashable]:
    """The values of a function at ascending sizes; between two sizes with the same value it is assumed constant."""
    if len(sizes) < 3:
        return [function(size) for size in sizes]
    first, last = function(sizes[0]), function(sizes[-1])
    if first == last:
        return [first] * len(sizes)
    middle = len(sizes) // 2
    return [*_bisected(function, sizes[:middle]), *_bisected(function, sizes[middle:])]


@cache
def representatives(least: int, most: int) -> tuple[tuple[int, ...], ...]:
    """Of the hidden sizes from `least` to `most` those that stand for all, ascending, by alignment."""
    inner = {end for bit in range(most.bit_length() + 1) for end in _held_ends(1 << bit)}
    inner |= {*range(_CHUNK, min(most, _LONGEST), _CHUNK)}
    ends = [least - 1, *sorted(end for end in inner if least <= end < most), most]
    tested = {size for below, end in pairwise(ends) for size in _of_each_alignment(end) if size > below}
    by_alignment = (sorted(size for size in tested if alignment_of(size) == each) for each in _ALIGNMENTS)
    return tuple(tuple(of_one) for of_one in by_alignment if of_one)


def _held_ends(octave: int) -> Iterator[int]:
    """The largest sizes with the same chunk of held rows, above half of `octave`, a power of two, and up to it.

    A chunk is a multiple of a sixteenth of the octave, and leaves at most an eighth of the row empty.
    """
    for sixteenths in range(9, 17):
        yield sixteenths * octave // 16
        yield (sixteenths * octave // 2 - 1) // 9


def _of_each_alignment(end: int) -> Iterator[int]:
    """The largest integers up to `end` of which 1, 2, 4, 8 and 16 is the largest power of two that divides them."""
    for alignment in _ALIGNMENTS[:-1]:
        yield (end - alignment) // (2 * alignment) * (2 * alignment) + alignment
    yield end // _ALIGNMENTS[-1] * _ALIGNMENTS[-1]


def _ends(tops: Iterable[int]) -> list[tuple[int, int]]:
    """The least and the largest size of each bin."""
    return [(below + 1, top) for below, top in pairwise((0, *tops))]
