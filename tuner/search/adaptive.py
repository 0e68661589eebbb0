"""The search in two batches per problem: 6 rounds for every config, then 16 for candidates for the best."""

from collections.abc import Sequence

from normtune.kernels.config import Config
from normtune.tuner.plan.plan import Task
from normtune.tuner.search.by_problem import ByProblem
from normtune.tuner.search.protocol import Batch, Race
from normtune.tuner.search.rounds import close_to_best
from normtune.tuner.timing.protocol import ALL_BLOCKS

FIRST_BLOCKS = 3  # 6 rounds for all configs, on three draws of offsets
CLOSE = 1.10  # candidates for the best: configs within 10 % of the best after the first blocks


class Adaptive(ByProblem):
    """A `protocol.Search`."""

    name = "adaptive"
    least_blocks = FIRST_BLOCKS

    def batches(self, task: Task) -> Race:
        """Two batches: all configs, then those close to the best."""
        return two_batches(task.configs)


def two_batches(configs: Sequence[Config]) -> Race:
    """The first blocks for all of these configs, the others for those close to the best."""
    samples = yield Batch(configs, FIRST_BLOCKS)
    yield Batch(close_to_best(samples, CLOSE), ALL_BLOCKS - FIRST_BLOCKS)
