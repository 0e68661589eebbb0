"""The search by proposals of uniform draws without repetition.

In: see `protocol` and `sampled`. Out: tasks of proposed configs.
"""

from normtune.tuner.search.sampling.sampled import Sampled


class RandomDraw(Sampled):
    """A `protocol.Search`."""

    name = "random"

    def sampler(self, seed: int) -> None:
        """The sampler."""
        return None
