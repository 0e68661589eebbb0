"""An earlier table; the new table must give every row the same bits.

`kept_bits` restricts the configs of a function accordingly. Keys that the earlier table lacks are refused.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.heuristics.fitting.baseline import of_file
from normtune.heuristics.fitting.result import FittedFunction, Shared
from normtune.heuristics.solver.kept_bits import KeptBits
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.tree import Tree, regions
from normtune.kernels.target import Target


class SameBits(NamedTuple):
    """An earlier table.

    Attributes:
        name: of its file, for messages.
        trees: its trees by key.
    """

    name: str
    trees: Mapping[Key, Tree]

    def kept(self, spec: OperatorSpec, target: Target, keys: Sequence[Key]) -> KeptBits:
        """The bits that a function for these keys must keep.

        Raises:
            UsageError: the table has no function for one of them.
        """
        trees = {key: _serving(self.trees, key) for key in keys}
        for key, tree in trees.items():
            if tree is None:
                of_mode = "batch-invariant " * key.is_batch_invariant
                raise UsageError(
                    f"{self.name} has no {of_mode}function of {key.usual}, whose bits could be kept: leave "
                    f"it out, {'without --batch-invariant' if key.is_batch_invariant else 'with --operator'}"
                )
        return KeptBits(spec, target, {key: tree for key, tree in trees.items() if tree})

    def check(
        self, spec: OperatorSpec, target: Target, functions: Sequence[FittedFunction], shared: Sequence[Shared]
    ) -> None:
        """Refuse a fit of an operator in which a key of the earlier table would get other bits, or no function.

        Raises:
            NormtuneError: there is such a key, for example an unmeasured variant with the plain operator's function.
        """
        trees = {key: function.tree for function in functions for key in function.served}
        of_donor = {function.key: function.tree for function in functions}
        trees |= {share.key: of_donor[share.donor] for share in shared}
        fitted_modes = {key.is_batch_invariant for key in trees}
        for key in self.trees:
            if key.operator != spec.name or key.is_batch_invariant not in fitted_modes:
                continue
            tree, kept = _serving(trees, key), self.kept(spec, target, [key])
            if tree is None or any(kept.refuses(*region) for region in regions(tree, spec.whole)):
                raise NormtuneError(
                    f"{key} would not keep the bits that {self.name} gives it: sweep that variant and dtype"
                )


def same_bits(path: str | None, target: Target) -> SameBits | None:
    """The table in a file; None without a file.

    Raises:
        UsageError: the file cannot be read, or is not a table of one GPU of the target.
    """
    if path is None:
        return None
    incumbents, header = of_file(path), locate.header_of(path)
    name = locate.quoted(Path(path))
    if header.target != target.name:
        raise UsageError(f"{name} is a table of {header.target}: expected one of {target.name}, as the measurements")
    return SameBits(name, incumbents.trees)


def _serving(trees: Mapping[Key, Tree], key: Key) -> Tree | None:
    """The tree of a key: a variant's own, else the plain operator's."""
    return next((trees[name] for name in key.names if name in trees), None)
