"""Random draws for a space that draws its configs, by the methods of Optuna's trials, which take long to import.

In: a source of random numbers. Out: `RandomTrial`, which a space takes in place of a trial. As in a study of Optuna, a
name has one kind of value in all trials: the same choices, or numbers on the same scale; their limits may differ.
"""

import math
from collections.abc import Sequence
from random import Random
from typing import Any


class RandomTrial:
    """What a space asks of a trial, drawn independently and uniformly, as Optuna's `RandomSampler` does.

    Args:
        random: source of the draws.
        kinds: the kind of each name in the earlier trials of the space; this trial adds to it.

    Attributes:
        params: what was drawn, by name; a name that is asked for again has its value.
    """

    def __init__(self, random: Random, kinds: dict[str, str]) -> None:
        self._random, self._kinds = random, kinds
        self.params: dict[str, Any] = {}

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """An integer from `low` to `high`, both included; of the logarithm if `log`.

        Raises:
            ValueError: there is none, or `log` has a step or begins below 1, or the name had another kind before.
        """
        if low > high or step < 1 or (log and (step != 1 or low < 1)):
            raise ValueError(f"{name} from {low} to {high} in steps of {step}, log={log}: no integers to draw")
        if log:
            octaves = self._random.uniform(math.log(low - 0.5), math.log(high + 0.5))
            candidate = min(max(round(math.exp(octaves)), low), high)
        else:
            candidate = self._random.randrange(low, high + 1, step)
        value: int = self._stored(name, "logarithms of integers" if log else "integers", candidate)
        return value

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """A number from `low` to `high`; of the logarithm if `log`.

        Raises:
            ValueError: there is none, or `log` has a step or begins at 0 or below, or the name had another kind before.
        """
        if low > high or (step is not None and step <= 0) or (log and (step is not None or low <= 0)):
            raise ValueError(f"{name} from {low} to {high} in steps of {step}, log={log}: no numbers to draw")
        if log:
            candidate = math.exp(self._random.uniform(math.log(low), math.log(high)))
        elif step is not None:
            candidate = low + step * self._random.randrange(int((high - low) / step + 1e-9) + 1)
        else:
            candidate = self._random.uniform(low, high)
        value: float = self._stored(name, "logarithms of numbers" if log else "numbers", candidate)
        return value

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """One of the choices.

        Raises:
            ValueError: there is none, or the name had other choices before.
        """
        if not choices:
            raise ValueError(f"{name} has no choices")
        return self._stored(name, f"one of {tuple(choices)}", self._random.choice(choices))

    def _stored(self, name: str, kind: str, value: Any) -> Any:
        earlier = self._kinds.setdefault(name, kind)
        if earlier != kind:
            raise ValueError(
                f"{name} is drawn from {kind} and in another trial from {earlier}: expected one kind of value for a "
                "name; add what the choices depend on to the name"
            )
        return self.params.setdefault(name, value)
