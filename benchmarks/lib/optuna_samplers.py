"""Samplers of Optuna, run as the strategy `optuna:SAMPLER` runs them, by the names that the results have.

Earlier results of `tpe`, `gp` and `random` are of searches that normtune had. That `random` drew one of the configs
that were not timed; Optuna draws a value of each knob.
"""

import warnings
from collections.abc import Callable
from functools import partial

from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from normtune.tuner.search.sampler import SamplerSearch

# `gp` imports torch.
_SAMPLERS: dict[str, Callable[..., BaseSampler]] = {
    "tpe": TPESampler,
    "gp": GPSampler,
    "random": RandomSampler,
    "optuna NSGA-II": NSGAIISampler,
    "optuna TPE, multivariate": partial(TPESampler, multivariate=True),
}


def _made(name: str, seed: int) -> BaseSampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return _SAMPLERS[name](seed=seed)


SAMPLERS: dict[str, type[SamplerSearch]] = {
    name: type("_Named", (SamplerSearch,), {"name": name, "sampler": staticmethod(partial(_made, name))})
    for name in _SAMPLERS
}
