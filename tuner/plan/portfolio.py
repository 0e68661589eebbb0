"""The portfolio of a problem: the configs that tables of measured GPUs choose for shapes like it.

In: a problem, the limits of its device, and the tables that ship. Out: at most `CONFIGS` configs. A fit has found
configs that are best together over all that was measured on a GPU; the regions for which its table chooses them are
compared with the problem by their distance in octaves, with rows per multiprocessor.
"""

from collections.abc import Iterable
from functools import cache
from math import log2
from typing import NamedTuple

from normtune.kernels.box import Box
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.sizes import located
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.loaded import LoadedTable
from normtune.kernels.tablefile.tree import regions
from normtune.kernels.target import Target

# Most configs of a problem. On an H100, from the table of an H200, 4 lose 1.8 % where 16 lose 1.7 %; a GPU that is less
# like the measured ones needs the others.
CONFIGS = 16


class Region(NamedTuple):
    """A leaf of a table's function.

    Attributes:
        config: its answer.
        box: the shapes for which it answers.
        sms: multiprocessors of the table's GPU.
    """

    config: Config
    box: Box
    sms: int

    def octaves(self, problem: Problem, target: Target) -> float:
        """Sum over the sizes of how far a problem lies outside of the box, in octaves."""
        distance = 0.0
        shape = located(problem.function_shape, self.box.axes)
        for size, (axis, least, most) in zip(shape, self.box, strict=True):
            scaled = size * self.sms / target.sms if axis == "rows" else size
            distance += log2(max(least / scaled, scaled / most, 1.0))
        return distance


def portfolio(spec: OperatorSpec, problem: Problem, target: Target) -> list[Config]:
    """The configs of the regions nearest to a problem that are legal there, the nearest first; empty without tables."""
    return nearest(_regions(problem.key, spec.whole), spec, problem, target)


def nearest(regions: Iterable[Region], spec: OperatorSpec, problem: Problem, target: Target) -> list[Config]:
    """The same, of these regions."""
    configs = dict[Config, None]()
    for region in sorted(regions, key=lambda region: region.octaves(problem, target)):
        if len(configs) == CONFIGS:
            break
        # Read in the operator's class: the table may be of another version, with other knobs.
        config = spec.read_config(region.config.to_json())
        if config not in configs and spec.knows(config) and spec.is_legal(config, problem, target):
            configs[config] = None
    return [*configs]


@cache
def _regions(key: Key, whole: Box) -> list[Region]:
    """The regions of all shipped tables that have a function of a key."""
    of_tables = []
    for table in _tables():
        name = table.name(key)
        tree = None if name is None else table.trees[name]
        if tree is not None:
            of_tables += [Region(config, box, table.header.sms) for config, box in regions(tree, whole)]
    return of_tables


@cache
def _tables() -> list[LoadedTable]:
    return [locate.load(path) for path in locate.by_name().values()]
