"""What each value of a knob gains: the loss over all recorded shapes if the space lacked it, within a schedule.

    python benchmarks/knob_values.py [--operator rms_norm_forward] [--threshold 0.2] [--json FILE]

In: the shipped recordings, and the full space of an H100 (`recorded_spaces.FULL_SPACE`). Out: a table of values with
the shapes at which one is best by more than the threshold, the mean and the worst loss without it, in percent; then the
values that can leave together, the one of most configs first, without that any shape loses as much as the threshold. No
GPU, a minute an operator.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.benchmarks.recorded_spaces import FULL_SPACE, load
from normtune.heuristics.regret.fixed_log import MILLION
from normtune.heuristics.regret.matrix import TimingMatrix, timing_matrix
from normtune.kernels.config import Config
from normtune.kernels.operator import operator
from normtune.kernels.target import target_for
from normtune.results.exchange.recording import recordings

OPERATORS = ("rms_norm_forward", "rms_norm_backward")


class Value(NamedTuple):
    """A value of a knob, in the configs of a schedule."""

    schedule: str
    knob: str
    value: int | str


class Gain(NamedTuple):
    """What a value gains: its configs, the shapes at which it is best, and losses without it in percent."""

    configs: int
    best_at: int
    mean: float
    worst: float


def matrices(name: str) -> list[TimingMatrix]:
    """The times of an operator's configs on all GPUs, a matrix for each variant and dtype."""
    found = []
    sources: list[str | Path] = [*recordings(), FULL_SPACE]
    for source in sources:
        evidence = load(source)
        (device,) = evidence.devices()
        target = target_for(device.target, device.sms)
        current = evidence.current() if isinstance(source, str) else evidence
        for key in current.measured_keys():
            if key.operator == name and (matrix := timing_matrix(current, operator(name), key, target)):
                found.append(matrix)
    return found


def values_of(config: Config) -> Iterable[Value]:
    """The values that a config has, within its schedule."""
    knobs = config._asdict()
    schedule = str(knobs.pop("schedule"))
    return [Value(schedule, "schedule", schedule), *(Value(schedule, knob, value) for knob, value in knobs.items())]


def losses(matrix: TimingMatrix, without: set[Value]) -> NDArray[np.float64]:
    """Loss in percent at each shape whose configs are those without these values."""
    stays = np.array([without.isdisjoint(values_of(config)) for config in matrix.configs])
    logs = np.where(matrix.usable, matrix.regret / MILLION, np.inf)
    with np.errstate(invalid="ignore"):
        lost = np.where(stays, logs, np.inf).min(axis=1) - logs.min(axis=1)
    return 100 * np.expm1(lost)


def gain(parts: list[TimingMatrix], without: set[Value], threshold: float) -> Gain:
    """What these values gain together."""
    lost = np.concatenate([losses(part, without) for part in parts])
    count = len({config for part in parts for config in part.configs if not without.isdisjoint(values_of(config))})
    return Gain(count, int((lost >= threshold).sum()), float(lost.mean()), float(lost.max()))


def removable(parts: list[TimingMatrix], gains: Mapping[Value, Gain], threshold: float) -> set[Value]:
    """Values that can leave together, those of most configs first."""
    chosen: set[Value] = set()
    for value in sorted(gains, key=lambda one: -gains[one].configs):
        if gains[value].worst < threshold and gain(parts, chosen | {value}, threshold).worst < threshold:
            chosen.add(value)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", action="append", help="operators, those of RMSNorm by default")
    parser.add_argument("--threshold", type=float, default=0.2, help="percent")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    document: dict[str, object] = {}
    for name in options.operator or OPERATORS:
        parts = matrices(name)
        shapes = sum(len(part.problems) for part in parts)
        found: dict[Value, None] = defaultdict()
        for part in parts:
            found |= dict.fromkeys(value for config in part.configs for value in values_of(config))
        gains = {value: gain(parts, {value}, options.threshold) for value in sorted(found, key=str)}
        print(f"## {name}: {shapes} shapes and variants\n")
        print("| schedule | knob | value | configs | best at | mean % | worst % |\n|---|---|---:|---:|---:|---:|---:|")
        for value, of in gains.items():
            print(f"| {' | '.join(map(str, (*value, of.configs, of.best_at)))} | {of.mean:.3f} | {of.worst:.2f} |")
        chosen = removable(parts, gains, options.threshold)
        together = gain(parts, chosen, options.threshold)
        print(f"\nCan leave, {together.configs} configs, worst {together.worst:.2f} %: ", end="")
        print(", ".join(f"{value.schedule} {value.knob}={value.value}" for value in sorted(chosen, key=str)), "\n")
        document[name] = {
            "shapes": shapes,
            "values": [[*value, *of] for value, of in gains.items()],
            "removable": sorted(map(list, chosen), key=str),
        }
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
