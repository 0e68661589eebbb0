"""`race` on recorded times: its cost and loss beside fixed numbers of rounds.

In: the shipped recording. Out: benchmarks/results/strategies/racing.json and .md. No GPU.

    python benchmarks/racing.py
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from normtune.benchmarks.lib.simulation import Space
from normtune.benchmarks.places import RESULTS, write
from normtune.benchmarks.recorded_spaces import BYTES_PER_SECOND, recorded, some
from normtune.kernels.config import Config
from normtune.results.records import ROUNDS_PER_BLOCK
from normtune.tuner.search.adaptive import two_batches
from normtune.tuner.search.paired import PRECISION
from normtune.tuner.search.protocol import Batch, Race, Samples
from normtune.tuner.search.race import race
from normtune.tuner.search.rounds import timed
from normtune.tuner.timing.protocol import SENTINEL_BYTES, SENTINEL_COPIES

# Bytes read and written by the sentinel of a round, with the untimed copy.
SENTINEL_MOVED = (1 + SENTINEL_COPIES) * 2 * SENTINEL_BYTES
PROBLEMS = 400


class Session:
    """Recorded rounds of a space, drawn by themselves, the same for all configs.

    Whole blocks of a recording of eight would be drawn twice in a row in every eighth race, without any noise.

    Attributes:
        seconds: of the device.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._random = space, Random(seed)
        self._flat = {config: one.reshape(-1) for config, one in space.blocks.items()}
        self._count = min(map(len, self._flat.values()))
        self.seconds = 0.0

    def block(self, configs: Sequence[Config]) -> dict[Config, list[int]]:
        rounds = [self._random.randrange(self._count) for _ in range(ROUNDS_PER_BLOCK)]
        times = {config: self._flat[config][rounds].tolist() for config in configs if config in self._flat}
        self.seconds += sum(
            sum(one) * 1e-9 * self._space.launches + ROUNDS_PER_BLOCK * self._space.fixed for one in times.values()
        )
        self.seconds += ROUNDS_PER_BLOCK * SENTINEL_MOVED / BYTES_PER_SECOND
        return times


def fixed(blocks: int) -> Callable[[Sequence[Config]], Race]:
    """The same number of blocks for all configs."""

    def rule(configs: Sequence[Config]) -> Race:
        yield Batch(configs, blocks)

    return rule


def adaptive(configs: Sequence[Config]) -> Race:
    return two_batches(configs)


def winner(samples: dict[Config, Samples]) -> tuple[Config, int]:
    """The config with the least mean log time of those with most rounds, and their number of rounds."""
    own = {config: one for config, one in samples.items() if len(one.rounds)}
    most = max(len(one.rounds) for one in own.values())
    last = [config for config, one in own.items() if len(one.rounds) == most]
    return min(last, key=lambda config: float(np.log(own[config].nanoseconds).mean())), most


def precision(spaces: Sequence[Space]) -> list[dict[str, Any]]:
    """Cost and loss of rules on the recording; `race` also beside as many rounds for all configs of a problem."""
    rules = {f"{2 * blocks} rounds for all": fixed(blocks) for blocks in (3, 8, 16, 24, 32)}
    rules |= {"adaptive": adaptive, "race": race}
    lines, ends = [], [0] * len(spaces)
    for name, rule in rules.items():
        lines.append(_line(name, spaces, [rule] * len(spaces), ends))
    lines.append(_line("as many rounds for all as the race of the problem took", spaces, list(map(fixed, ends))))
    return lines


def _line(name: str, spaces: Sequence[Space], rules: Sequence[Any], ends: list[int] | None = None) -> dict[str, Any]:
    losses, rounds, seconds = [], [], 0.0
    for index, (space, rule) in enumerate(zip(spaces, rules, strict=True)):
        configs = sorted(space.blocks)
        session = Session(space, index)
        best, most = winner(timed(session, configs, rule(configs)))
        truth = {config: float(np.log(one).mean()) for config, one in space.blocks.items()}
        losses.append(truth[best] - min(truth.values()))
        rounds.append(most)
        seconds += session.seconds
        if ends is not None:
            ends[index] = most // 2
    return {
        "rule": name,
        "device_seconds": round(seconds, 2),
        "most_rounds_mean": round(float(np.mean(rounds)), 1),
        "loses_mean_percent": round(100 * float(np.mean(losses)), 3),
        "share_over_precision": round(float(np.mean(np.array(losses) > PRECISION)), 3),
    }


def markdown(document: dict[str, Any]) -> str:
    lines = [
        "`python benchmarks/racing.py`",
        "",
        "| H200 recording | GPU s | rounds of the last | loses, mean | over 0.5 % |",
    ]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for one in document["precision"]:
        lines.append(
            f"| {one['rule']} | {one['device_seconds']} | {one['most_rounds_mean']} | {one['loses_mean_percent']} % | "
            f"{100 * one['share_over_precision']:.1f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    spaces = some(recorded(), PROBLEMS)
    document = {"problems": len(spaces), "precision": precision(spaces)}
    folder = RESULTS / "strategies"
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "racing.json", document, markdown(document))
    print(markdown(document))


if __name__ == "__main__":
    main()
