"""Further samplers of Optuna, run as normtune runs its own (`tuner.search.sampling`)."""

import optuna

from normtune.tuner.search.sampling.sampled import Sampled


class NSGA2(Sampled):
    """Proposals of its genetic algorithm."""

    name = "optuna NSGA-II"

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """The sampler."""
        return optuna.samplers.NSGAIISampler(seed=seed)


class JointTPE(Sampled):
    """Proposals of the tree-structured Parzen estimator over all knobs together."""

    name = "optuna TPE, multivariate"

    def sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        """The sampler."""
        return optuna.samplers.TPESampler(seed=seed, multivariate=True)


SAMPLERS: dict[str, type[Sampled]] = {one.name: one for one in (NSGA2, JointTPE)}
