"""Cross-evaluation of two sweeps of the same kind of GPU: each table scored on the other's times.

In: the evidence of both. Out: for each operator, variant and dtype in both, the excess loss of each table on the times
of the other sweep over the other's own table; and the noise floor for comparison.

The noise floor of a sweep: its blocks are split in two and a table is fitted to each half. The floor is the excess loss
of one half's table on the other half over that half's own, the mean of both directions. The halves have half as many
rounds, so the floor is rather too high for whole sweeps; but they share the compiled binaries, the day and the GPU,
which sweeps do not. An own table has seen the noise that it is scored on, in the sweeps as in the halves.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normtune.benchmarks.lib.some_problems import of_problems
from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit, used
from normtune.heuristics.fitting.result import Fit
from normtune.heuristics.fitting.sharing import extra
from normtune.heuristics.regret.legality import registered
from normtune.heuristics.regret.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.regret.weights import Weighting
from normtune.kernels.key import Key
from normtune.kernels.operator import operator
from normtune.kernels.problem import Shape
from normtune.kernels.tablefile.tree import Tree, choose
from normtune.kernels.target import target_for
from normtune.results.evidence import Evidence
from normtune.results.records import ROUNDS_PER_BLOCK

_PROBLEM = ("operator", "variant", "dtype", "rows", "hidden", "run")
_LEAST_BLOCKS = 4


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


class Table(NamedTuple):
    """A table and the measurements of one device that it was fitted to."""

    evidence: Evidence
    fit: Fit

    def tree(self, key: Key) -> Tree | None:
        """The tree that answers for a key; None without one."""
        trees = {key: function.tree for function in self.fit.functions for key in function.served}
        donor = {function.key: function.donor for function in self.fit.shared}.get(key, key)
        return trees.get(donor) or trees.get(key.without_modes)


class Sweep(NamedTuple):
    """A sweep with its table.

    Attributes:
        table: fitted to the sweep.
        halves: the tables of both halves of the blocks; empty if there are too few blocks.
    """

    table: Table
    halves: tuple[Table, ...]


def swept(evidence: Evidence, options: FitOptions) -> Sweep:
    """A sweep with its table, and with the tables of its halves.

    Args:
        evidence: measurements of one device and regime.
        options: of the fits.
    """
    parts = (evidence, *_halves(evidence))
    table, *halves = (Table(part, fit(part, options)) for part in parts)
    return Sweep(table, tuple(halves))


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
    devices = [sweep.table.fit.device for sweep in (first, second)]
    if len({(device.target, device.sms) for device in devices}) > 1:
        both = " and ".join(f"{device.label} with {device.sms} SMs" for device in devices)
        raise UsageError(f"the sweeps are of different kinds of GPU: {both}")
    kinds = [kind for kind in _kinds(first.table, options) if kind in set(_kinds(second.table, options))]
    results = [result for key in kinds if (result := _crossed(first, second, key, options))]
    if not results:
        raise NormtuneError("the sweeps have no shapes of an operator and dtype in common: sweep the same grid")
    return results


def _kinds(table: Table, options: FitOptions) -> Iterator[Key]:
    """The measured kinds that the table serves."""
    served = table.fit.with_data()
    for key in table.evidence.select(options.operators).measured_keys():
        if registered(key) and key in served:
            yield key


def _crossed(first: Sweep, second: Sweep, key: Key, options: FitOptions) -> Crossed | None:
    own, other = first.table.tree(key), second.table.tree(key)
    left, right = (_matrix(sweep.table.evidence, key, options) for sweep in (first, second))
    common = set(left.problems) & set(right.problems)
    if own is None or other is None or not common:
        return None
    left, right = _at(left, common), _at(right, common)
    differ = [choose(own, shape) != choose(other, shape) for shape in left.problems]
    return Crossed(
        key.text,
        key.dtype,
        len(common),
        (_scored(left, own, other), _scored(right, own, other)),
        (extra(right, own, other), extra(left, other, own)),
        (_floor(first, key, common, options), _floor(second, key, common, options)),
        float(left.weight @ differ) / float(left.weight.sum()),
    )


def _matrix(evidence: Evidence, key: Key, options: FitOptions) -> TimingMatrix:
    """The weighted timing matrix of a key, as in a fit.

    Raises:
        NormtuneError: the key has no times.
    """
    data = used(evidence, options.operators)
    device = data.devices()[0]
    matrix = timing_matrix(data, operator(key.operator), key, target_for(device.target, device.sms))
    if matrix is None:
        raise NormtuneError(f"no times of {key} on {device.label}: sweep them first")
    return Weighting(options.weights).weighted(matrix)


def _at(matrix: TimingMatrix, shapes: set[Shape]) -> TimingMatrix:
    """The matrix of some of its shapes."""
    return of_problems(matrix, [index for index, shape in enumerate(matrix.problems) if shape in shapes])


def _scored(matrix: TimingMatrix, *trees: Tree) -> int:
    return sum(
        all(matrix.loss(index, choose(tree, shape)) is not None for tree in trees)
        for index, shape in enumerate(matrix.problems)
    )


def _halves(evidence: Evidence) -> Iterator[Evidence]:
    """Both halves of the blocks of each problem, every second one; none if a problem has fewer than four blocks.

    Blocks are numbered anew, as the parity of a block's number decides which half of a fit it is in.
    """
    timed = evidence.where(evidence.frame["status"] == "ok")
    rounds: list[NDArray[np.int32]] = timed.frame["rounds"].tolist()
    samples: list[NDArray[np.int32]] = timed.frame["samples"].tolist()
    numbers = [one // ROUNDS_PER_BLOCK for one in rounds]
    for places in timed.frame.groupby(list(_PROBLEM)).indices.values():
        blocks = np.unique(np.concatenate([numbers[place] for place in places]))
        if len(blocks) < _LEAST_BLOCKS:
            return
        for place in places:
            numbers[place] = np.searchsorted(blocks, numbers[place])
    for half in (0, 1):
        own = [of_config % 2 == half for of_config in numbers]
        labels = [
            (number // 2 * ROUNDS_PER_BLOCK + label % ROUNDS_PER_BLOCK)[chosen].astype(np.int32)
            for number, label, chosen in zip(numbers, rounds, own, strict=True)
        ]
        of_half = [times[chosen] for times, chosen in zip(samples, own, strict=True)]
        frame = timed.frame.assign(rounds=pd.Series(labels), samples=pd.Series(of_half))
        yield replace(timed, frame=frame).where(frame["samples"].map(len) > 0)


def _floor(sweep: Sweep, key: Key, shapes: set[Shape], options: FitOptions) -> int | None:
    """The mean excess loss of the table of one half on the other half over that half's own."""
    if not sweep.halves:
        return None
    (left, mine), (right, theirs) = (
        (_at(_matrix(half.evidence, key, options), shapes), half.tree(key)) for half in sweep.halves
    )
    if mine is None or theirs is None:
        return None
    return (extra(left, theirs, mine) + extra(right, mine, theirs)) // 2
