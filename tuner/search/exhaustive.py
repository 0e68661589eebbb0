"""All rounds for every config: the exhaustive search, for recordings."""

from normtune.tuner.plan.plan import Task
from normtune.tuner.search.by_problem import ByProblem
from normtune.tuner.search.protocol import Batch, Race
from normtune.tuner.timing.protocol import ALL_BLOCKS


def all_rounds(task: Task) -> Race:
    """All rounds for every config of a task."""
    yield Batch(task.configs, ALL_BLOCKS)


class Exhaustive(ByProblem):
    """A `protocol.Search`."""

    name = "exhaustive"
    least_blocks = ALL_BLOCKS

    def batches(self, task: Task) -> Race:
        """See `all_rounds`."""
        return all_rounds(task)
