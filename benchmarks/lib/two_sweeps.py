"""Cross-evaluation of two sweeps of the same kind of GPU: each table scored on the other's times.

In: the evidence of both. Out: for each operator, variant and dtype in both, the excess loss of each table on the times
of the other sweep over the other's own table; and the noise floor for comparison.

The noise floor of a sweep: its blocks are split in two and a table is fitted to each half. The floor is the excess loss
of one half's table on the other half over that half's own, the mean of both directions. The halves have half as many
rounds, so the floor is rather too high for whole sweeps; but they share the compiled binaries, the day and the GPU,
which sweeps do not. An own table has seen the noise that it is scored on, in the sweeps as in the halves.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.fitting.result import Fit
from normtune.heuristics.fitting.sharing import extra
from normtune.heuristics.regret.legality import registered
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.stability.bootstrap import Blocks
from normtune.heuristics.stability.refit import Fitted, fitted, refitted, server, weighted
from normtune.kernels.key import Key
from normtune.kernels.problem import Shape
from normtune.kernels.tablefile.tree import Tree, choose

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


class Crossed(NamedTuple):
    """Two tables on one operator, variant and dtype; losses are means by weight, millionths.

    Attributes:
        key, dtype: of the times.
        shapes: number of shapes in both sweeps.
        scored: numbers of shapes at which the configs of both tables have times, in the first sweep and in the second.
        losses: excess loss of the first sweep's table on the second over the second's own, and the other way round.
        floors: the noise floor of the first sweep, and of the second; None if there are too few blocks.
        differing: the share of the shapes, by weight, at which the two tables choose differently.
    """

    key: str
    dtype: str
    shapes: int
    scored: tuple[int, int]
    losses: tuple[int, int]
    floors: tuple[int | None, int | None]
    differing: float

    @property
    def loss(self) -> float:
        """The mean of both directions."""
        return sum(self.losses) / 2

    @property
    def floor(self) -> float | None:
        """The mean of both sweeps; None if one has none."""
        first, second = self.floors
        return None if first is None or second is None else (first + second) / 2


class Sweep(NamedTuple):
    """A sweep with its table.

    Attributes:
        evidence: measurements of one device.
        fit: to the evidence.
        halves: of each function, by key, the trees of both halves of the blocks; None if there are none.
    """

    evidence: "Evidence"
    fit: Fit
    halves: dict[Key, tuple[Tree, Tree] | None]


def swept(evidence: "Evidence", options: FitOptions) -> Sweep:
    """A sweep with its table, and with the tables of its halves.

    Args:
        evidence: measurements of one device and regime.
        options: of the fit.
    """
    table = fit(evidence, options)
    functions = fitted(evidence, table, options)
    return Sweep(evidence, table, {item.function.key: _halves(item) for item in functions})


def crossed(first: Sweep, second: Sweep, options: FitOptions) -> list[Crossed]:
    """Both tables on both sweeps.

    Args:
        first: a sweep.
        second: another one, of the same kind of GPU.
        options: of both fits.

    Raises:
        UsageError: the GPUs are of different kinds.
        NormtuneError: the sweeps have no operator and dtype in common, measured at common shapes.
    """
    devices = [sweep.fit.device for sweep in (first, second)]
    if len({(device.target, device.sms) for device in devices}) > 1:
        both = " and ".join(f"{device.label} with {device.sms} SMs" for device in devices)
        raise UsageError(f"the sweeps are of different kinds of GPU: {both}")
    kinds = [kind for kind in _kinds(first, options) if kind in set(_kinds(second, options))]
    pairs = zip(weighted(first.evidence, options, kinds), weighted(second.evidence, options, kinds), strict=True)
    results = [result for pair in pairs if (result := _crossed(first, second, *pair))]
    if not results:
        raise NormtuneError("the sweeps have no shapes of an operator and dtype in common: sweep the same grid")
    return results


def _kinds(sweep: Sweep, options: FitOptions) -> Iterator[Key]:
    """The measured kinds that the table serves."""
    served = sweep.fit.with_data()
    for key in sweep.evidence.select(options.operators).measured_keys():
        if registered(key) and key in served:
            yield key


def _crossed(first: Sweep, second: Sweep, left: TimingMatrix, right: TimingMatrix) -> Crossed | None:
    key = left.key
    own, other = server(first.fit, key), server(second.fit, key)
    common = set(left.problems) & set(right.problems)
    if own is None or other is None or not common:
        return None
    left, right = _at(left, common), _at(right, common)
    differ = [choose(own.tree, shape) != choose(other.tree, shape) for shape in left.problems]
    halves = (first.halves[own.key], second.halves[other.key])
    return Crossed(
        key.text,
        key.dtype,
        len(common),
        (_scored(left, own.tree, other.tree), _scored(right, own.tree, other.tree)),
        (extra(right, own.tree, other.tree), extra(left, other.tree, own.tree)),
        (_floor(left, halves[0]), _floor(right, halves[1])),
        float(left.weight @ differ) / float(left.weight.sum()),
    )


def _at(matrix: TimingMatrix, shapes: set[Shape]) -> TimingMatrix:
    """The matrix of some of its shapes."""
    return matrix.of_problems([index for index, shape in enumerate(matrix.problems) if shape in shapes])


def _scored(matrix: TimingMatrix, *trees: Tree) -> int:
    return sum(
        all(matrix.loss(index, choose(tree, shape)) is not None for tree in trees)
        for index, shape in enumerate(matrix.problems)
    )


def _halves(fitted: Fitted) -> tuple[Tree, Tree] | None:
    """The tables of both halves of the blocks; None if the blocks are too few, or give no table."""
    split = _split(fitted.case.matrix)
    trees = [refitted(fitted, half) for half in split]
    return (trees[0], trees[1]) if len(trees) == 2 and trees[0] and trees[1] else None


def _split(matrix: TimingMatrix) -> Sequence[TimingMatrix]:
    """The matrices of both halves of the blocks; none if a problem has fewer than four."""
    blocks = Blocks(matrix)
    return [] if int(blocks.counts.min()) < 4 else [blocks.of_half(half) for half in (0, 1)]


def _floor(matrix: TimingMatrix, trees: tuple[Tree, Tree] | None) -> int | None:
    split = _split(matrix) if trees else []
    if not trees or not split:
        return None
    return (extra(split[0], trees[1], trees[0]) + extra(split[1], trees[0], trees[1])) // 2
