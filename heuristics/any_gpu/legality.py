"""Legality of configs over regions of relative sizes, on all relevant GPUs.

The relevant GPUs are all known GPUs of the measured families (`sm_`, `gfx`), each with the most multiprocessors and the
largest L2 cache of its family: more multiprocessors mean more rows at the same number of rows per multiprocessor.
Legality on every NVIDIA GPU costs an H200 0.2 % in its backward; additional legality on an MI300X costs 2.5 %, as its
64 KB of shared memory hold no deep pipeline. So an unmeasured family does not restrict the configs; if a config is
illegal there, dispatch launches the operator's default.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from normtune.errors import UsageError
from normtune.heuristics.regret.legality import Legality
from normtune.kernels.box import Box
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import MAX_ROWS
from normtune.kernels.tablefile.relative_tree import RelativeTree, boxes_on
from normtune.kernels.target import TARGETS, Target

# No NVIDIA GPU on sale has more multiprocessors; the RTX PRO 6000 has 188.
_MOST_SMS = 192


def targets_of(names: Sequence[str]) -> list[Target]:
    """All targets of the families of `names` (`sm_90`), each with the family's most multiprocessors and largest L2.

    Raises:
        UsageError: none of the families is known.
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
    """Legality on several targets, at least one, for all dtypes and variants of a function."""

    def __init__(
        self, spec: OperatorSpec, targets: Sequence[Target], dtypes: Sequence[str], variants: Sequence[str]
    ) -> None:
        self.spec = spec
        self._legalities = [Legality(spec, target, dtypes, variants) for target in targets]

    def over_rows_per_sm(
        self, configs: Sequence[Config], tops: Sequence[int], scale: int, hidden: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Bool (configs, tops, hidden): legality of each config up to that many rows per multiprocessor.

        `tops` are `scale` times the rows per multiprocessor; they and `hidden` ascend.
        """
        by_target = [
            legality.over(configs, [most_below(top + 1, legality.target.sms, scale) for top in tops], hidden)
            for legality in self._legalities
        ]
        return np.logical_and.reduce(by_target)

    def breaches(self, tree: RelativeTree) -> Iterator[tuple[Target, Config, Box]]:
        """Configs of a tree that are illegal on a target somewhere in their box, each with target and box."""
        for legality in self._legalities:
            for config, box in boxes_on(tree, legality.target.sms, legality.target.l2_bytes, self.spec.whole):
                if not _is_legal(legality, config, box):
                    yield legality.target, config, box


def most_below(bound: int, unit: int, scale: int) -> int:
    """The largest number of rows that is below bound / scale units."""
    return min(MAX_ROWS, -(-bound * unit // scale) - 1)


def _is_legal(legality: Legality, config: Config, box: Box) -> bool:
    """Whether a config is legal at all shapes of a box."""
    first, second, elements = box
    most = min(first.most, elements.most // second.least)
    if most < first.least or legality.reaches(config, (most, second.most)):
        return True
    if second.least == second.most or first.most * second.most <= elements.most:
        return False
    # No shape has the most of both sizes: with each half of the second ones fewer of the first go.
    middle = (second.least + second.most) // 2
    return all(_is_legal(legality, config, half) for half in box.cut(second.axis, middle + 1))
