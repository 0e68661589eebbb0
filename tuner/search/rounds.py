"""The rounds of one task: the batches of a race, timed block by block.

In: a session, which times blocks of rounds of one problem, and a race, which chooses their configs. Out: every sample
with its round number.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Protocol

from normtune.kernels.config import COPY, Config
from normtune.results.records import ROUNDS_PER_BLOCK
from normtune.tuner.search.protocol import Race, Samples


class ProblemSession(Protocol):
    """One problem under timing."""

    def block(self, configs: Sequence[Config]) -> dict[Config, list[int]]:
        """Time `ROUNDS_PER_BLOCK` rounds of these configs at new offsets: nanoseconds by config, without failures."""
        ...


def timed(
    session: ProblemSession, configs: Sequence[Config], race: Race, first_block: int = 0
) -> dict[Config, Samples]:
    """Time the batches of a race, with the copy beside them.

    Args:
        session: of the problem.
        configs: configs that can be timed; others in the race's batches are left out.
        race: chooses the configs of each batch and its number of blocks.
        first_block: number of the first block; not 0 if the problem had others in this run.
    """
    samples = {config: Samples([], []) for config in (*configs, COPY)}
    block = first_block
    with suppress(StopIteration):
        batch = next(race)
        while True:
            alive = [config for config in batch.configs if config in samples]
            for _ in range(batch.blocks):
                for config, times in session.block([*alive, COPY] if batch.with_copy else alive).items():
                    first = block * ROUNDS_PER_BLOCK
                    samples[config].rounds.extend(range(first, first + len(times)))
                    samples[config].nanoseconds.extend(times)
                block += 1
            batch = race.send(_with_rounds(samples))
    return _with_rounds(samples)


def close_to_best(samples: Mapping[Config, Samples], within: float) -> list[Config]:
    """The configs with a median of at most `within` times the least, without the copy."""
    medians = {config: median(values.nanoseconds) for config, values in samples.items() if values.rounds}
    medians.pop(COPY, None)
    best = min(medians.values(), default=0)
    return [config for config, time in medians.items() if time <= within * best]


def _with_rounds(samples: Mapping[Config, Samples]) -> dict[Config, Samples]:
    return {config: values for config, values in samples.items() if values.rounds}
