"""An earlier table, of which rows keep their bits.

In: its file, and the functions of a fit. Out: `SameBits`: for a function that is to be fitted, what it may answer
(`kept_bits`); and a check of those that were fitted. What the earlier table does not have is refused: there is no
result to keep.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.baseline import of_file
from normtune.heuristics.fitting.result import Function, Shared
from normtune.heuristics.solver.kept_bits import KeptBits
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import (
    batch_invariant_key,
    join_key,
    split_batch_invariant,
    split_key,
)
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.tree import Tree, regions
from normtune.kernels.target import Target


class SameBits(NamedTuple):
    """An earlier table.

    Attributes:
        name: of its file, for messages.
        trees: its trees by key and dtype.
    """

    name: str
    trees: Mapping[tuple[str, str], Tree]

    def kept(
        self, spec: OperatorSpec, target: Target, variant: str, dtypes: Sequence[str], batch_invariant: bool = False
    ) -> KeptBits:
        """What a function of a variant for these dtypes may answer.

        Raises:
            UsageError: the table has no function for one of them.
        """
        key = join_key(spec.name, variant)
        found = {dtype: _serving(self.trees, key, dtype, batch_invariant) for dtype in dtypes}
        for dtype, tree in found.items():
            if tree is None:
                of_mode = "batch-invariant " * batch_invariant
                raise UsageError(
                    f"{self.name} has no {of_mode}function of {key} {dtype}, of which bits could be kept: leave "
                    f"it out, {'without --batch-invariant' if batch_invariant else 'with --operator'}"
                )
        return KeptBits(spec, target, variant, {dtype: tree for dtype, tree in found.items() if tree})

    def check(
        self, spec: OperatorSpec, target: Target, functions: Sequence[Function], shared: Sequence[Shared]
    ) -> None:
        """Refuse a fit of an operator that answers for a function of the table with other bits, or not at all.

        Raises:
            NormtuneError: it does, as where a variant was not measured and takes the plain operator's function.
        """
        trees = {(one.key, dtype): one.tree for one in functions for dtype in one.dtypes}
        of_donor = {(one.key, one.dtype): one.tree for one in functions}
        trees |= {(one.key, one.dtype): of_donor[one.donor] for one in shared}
        modes = {split_batch_invariant(key)[1] for key, _ in trees}
        for (name, dtype), _ in self.trees.items():
            key, is_of_mode = split_batch_invariant(name)
            if split_key(key)[0] != spec.name or is_of_mode not in modes:
                continue
            tree, variant = _serving(trees, key, dtype, is_of_mode), split_key(key)[1]
            kept = self.kept(spec, target, variant, [dtype], is_of_mode)
            if tree is None or any(kept.refuses(*region) for region in regions(tree, spec.whole)):
                raise NormtuneError(
                    f"{name} {dtype} would not keep the bits that {self.name} gives it: sweep that variant and dtype"
                )


def same_bits(path: str | None, target: Target) -> SameBits | None:
    """The table in a file; None for no file.

    Raises:
        UsageError: it cannot be read, or is not a table of one GPU of the target.
    """
    if path is None:
        return None
    incumbents, header = of_file(path), locate.header_of(path)
    name = locate.told(Path(path))
    if header.target != target.name:
        raise UsageError(f"{name} is a table of {header.target}, and the measurements are of {target.name}")
    return SameBits(name, incumbents.trees)


def _serving(trees: Mapping[tuple[str, str], Tree], key: str, dtype: str, batch_invariant: bool) -> Tree | None:
    """The tree that answers: a variant's own, else the plain operator's."""
    names = [key, split_key(key)[0]]
    if batch_invariant:
        names = [batch_invariant_key(name) for name in names]
    return next((trees[name, dtype] for name in names if (name, dtype) in trees), None)
