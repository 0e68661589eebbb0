"""Trial problems on which the gate checks kernels over rows.

In: a config with its launch. Out: a problem and launch with the same binary, several passes of the row loop and a
partly masked last tile.
"""

from collections.abc import Callable

from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import Launch

# Programs of the fixed grid in the gate: few, so that each makes many passes. The binary does not depend on it.
PROGRAMS = 5
# Full passes of the row loop: more than any pipeline has stages.
PASSES = 6

Resolve = Callable[[Config, Problem, Target, int | None], Launch]


def trial(resolve: Resolve, config: Config, launch: Launch, problem: Problem, target: Target) -> tuple[Problem, Launch]:
    """The trial problem for the binary of a launch, which is that of `config` for `problem`, and the launch there."""
    if not launch.looped:
        rows = max(PROGRAMS * launch.block_row * PASSES, PASSES // 2 * launch.slice_row)
        rows += max(1, launch.block_row // 2)
        # With another number of rows the binary may differ: halve or double towards the problem's rows.
        while (candidate := resolve(config, problem._replace(rows=rows), target, None)).binary != launch.binary:
            is_more = rows > problem.rows
            rows = rows // 2 if is_more else 2 * rows
            if is_more == (rows <= problem.rows):
                return problem, launch
        return problem._replace(rows=rows), candidate
    programs = min(launch.grid, PROGRAMS)
    if not launch.workspace:
        try:
            many = resolve(config, problem._replace(rows=MAX_ROWS), target, None)
        except IllegalConfigError:
            many = None
        # If a grid of one has another binary, without partial sums, one program makes all passes.
        programs = PROGRAMS if many and many.binary == launch.binary else 1
    rows = programs * launch.block_row * PASSES + max(1, launch.block_row // 2)
    workspace = programs * problem.hidden if launch.workspace else 0
    return problem._replace(rows=rows), launch._replace(grid=programs, workspace=workspace)
