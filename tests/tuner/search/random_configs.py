"""A search of five random configs per problem: an example of a strategy in one file."""

import random

from normtune.tuner.search.by_problem import ByProblem
from normtune.tuner.search.protocol import Batch
from normtune.tuner.timing.protocol import ALL_BLOCKS

CONFIGS = 5


class RandomConfigs(ByProblem):
    """Done with a problem when those that are drawn for it are known, whatever else is."""

    name = "random"
    least_blocks = ALL_BLOCKS

    def remaining(self, task, previous):
        draw = random.Random(str(task.problem))
        drawn = draw.sample(task.candidates, min(CONFIGS, len(task.candidates)))
        return super().remaining(task._replace(candidates=tuple(drawn)), previous)

    def batches(self, task):
        yield Batch(task.configs, ALL_BLOCKS)
