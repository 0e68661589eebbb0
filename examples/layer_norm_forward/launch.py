"""Resolves a config to a launch of LayerNorm's forward, if it is legal.

In: config, problem, target. Out: `Launch`, or `IllegalConfigError` with the reason. Pure arithmetic, no torch, no
triton. Part of the kernels' fingerprint: a change here can change the time of a config.
"""

from normtune import IllegalConfigError
from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import Launch, tile

SCHEDULES = ("row", "block_row", "persistent")
# Most elements of a tile per thread. The longest row, 65536 columns in 1024 threads, has as many.
MAX_ELEMENTS_PER_THREAD = 64


def resolve(config: Config, problem: Problem, target: Target, alignment: int | None = None) -> Launch:
    """The launch of a `LayerNormConfig`; arguments and errors as in `tile`."""
    if config.schedule not in SCHEDULES:
        raise IllegalConfigError(f"schedule is {config.schedule!r}: expected one of {', '.join(SCHEDULES)}")
    return tile(config, problem, target, alignment, MAX_ELEMENTS_PER_THREAD, streamed_tiles=1)
