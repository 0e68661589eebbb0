"""The search by proposals of the tree-structured Parzen estimator.

In: see `protocol` and `sampled`. Out: tasks of proposed configs.
"""

import optuna

from normtune.tuner.search.sampling.sampled import Sampled


class TPE(Sampled):
    """A `protocol.Search`."""

    name = "tpe"

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """The sampler."""
        return optuna.samplers.TPESampler(seed=seed)
