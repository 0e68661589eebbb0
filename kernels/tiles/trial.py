"""Trial shapes for the gate of kernels over rows.

In: a config with its launch. Out: a problem and launch of the same binary, whose loop runs several times and whose last
tile is cut.
"""

from collections.abc import Callable

from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import Launch

# Programs of the fixed grid in the gate: the grid is not part of the binary, and few programs loop often.
PROGRAMS = 5
# Full passes of the grid's loop, more than any pipeline has stages.
PASSES = 6

Resolve = Callable[[Config, Problem, Target, int | None], Launch]


def trial(resolve: Resolve, config: Config, launch: Launch, problem: Problem, target: Target) -> tuple[Problem, Launch]:
    """The trial problem and launch of a launch's binary.

    Args:
        resolve: of the operator.
        config: the config.
        launch: its launch.
        problem: the problem of both.
        target: limits of the GPU.
    """
    if not launch.looped:
        rows = max(PROGRAMS * launch.block_row * PASSES, PASSES // 2 * launch.slice_row)
        rows += max(1, launch.block_row // 2)
        # Of other numbers of rows another binary may sum, or programs write other parts: nearer to the problem's own.
        while (tried := resolve(config, problem._replace(rows=rows), target, None)).binary != launch.binary:
            is_more = rows > problem.rows
            rows = rows // 2 if is_more else 2 * rows
            if is_more == (rows <= problem.rows):
                return problem, launch
        return problem._replace(rows=rows), tried
    programs = min(launch.grid, PROGRAMS)
    if not launch.workspace:
        try:
            many = resolve(config, problem._replace(rows=MAX_ROWS), target, None)
        except IllegalConfigError:
            many = None
        # One program may be another binary (it sums alone); then it makes all the passes.
        programs = PROGRAMS if many and many.binary == launch.binary else 1
    rows = programs * launch.block_row * PASSES + max(1, launch.block_row // 2)
    workspace = programs * problem.hidden if launch.workspace else 0
    return problem._replace(rows=rows), launch._replace(grid=programs, workspace=workspace)
