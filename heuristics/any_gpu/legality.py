"""Which configs may answer for a region of normalised sizes: those that are legal there on every GPU in question.

In: the GPUs that were measured, an operator, the dtypes and variants that a function serves. Out: `EveryGpu`. Since
legality never returns as rows or hidden grow, the largest shapes of a region speak for it.

The GPUs in question are all that are known of the families that were measured (`sm_`, `gfx`), each as if it had as many
multiprocessors and as much L2 cache as the largest of its family: more of them are more rows at as many rows a
multiprocessor. What is legal on every NVIDIA GPU costs an H200 0.2 % in its backward, legal on an MI300X as well 2.5 %:
its 64 KB of shared memory hold no deep pipeline. So a family of which nothing was measured does not narrow the choice;
where a config is illegal there, dispatch takes the operator's default.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from normtune.errors import UsageError
from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.tablefile.relative_tree import NormalisedTree, boxes_on
from normtune.heuristics.tablefile.tree import Box
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import ITEMSIZE, MAX_ROWS
from normtune.kernels.target import TARGETS, Target

# No NVIDIA GPU that is sold has more multiprocessors; the RTX PRO 6000 has 188.
_MOST_SMS = 192


def targets_of(names: Sequence[str]) -> list[Target]:
    """The targets on which a table is to be legal, each with the multiprocessors and L2 cache of the largest.

    Args:
        names: of the targets that were measured, such as `sm_90`.

    Raises:
        UsageError: nothing is known of any of them.
    """
    families = {family(name) for name in names}
    known = [target for target in TARGETS.values() if family(target.name) in families]
    if not known:
        raise UsageError(f"unknown targets {', '.join(names) or '(none)'}: expected some of {', '.join(TARGETS)}")
    sms = max(target.sms for target in known)
    l2_bytes = max(target.l2_bytes for target in known)
    return [target._replace(sms=max(_MOST_SMS, sms), l2_bytes=l2_bytes) for target in known]


def family(name: str) -> str:
    """The family of a target: `sm_` of `sm_90`, `gfx` of `gfx942`."""
    return name.rstrip("0123456789abcdef") if name.startswith("sm_") else name[:3]


class EveryGpu:
    """Legality on several targets at once."""

    def __init__(
        self, spec: OperatorSpec, targets: Sequence[Target], dtypes: Sequence[str], variants: Sequence[str]
    ) -> None:
        """Answers are kept, as trees of several functions ask the same again.

        Args:
            spec: the operator.
            targets: at least one.
            dtypes: that a function serves, the one it was fitted for first.
            variants: that it serves.
        """
        self.spec = spec
        self.itemsize = ITEMSIZE[dtypes[0]]
        self._legalities = [Legality(spec, target, dtypes, variants) for target in targets]

    def over_rows_per_sm(
        self, configs: Sequence[Config], tops: Sequence[int], scale: int, hidden: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Bool (configs, tops, hidden): whether each config is legal up to so many rows a multiprocessor.

        Args:
            configs: C of them.
            tops: ascending, `scale` times the rows a multiprocessor.
            scale: of `tops`.
            hidden: ascending.
        """
        found = [
            one.over(configs, [most_below(top + 1, one.target.sms, scale) for top in tops], hidden)
            for one in self._legalities
        ]
        return np.logical_and.reduce(found)

    def over_bytes_per_l2(
        self, configs: Sequence[Config], tops: Sequence[int], scale: int, hidden: Sequence[int]
    ) -> NDArray[np.bool_]:
        """The same for tops of bytes per byte of L2 cache, in each bin of hidden sizes by itself."""
        legal = np.zeros((len(configs), len(tops), len(hidden)), np.bool_)
        for index, config in enumerate(configs):
            for column, most_hidden in enumerate(hidden):
                least_hidden = hidden[column - 1] + 1 if column else 1
                box = Box(1, MAX_ROWS, least_hidden, most_hidden)
                reached = len(tops)
                for one in self._legalities:
                    reached = _reached(one, config, box, tops[:reached], scale, self.itemsize)
                legal[index, :reached, column] = True
        return legal

    def breaches(self, tree: NormalisedTree) -> Iterator[tuple[Target, Config, Box]]:
        """The configs of a tree that are illegal on a target at a shape of the box that they answer for."""
        whole = Box(1, MAX_ROWS, 1, self.spec.max_hidden)
        for one in self._legalities:
            for config, box in boxes_on(tree, one.target.sms, one.target.l2_bytes, whole):
                if not _is_legal(one, config, box):
                    yield one.target, config, box


def most_below(bound: int, unit: int, scale: int, most: int = MAX_ROWS) -> int:
    """The largest integer, at most `most`, that is below bound / scale units."""
    return min(most, -(-bound * unit // scale) - 1)


def _reached(legality: Legality, config: Config, box: Box, tops: Sequence[int], scale: int, itemsize: int) -> int:
    """How many of the tops of bytes per byte of L2 cache a config reaches in a box."""
    most_bytes = MAX_ROWS * box.most_hidden * itemsize

    def fails(top: int) -> bool:
        size = most_below(top + 1, legality.target.l2_bytes, scale, most_bytes)
        return not _is_legal(legality, config, box._replace(most_elements=size // itemsize))

    if not tops or not fails(tops[-1]):  # most often
        return len(tops)
    return bisect_left(tops, True, 0, len(tops) - 1, key=fails)


def _is_legal(legality: Legality, config: Config, box: Box) -> bool:
    """Whether a config is legal at all shapes of a box."""
    rows = box.most_rows
    if box.most_elements is not None:
        rows = min(rows, box.most_elements // box.least_hidden)
    if rows < box.least_rows or legality.reaches(config, rows, box.most_hidden):
        return True
    if box.most_elements is None or box.least_hidden == box.most_hidden:
        return False
    # No shape has the most rows and the most hidden both: each half of the hidden sizes has fewer rows.
    middle = (box.least_hidden + box.most_hidden) // 2
    return all(_is_legal(legality, config, half) for half in box.cut("hidden", middle + 1))
