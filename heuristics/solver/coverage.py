"""Coverage where no measured config may answer: finer bins, and the operator's default configs.

In: the measured problems and legality. Out: axes and further candidates that give every bin an answer. A config that is
legal at a measured size may be illegal up to the threshold behind it: then the bin ends at the measured size. If no
measured config is legal, mostly beyond the measured sizes, the operator's default config is a candidate without a time.
Any measured config is preferred to it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.solver.grid import Axis
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem

Bools = NDArray[np.bool_]


def separated(
    axes: tuple[Axis, Axis],
    problems: Sequence[tuple[int, int]],
    timed: Bools,
    configs: Sequence[Config],
    legality: Legality,
) -> tuple[Axis, Axis]:
    """The axes, with a bin ending at a measured size where otherwise no config timed there may answer.

    Args:
        axes: of rows and of hidden.
        problems: the measured ones.
        timed: bool (problems, configs): a config has a time.
        configs: the measured ones.
        legality: for all that is served.
    """
    for name in ("hidden", "rows"):
        rows, hidden = axes
        legal = legality.over(configs, rows.tops, hidden.tops)
        is_hidden = int(name == "hidden")
        lacking = {
            shape[is_hidden]
            for shape, own in zip(problems, timed, strict=True)
            if not (own & legal[:, rows.bin(shape[0]), hidden.bin(shape[1])]).any()
        }
        axes = (rows, _ending(hidden, lacking)) if is_hidden else (_ending(rows, lacking), hidden)
    return axes


def answers(matrix: TimingMatrix, legality: Legality) -> bool:
    """Whether each measured shape has a timed config that is legal there."""
    return all(
        any(legality.reaches(config, *shape) for config, timed in zip(matrix.configs, own, strict=True) if timed)
        for shape, own in zip(matrix.problems, matrix.timed.tolist(), strict=True)
    )


def default_configs(axes: tuple[Axis, Axis], lacking: Bools, legality: Legality) -> tuple[Config, ...]:
    """The operator's default configs for bins without another answer, ordered.

    Args:
        axes: of rows and of hidden.
        lacking: bool (R, H): there is no other answer.
        legality: for all that is served.
    """
    rows, hidden = axes
    columns = np.flatnonzero(lacking.any(axis=0)).tolist()
    # A region that extends further needs the config of its end.
    tops = {hidden.tops[column] for column in (*columns, -1)} if columns else ()
    spec = legality.spec
    defaults = {
        spec.default_config(Problem(spec.name, rows.tops[-1], top, dtype, variant), legality.target)
        for top in tops
        for dtype, variant in legality.served
    }
    return tuple(sorted(defaults))


def _ending(axis: Axis, sizes: set[int]) -> Axis:
    return axis._replace(tops=tuple(sorted({*axis.tops, *sizes})))
