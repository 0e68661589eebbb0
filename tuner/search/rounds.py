"""How many rounds each config of a problem gets.

In: a session (one problem on one device) and its configs. Out: every sample with its round number. Knows neither CUDA
nor replay: a session times blocks of rounds, a strategy says of which configs.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple, Protocol

from normtune.kernels.config import COPY, Config
from normtune.results.records import ROUNDS_PER_BLOCK

STRATEGIES = ("adaptive", "exhaustive")
FIRST_BLOCKS = 3  # 6 rounds for everybody, on three draws of offsets
ALL_BLOCKS = 8  # 16 rounds for whoever may be the best
CLOSE = 1.10  # ... that is, whoever is within 10 % of the best after the first blocks


class Samples(NamedTuple):
    """Times of one config: round numbers, ascending, and nanoseconds."""

    rounds: list[int]
    nanoseconds: list[int]


class Session(Protocol):
    """One problem being timed."""

    def block(self, configs: Sequence[Config]) -> dict[Config, list[int]]:
        """Time `ROUNDS_PER_BLOCK` rounds of these configs on fresh offsets: nanoseconds by config.

        A config that fails meanwhile is missing from the answer.
        """
        ...


def race(session: Session, configs: Sequence[Config], strategy: str) -> dict[Config, Samples]:
    """Time the configs, and the copy beside them, by a strategy.

    Args:
        session: of the problem.
        configs: candidates; the yardstick is added.
        strategy: `exhaustive` gives 16 rounds to all; `adaptive` 6 to all and 16 to those within 10 % of the best.
    """
    samples = {config: Samples([], []) for config in (*configs, COPY)}
    alive = list(samples)
    for number in range(ALL_BLOCKS):
        if strategy == "adaptive" and number == FIRST_BLOCKS:
            alive = [COPY, *close_to_best(samples, CLOSE)]
        for config, times in session.block(alive).items():
            first = number * ROUNDS_PER_BLOCK
            samples[config].rounds.extend(range(first, first + len(times)))
            samples[config].nanoseconds.extend(times)
    return {config: found for config, found in samples.items() if found.rounds}


def close_to_best(samples: Mapping[Config, Samples], within: float) -> list[Config]:
    """The configs whose median is at most `within` times the least. The copy is none of them."""
    medians = {config: median(found.nanoseconds) for config, found in samples.items() if found.rounds}
    medians.pop(COPY, None)
    best = min(medians.values(), default=0)
    return [config for config, time in medians.items() if time <= within * best]
