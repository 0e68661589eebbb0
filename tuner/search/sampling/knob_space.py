"""The configs of a problem as points, to find the nearest free config to a proposal of Optuna.

In: configs, and a study of Optuna. Out: trials of the study and their configs.
"""

import warnings
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
from optuna import Study, Trial
from optuna.trial import TrialState

from normtune.kernels.config import Config, Implementation
from normtune.kernels.config_space import Drawn


class KnobSpace:
    """Configs of one class, and implementations, at least one, each free until it is taken."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self._configs = [*configs]
        self._row = {config: row for row, config in enumerate(configs)}
        with_knobs = [config for config in configs if not isinstance(config, Implementation)]
        self._first = [*with_knobs, *configs][0]
        self._choices = {
            knob: values
            for knob in self._first._fields
            if len(values := sorted({getattr(config, knob) for config in with_knobs})) > 1
        }
        self._points = np.array([self._point(config) for config in configs], np.float64).reshape(len(configs), -1)
        self._free = np.ones(len(configs), np.bool_)

    def __contains__(self, config: Config) -> bool:
        return config in self._row

    def add(self, config: Config) -> None:
        """Add a config, if it is new."""
        if config in self:
            return
        self._row[config] = len(self._configs)
        self._configs.append(config)
        self._points = np.vstack([self._points, self._point(config)])
        self._free = np.append(self._free, True)

    def is_free(self, config: Config) -> bool:
        """Whether a config was not yet taken."""
        return bool(self._free[self._row[config]])

    def take(self, config: Config) -> None:
        """Mark a config as taken."""
        self._free[self._row[config]] = False

    def free(self) -> list[Config]:
        """The configs not yet taken."""
        return [config for config, is_free in zip(self._configs, self._free, strict=True) if is_free]

    def ask(self, study: Study) -> tuple[Trial, Config | None]:
        """A new trial with the config that it proposes, legal or not; None if there is no such config."""
        trial = study.ask()
        return trial, self._of_trial(trial)

    def trial_of(self, study: Study, config: Config) -> Trial | None:
        """A new trial of this config; None if no trial can propose it."""
        parameters = self._parameters(config)
        if parameters is None:
            return None
        study.enqueue_trial(parameters)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of values that the space does not draw
            trial, proposed = self.ask(study)
        if proposed == config:
            return trial
        study.tell(trial, state=TrialState.FAIL)
        return None

    def _of_trial(self, trial: Trial) -> Config | None:
        """Of integers a trial suggests the rank of the value, texts are categories."""
        values: dict[str, Any] = {
            knob: trial.suggest_categorical(knob, values)
            if isinstance(values[0], str)
            else values[trial.suggest_int(knob, 0, len(values) - 1)]
            for knob, values in self._choices.items()
        }
        return self._first._replace(**values)

    def _parameters(self, config: Config) -> dict[str, Any] | None:
        """Parameters of a trial that proposes a config."""
        values = {knob: getattr(config, knob, None) for knob in self._choices}
        if isinstance(config, Implementation) or any(v not in self._choices[knob] for knob, v in values.items()):
            return None
        return {knob: v if isinstance(v, str) else self._choices[knob].index(v) for knob, v in values.items()}

    def nearest(self, proposed: Config, random: Random) -> Config:
        """The free config that is nearest to a proposed one; of several, a random one."""
        rows = np.flatnonzero(self._free)
        distances = np.abs(self._points[rows] - self._point(proposed)).sum(axis=1)
        return self._configs[random.choice(rows[distances <= distances.min() + 1e-9].tolist())]

    def _point(self, config: Config) -> list[float]:
        """Coordinates of a config: ranks of integers in shares of their range, and one axis for each text."""
        point = []
        for knob, values in self._choices.items():
            value = getattr(config, knob, None)
            if isinstance(values[0], str):
                point += [0.5 * (value == other) for other in values]
            else:
                point.append(0.0 if value is None else bisect_left(values, value) / (len(values) - 1))
        return point


class DrawnKnobs(KnobSpace):
    """Configs that were drawn from a space that cannot be listed; trials draw others."""

    def __init__(self, configs: Sequence[Config], space: Drawn, params: Mapping[Config, Mapping[str, Any]]) -> None:
        """Take the parameters of drawn configs, too; of others each knob is taken for the parameter of its name."""
        super().__init__(configs)
        self._space, self._params = space, params

    def _of_trial(self, trial: Trial) -> Config | None:
        return self._space.of_trial(trial)

    def _parameters(self, config: Config) -> dict[str, Any]:
        return dict(self._params.get(config, config._asdict()))
