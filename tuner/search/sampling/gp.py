"""The search by proposals of a Gaussian process with expected improvement; imports torch, on the CPU.

In: see `protocol` and `sampled`. Out: tasks of proposed configs.
"""

import optuna

from normtune.tuner.search.sampling.sampled import Sampled


class GP(Sampled):
    """A `protocol.Search`."""

    name = "gp"

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """The sampler."""
        return optuna.samplers.GPSampler(seed=seed)
