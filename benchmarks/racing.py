"""`race` on recorded times: its cost beside fixed numbers of rounds, A/A races, and first samples that drift.

In: the shipped recording, and a folder with T4 files of benchmark_hub. Out: benchmarks/results/strategies/racing.json
and .md. No GPU.

    python benchmarks/racing.py FOLDER
"""

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from normtune.benchmarks.lib.simulation import Space
from normtune.benchmarks.lib.t4 import RecordedSpace
from normtune.benchmarks.places import RESULTS, write
from normtune.benchmarks.recorded_spaces import BYTES_PER_SECOND, foreign, recorded, some, space_of
from normtune.kernels.config import Config
from normtune.results.records import ROUNDS_PER_BLOCK
from normtune.tuner.search import paired
from normtune.tuner.search.adaptive import two_batches
from normtune.tuner.search.paired import PRECISION
from normtune.tuner.search.protocol import Batch, Race, Samples
from normtune.tuner.search.race import LOOKS, race
from normtune.tuner.search.rounds import timed
from normtune.tuner.timing.protocol import SENTINEL_BYTES, SENTINEL_COPIES

# Bytes read and written by the sentinel of a round, with the untimed copy.
SENTINEL_MOVED = (1 + SENTINEL_COPIES) * 2 * SENTINEL_BYTES
PROBLEMS = 400
RACES = 200
CONFIGS = 64
# Fixed rule: samples of each config in a row, and of those within 10 % of the best.
FEW, MANY = 6, 16


class Session:
    """Recorded rounds of a space, drawn by themselves, the same for all configs; those of `twin` are drawn anew.

    Whole blocks of a recording of eight would be drawn twice in a row in every eighth race, without any noise.

    Attributes:
        seconds: of the device.
    """

    def __init__(self, space: Space, seed: int, in_order: bool = False, twin: Config | None = None) -> None:
        self._space, self._random, self._in_order, self._twin = space, Random(seed), in_order, twin
        self._flat = {config: one.reshape(-1) for config, one in space.blocks.items()}
        self._count, self._drawn = min(map(len, self._flat.values())), 0
        self.seconds = 0.0

    def block(self, configs: Sequence[Config]) -> dict[Config, list[int]]:
        first = range(self._drawn, self._drawn + ROUNDS_PER_BLOCK)
        rounds = [number % self._count if self._in_order else self._random.randrange(self._count) for number in first]
        own = [self._random.randrange(self._count) for _ in first]
        self._drawn += ROUNDS_PER_BLOCK
        flat = self._flat
        times = {c: flat[c][own if c == self._twin else rounds].tolist() for c in configs if c in flat}
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


def twins(spaces: Sequence[Space]) -> dict[str, float]:
    """Share of A/A races that separate the best config from itself, alone and among all configs."""
    result = {}
    for alone in (True, False):
        separated = 0
        for seed in range(RACES):
            space = spaces[Random(seed).randrange(len(spaces))]
            best = min(space.blocks, key=lambda config: float(np.log(space.blocks[config]).mean()))
            twin = type(best)(*("twin" if isinstance(value, str) else value for value in best))
            blocks = {best: space.blocks[best]} if alone else dict(space.blocks)
            session = Session(space._replace(blocks={**blocks, twin: space.blocks[best]}), seed, twin=twin)
            configs = sorted([*blocks, twin])
            found = timed(session, configs, race(configs))
            now = paired.standing(found, [best, twin], 0.05 / len(LOOKS))
            unequal = len(found[best].rounds) != len(found[twin].rounds)
            separated += unequal or bool(alone and now and now.slower)
        result["alone" if alone else "among all configs"] = separated / RACES
    return result


def drift(recorded_space: RecordedSpace) -> list[dict[str, Any]]:
    """Losses of rules on draws of configs of a foreign space; the truth is the median of the last 16 samples."""
    timed_configs = sorted(recorded_space.timed)
    truth = {c: float(np.median(recorded_space.timed[c].nanoseconds[MANY:])) for c in timed_configs}
    fast = sorted(timed_configs, key=lambda config: truth[config])[:400]
    losses: dict[str, list[float]] = {}
    for number in range(RACES):
        configs = sorted(Random(number).sample(fast if number % 2 else timed_configs, CONFIGS))
        space = space_of(recorded_space, configs)
        best = min(truth[config] for config in configs)
        for name, choose in _DRIFT_RULES.items():
            losses.setdefault(name, []).append(math.log(truth[choose(space, configs, number)] / best))
    return [
        {
            "space": recorded_space.name,
            "rule": name,
            "loses_mean_percent": round(100 * float(np.mean(one)), 3),
            "loses_most_percent": round(100 * max(one), 2),
            "share_over_precision": round(float(np.mean(np.array(one) > PRECISION)), 3),
        }
        for name, one in losses.items()
    ]


def _few_in_a_row(space: Space, configs: Sequence[Config], number: int) -> Config:
    """The rule of six samples in a row, then sixteen for those within 10 %."""
    flat = {config: space.blocks[config].reshape(-1) for config in configs}
    few = {config: float(np.median(one[:FEW])) for config, one in flat.items()}
    close = [config for config in configs if few[config] <= 1.1 * min(few.values())]
    return min(close, key=lambda config: float(np.median(flat[config][:MANY])))


def _raced(in_order: bool, burn_in: int) -> Callable[[Space, Sequence[Config], int], Config]:
    def choose(space: Space, configs: Sequence[Config], number: int) -> Config:
        kept, paired.BURN_IN = paired.BURN_IN, burn_in
        try:
            samples = timed(Session(space, number, in_order), list(configs), race(configs))
            now = paired.standing(samples, [c for c in configs if len(samples[c].rounds) == winner(samples)[1]], 0.05)
            return now.leader if now else winner(samples)[0]
        finally:
            paired.BURN_IN = kept

    return choose


_DRIFT_RULES: dict[str, Callable[[Space, Sequence[Config], int], Config]] = {
    "6, then 16 samples in a row": _few_in_a_row,
    "race, first samples first, no burn-in": _raced(True, 0),
    "race, first samples first": _raced(True, 1),
    "race, samples of any time": _raced(False, 1),
}


def markdown(document: dict[str, Any]) -> str:
    lines = [
        "`python benchmarks/racing.py FOLDER`",
        "",
        "| H200 recording | GPU s | rounds of the last | loses, mean | over 0.5 % |",
    ]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for one in document["precision"]:
        lines.append(
            f"| {one['rule']} | {one['device_seconds']} | {one['most_rounds_mean']} | {one['loses_mean_percent']} % | "
            f"{100 * one['share_over_precision']:.1f} % |"
        )
    told = ", ".join(f"{name} {100 * share:.1f} %" for name, share in document["twins"].items())
    lines += ["", f"A/A races that separate a config from itself: {told}.", ""]
    lines += ["| recorded space | rule | loses, mean | most | over 0.5 % |", "| --- | --- | ---: | ---: | ---: |"]
    for one in document["drift"]:
        lines.append(
            f"| {one['space']} | {one['rule']} | {one['loses_mean_percent']} % | {one['loses_most_percent']} % | "
            f"{100 * one['share_over_precision']:.1f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/racing.py FOLDER (with T4 files of benchmark_hub)")
    spaces = some(recorded(), PROBLEMS)
    document = {
        "problems": len(spaces),
        "precision": precision(spaces),
        "twins": twins(spaces),
        "drift": [line for one in foreign(Path(sys.argv[1])) for line in drift(one)],
    }
    folder = RESULTS / "strategies"
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "racing.json", document, markdown(document))
    print(markdown(document))


if __name__ == "__main__":
    main()
