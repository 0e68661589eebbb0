"""Which shapes and configs tell whether a table still fits.

In: a function of a table, and the shapes that can be measured. Out: a stream of shapes, and the configs that race at
each. Pure, and the same for the same seed. Measuring is left to the tuner, what it says to `verdict`.

Shapes alternate between two kinds. Those near a threshold lie within half an octave of it, on either side, anywhere
along it: where a threshold has moved, the wrong config answers there. A threshold is drawn by its length in octaves, as
a long one answers for many shapes. The others are log-uniform in the measured box, where the table's grid never was;
hidden sizes are multiples of 16, as in models. On a replay both are drawn from the recorded shapes.
"""

import math
import random
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from normtune.heuristics.suspect import Box, Checked
from normtune.heuristics.tree import Leaf, Split, Tree, choose
from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target

# The race beside the table's config. On the recorded H200, around fresh tables and moved ones, the best of it loses on
# average at most 0.1 % to the best of the whole space, 0.4 % in one variant; strong ones alone up to 2.6 %.
NEIGHBOURS, STRONG = 5, 6
_UNIT = 16
_OCTAVES = 0.5
# So many draws in a row that give nothing new end a stream.
_TRIES = 200


class _Cut(NamedTuple):
    """A split and the part of the box that it divides."""

    axis: str
    threshold: int
    box: Box


def probes(
    one: Checked, box: Box, seed: int, most_elements: int, known: Collection[tuple[int, int]] | None = None
) -> Iterator[tuple[int, int]]:
    """The shapes at which a function is checked, each once, (rows, hidden), until there are no more.

    Args:
        one: the function.
        box: that it was measured on.
        seed: other seeds give other shapes.
        most_elements: rows x hidden is at most that.
        known: the only shapes that can be measured; None for all.
    """
    rng = random.Random(f"{seed} {one.key} {one.dtype}")
    cuts = list(_cuts(one.tree, box))
    weights = [_length(cut) for cut in cuts]
    shapes = None if known is None else sorted(shape for shape in known if _holds(box, *shape))
    seen: set[tuple[int, int]] = set()
    near, tries = True, 0
    while tries < _TRIES:
        tries += 1
        near = not near
        shape = _near(rng, rng.choices(cuts, weights)[0], shapes) if near and cuts else _anywhere(rng, box, shapes)
        if shape is None or shape in seen or shape[0] * shape[1] > most_elements:
            continue
        tries = 0
        seen.add(shape)
        yield shape


def rivals(tree: Tree, spec: OperatorSpec, problem: Problem, target: Target) -> list[Config]:
    """The configs that race against the table's: those of the leaves around, then strong ones of the quick space."""
    own = choose(tree, problem.rows, problem.hidden)
    around: dict[Config, None] = {}
    for rows, hidden in _around(problem.rows, problem.hidden, spec.max_hidden):
        around.setdefault(choose(tree, rows, hidden))
    nearest = [config for config in around if config != own][:NEIGHBOURS]
    strong = [config for config in spec.space("quick", problem, target) if config != own and config not in nearest]
    return nearest + spread(strong, STRONG)


def spread(configs: Sequence[Config], count: int) -> list[Config]:
    """So many of the configs, from the first to the last, as evenly as can be."""
    if len(configs) <= count:
        return list(configs)
    return [configs[round(place * (len(configs) - 1) / (count - 1))] for place in range(count)]


def _cuts(tree: Tree, box: Box) -> Iterator[_Cut]:
    if isinstance(tree, Leaf):
        return
    low, high = _halves(tree, box)
    if low and high:
        yield _Cut(tree.axis, tree.threshold, box)
    for side, part in ((tree.low, low), (tree.high, high)):
        if part:
            yield from _cuts(side, part)


def _halves(split: Split, box: Box) -> tuple[Box | None, Box | None]:
    """The parts of a box on either side of a split; None for an empty one."""
    if split.axis == "hidden":
        low = box._replace(most_hidden=min(box.most_hidden, split.threshold))
        high = box._replace(least_hidden=max(box.least_hidden, split.threshold + 1))
    else:
        low = box._replace(most_rows=min(box.most_rows, split.threshold - 1))
        high = box._replace(least_rows=max(box.least_rows, split.threshold))
    return tuple(  # type: ignore[return-value]
        part if part.least_rows <= part.most_rows and part.least_hidden <= part.most_hidden else None
        for part in (low, high)
    )


def _length(cut: _Cut) -> float:
    """How long a threshold is, octaves, and half a one, as it also answers for the shapes beside its ends."""
    box = cut.box
    if cut.axis == "hidden":
        return math.log2(box.most_rows / box.least_rows) + 0.5
    return math.log2(box.most_hidden / box.least_hidden) + 0.5


def _near(rng: random.Random, cut: _Cut, shapes: Sequence[tuple[int, int]] | None) -> tuple[int, int] | None:
    """A shape on one side of a threshold; None where there is none."""
    part = _halves(Split(cut.axis, cut.threshold, *(Leaf(Config("row")),) * 2), cut.box)[rng.random() < 0.5]
    if part is None:
        return None
    axis = int(cut.axis == "hidden")
    above = (part.least_rows, part.least_hidden)[axis] > (cut.box.least_rows, cut.box.least_hidden)[axis]
    if shapes is not None:
        inside = [shape for shape in shapes if _holds(part, *shape)]
        if not inside:
            return None
        end = (min if above else max)(shape[axis] for shape in inside)
        return rng.choice([shape for shape in inside if shape[axis] == end])
    factor = 2**_OCTAVES
    if axis == 0 and above:
        part = part._replace(most_rows=min(part.most_rows, round(part.least_rows * factor)))
    elif axis == 0:
        part = part._replace(least_rows=max(part.least_rows, round(part.most_rows / factor)))
    elif above:
        most = max(part.least_hidden + _UNIT, round(part.least_hidden * factor))
        part = part._replace(most_hidden=min(part.most_hidden, most))
    else:
        part = part._replace(least_hidden=max(part.least_hidden, round(part.most_hidden / factor)))
    return _anywhere(rng, part, None)


def _anywhere(rng: random.Random, box: Box, shapes: Sequence[tuple[int, int]] | None) -> tuple[int, int] | None:
    """A log-uniform shape of a box, or one of the shapes; None where there is none."""
    if shapes is not None:
        return rng.choice(shapes) if shapes else None
    rows = _log_uniform(rng, box.least_rows, box.most_rows)
    hidden = round(_log_uniform(rng, box.least_hidden, box.most_hidden) / _UNIT) * _UNIT
    if hidden < box.least_hidden:
        hidden += _UNIT
    if hidden > box.most_hidden:
        hidden -= _UNIT
    if hidden < box.least_hidden:  # a strip without a multiple
        hidden = box.most_hidden
    return rows, hidden


def _log_uniform(rng: random.Random, least: int, most: int) -> int:
    return min(most, max(least, round(math.exp(rng.uniform(math.log(least), math.log(most))))))


def _holds(box: Box, rows: int, hidden: int) -> bool:
    return box.least_rows <= rows <= box.most_rows and box.least_hidden <= hidden <= box.most_hidden


def _around(rows: int, hidden: int, most_hidden: int) -> Iterator[tuple[int, int]]:
    """The shapes up to two octaves away along each axis, nearest first."""
    steps = sorted(
        ((along, across) for along in range(-2, 3) for across in range(-2, 3)),
        key=lambda step: (abs(step[0]) + abs(step[1]), step),
    )
    for along, across in steps:
        yield max(1, round(rows * 2.0**along)), min(most_hidden, max(1, round(hidden * 2.0**across)))
