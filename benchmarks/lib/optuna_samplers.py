"""Further samplers of Optuna, run as normtune runs its TPE (`tuner.search.sampling`).

Earlier results of `gp` and `random` are of searches that normtune had. That `random` drew one of the configs that were
not timed; Optuna draws a value of each knob, and the nearest such config is taken where that is none of them.
"""

import warnings
from collections.abc import Callable
from functools import partial

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from normtune.tuner.search.sampling.sampled import TPE

# By the names that the results have. `gp` imports torch.
_SAMPLERS: dict[str, Callable[..., BaseSampler]] = {
    "gp": GPSampler,
    "random": RandomSampler,
    "optuna NSGA-II": NSGAIISampler,
    "optuna TPE, multivariate": partial(TPESampler, multivariate=True),
}


class _Other(TPE):
    """Proposals of the sampler of its name."""

    def sampler(self, seed: int) -> BaseSampler:
        """The sampler."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return _SAMPLERS[self.name](seed=seed)


SAMPLERS: dict[str, type[TPE]] = {name: type("_Named", (_Other,), {"name": name}) for name in _SAMPLERS}
