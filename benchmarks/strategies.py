"""All searches over recorded times, scored against calculated random search (`scores`), beside those of others.

In: recordings of an H200, and a folder with T4 files of benchmark_hub. Out: benchmarks/results/strategies/
strategies.json and .md. No GPU; what is there already is not run again.

    python benchmarks/strategies.py FOLDER [--repeats 100] [--seconds 30] [--again SEARCH]

A search is repeated with seeds of its own, or as often as the seconds of this machine allow, at least twice. Those of
Kernel Tuner (`lib.kernel_tuner`; left out where it is not installed) time one config after the other, each problem by
itself, where a problem has twice as many configs as their populations. They see the mean of all samples of a config,
and are charged 6 of them, with which the races of normtune begin, or all. Optuna's further samplers are run as normtune
runs its own.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normtune.benchmarks.lib import kernel_tuner
from normtune.benchmarks.lib.optuna_samplers import SAMPLERS
from normtune.benchmarks.lib.simulation import Moment, Space, simulate
from normtune.benchmarks.places import RESULTS, write
from normtune.benchmarks.recorded_spaces import RECORDING, foreign, recorded, some, space_of
from normtune.benchmarks.scores import Scale, Values, cost_of_all, held, scale, score
from normtune.kernels.config import Config
from normtune.tuner.search.protocol import Search, Strategy
from normtune.tuner.search.registry import SEARCHES, search

PLACE = RESULTS / "strategies" / "strategies.json"
PROBLEMS = 40
# Operators with 40 to 230 recorded configs a problem, where RMSNorm has 17; and problems of each.
FEW_PROBLEMS = 12
OPERATORS = {
    "rms_norm_gated_backward": f"{RECORDING}-rms-norm-gated",
    "rms_norm_quantize_fp8_static": f"{RECORDING}-rms-norm-quantize-fp8",
    "rms_norm_quantize_fp8_transpose": f"{RECORDING}-rms-norm-quantize-fp8",
}
# Configs after which a sampler takes seconds for a proposal.
MOST = dict.fromkeys({*SAMPLERS} - {"random"}, 1000) | {"gp": 100}
# Random search as the baseline counts it: configs one after the other, all samples of each.
PLAIN = "random, all samples"
FEW = 6


class Scenario(NamedTuple):
    """Spaces that a search runs over together, and the values of their configs."""

    name: str
    spaces: Sequence[Space]
    values: Values


class Played(NamedTuple):
    """What a search did: `Moment`s, configs that it timed and seconds of the device."""

    moments: Sequence[Moment]
    configs: int
    device: float


def scenarios(folder: Path) -> list[Scenario]:
    """Problems of recordings (log times), and each file (its own objective, ns)."""
    result = [_recorded("H200 recording", some(recorded(), PROBLEMS))]
    for name, recording in OPERATORS.items():
        spaces = [one for one in recorded(recording=recording) if one.task.problem.operator == name]
        result.append(_recorded(f"H200 recording of {name}", some(spaces, FEW_PROBLEMS)))
    for one in foreign(folder):
        space = space_of(one)
        objective = {config: timed.objective for config, timed in one.timed.items()}
        result.append(Scenario(one.name, [space], {space.task.problem: objective}))
    return result


def _recorded(name: str, spaces: list[Space]) -> Scenario:
    logs = {space.task.problem: {c: float(np.log(one).mean()) for c, one in space.blocks.items()} for space in spaces}
    least = {problem: min(own.values()) for problem, own in logs.items()}
    losses = {problem: {c: log - least[problem] for c, log in own.items()} for problem, own in logs.items()}
    return Scenario(f"{name}, {len(spaces)} problems", spaces, losses)


def strategy(name: str, seed: int) -> Strategy:
    """A search with a seed, if it has one; one that leaves configs out goes on until the time ends, or to `MOST`."""
    chosen: Callable[..., Search] = SAMPLERS[name] if name in SAMPLERS else search(name)
    options = signature(chosen).parameters
    if "until" in options:
        return partial(chosen, seed=seed, until=0.0)
    return partial(chosen, seed=seed, most=MOST.get(name, sys.maxsize)) if "most" in options else chosen


def simulated(name: str, scenario: Scenario, seed: int, seconds: float) -> Played:
    """A search of normtune's protocol."""
    found = simulate(strategy(name, seed), scenario.spaces, seed, seconds)
    return Played(found.moments, found.timed, found.device)


class OneByOne:
    """One problem, whose configs are timed one after the other.

    Attributes:
        steps: of each config the seconds it took, those of the device, and the mean of all its samples, ms.
        seconds: of all.
        most: more than its turns can take.
    """

    def __init__(self, space: Space, samples: int | None, most: float) -> None:
        self._space, self._samples = space, samples
        self.steps: dict[Config, tuple[float, float, float]] = {}
        self.seconds, self.most = 0.0, most

    @property
    def is_spent(self) -> bool:
        """Whether no further config is timed."""
        return self.seconds > self.most

    def time(self, config: Config) -> float:
        """The mean of all samples, ms, at the cost of so many or of all; infinite if the config fails."""
        space, device, mean = self._space, 0.0, np.inf
        if config in space.blocks:
            mean = float(space.blocks[config].mean())
            samples = space.blocks[config].size if self._samples is None else self._samples
            device = samples * (mean * 1e-9 * space.launches + space.fixed)
        self.steps[config] = space.overhead[config] + device, device, mean * 1e-6
        self.seconds += space.overhead[config] + device
        return mean * 1e-6


def in_turns(problems: Sequence[OneByOne], spaces: Sequence[Space], seconds: float) -> Played:
    """What comes of it if the problems take turns, a config each, until the time ends."""
    now, device, configs, moments = 0.0, 0.0, 0, []
    best = [np.inf] * len(problems)
    steps = [[*one.steps.items()] for one in problems]
    for turn in range(max(map(len, steps))):
        for number, own in enumerate(steps):
            if turn >= len(own) or now > seconds:
                continue
            config, (taken, on_device, mean) = own[turn]
            now, device, configs = now + taken, device + on_device, configs + 1
            if mean < best[number] and now <= seconds:
                best[number] = mean
                moments.append(Moment(now, spaces[number].task.problem, config))
    return Played(moments, configs, device)


def one_by_one(scenario: Scenario, samples: int | None, seconds: float) -> list[OneByOne]:
    """The problems of a scenario; of those that take turns a dear one may take three times its mean cost of a turn."""
    costs = [
        float(np.mean([*space.overhead.values()])) + cost_of_all(space) / len(space.overhead)
        for space in scenario.spaces
    ]
    return [
        OneByOne(space, samples, min(1.0, 3 * cost / sum(costs)) * seconds)
        for space, cost in zip(scenario.spaces, costs, strict=True)
    ]


def plain_random(scenario: Scenario, seed: int, seconds: float) -> Played:
    """Random search with all samples of each config."""
    draw, problems = np.random.default_rng(seed), one_by_one(scenario, None, seconds)
    for problem, space in zip(problems, scenario.spaces, strict=True):
        for index in draw.permutation(len(space.task.candidates)):
            if not problem.is_spent:
                problem.time(space.task.candidates[index].config)
    return in_turns(problems, scenario.spaces, seconds)


def tuned(name: str, samples: int | None, scenario: Scenario, seed: int, seconds: float) -> Played:
    """A strategy of Kernel Tuner."""
    problems = one_by_one(scenario, samples, seconds)
    for number, (problem, space) in enumerate(zip(problems, scenario.spaces, strict=True)):

        def timed(config: Config, problem: OneByOne = problem) -> float:
            if problem.is_spent:
                raise kernel_tuner.SpentError
            return problem.time(config)

        kernel_tuner.tune(name, space.task.configs, timed, 1000 * seed + number)
    return in_turns(problems, scenario.spaces, seconds)


def players(scenario: Scenario) -> dict[str, Callable[[Scenario, int, float], Played]]:
    """All searches that can run there, by the names in the tables; those that take longest come last."""
    found: dict[str, Callable[[Scenario, int, float], Played]] = {PLAIN: plain_random}
    for name, samples in [*((name, FEW) for name in kernel_tuner.STRATEGIES), (kernel_tuner.GENETIC, None)]:
        if find_spec("kernel_tuner") and all(len(one.task.candidates) >= kernel_tuner.LEAST for one in scenario.spaces):
            found[f"kernel_tuner {name}, {samples or 'all'} samples"] = partial(tuned, name, samples)
    for name in sorted((*SEARCHES, *SAMPLERS), key=lambda name: (name == "gp", name)):
        found[name] = partial(simulated, name)
    return found


def run(scenario: Scenario, of: Scale, name: str, repeats: int, seconds: float) -> dict[str, Any]:
    """The scores of a search on a scenario."""
    begun, end, play = time.process_time(), float(of.times[-1]), players(scenario)[name]
    scores: list[float] = []
    ends: list[float] = []
    played: list[Played] = []
    while len(scores) < repeats and (len(scores) < 2 or time.process_time() - begun < seconds):
        played.append(play(scenario, len(scores), end))
        scores.append(score(played[-1].moments, scenario.values, of))
        ends.append(float(held(played[-1].moments, scenario.values, of.times[-1:])[0]))
    low, high = np.quantile(scores, [0.05, 0.95])
    return {
        "scenario": scenario.name,
        "search": name,
        "repeats": len(scores),
        "score": round(float(np.mean(scores)), 3),
        "standard_error": round(float(np.std(scores, ddof=1) / np.sqrt(len(scores))), 3),
        "from": round(float(low), 3),
        "to": round(float(high), 3),
        "way_at_end": round(float((of.median - np.mean(ends)) / (of.median - of.optimum)), 3),
        "configs": round(float(np.mean([one.configs for one in played]))),
        "device_seconds": round(float(np.mean([one.device for one in played])), 1),
        "cpu_seconds": round((time.process_time() - begun) / len(scores), 2),
    }


def markdown(document: dict[str, Any]) -> str:
    lines = ["`python benchmarks/strategies.py FOLDER`: 0 is calculated random search, 1 the optimum.", ""]
    for scenario in document["scenarios"]:
        lines += [
            f"**{scenario['name']}**: {scenario['configs']} configs, {scenario['seconds']:.4g} s. Random search tries "
            f"{scenario['evaluations']:.3g} of a problem and comes 95 % of the way from the median to the optimum.",
            "",
            "| search | score | 5 to 95 % of repeats | repeats | way at the end | configs | CPU s |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        own = [one for one in document["runs"] if one["scenario"] == scenario["name"]]
        for one in sorted(own, key=lambda one: -one["score"]):
            cells = (
                one["search"],
                f"{one['score']:.2f} ± {one['standard_error']:.2f}",
                f"{one['from']:.2f} to {one['to']:.2f}",
                one["repeats"],
                f"{100 * one['way_at_end']:.0f} %",
                one["configs"],
                one["cpu_seconds"],
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of T4 files of benchmark_hub")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--again", action="append", default=[], metavar="SEARCH", help="forget the runs of this search")
    options = parser.parse_args()
    PLACE.parent.mkdir(parents=True, exist_ok=True)
    document = json.loads(PLACE.read_text()) if PLACE.exists() else {"scenarios": [], "runs": []}
    document["runs"] = [one for one in document["runs"] if one["search"] not in options.again]
    every = scenarios(options.folder)
    scales = {scenario.name: scale(scenario.spaces, scenario.values) for scenario in every}
    document["scenarios"] = [
        {
            "name": scenario.name,
            "configs": sum(map(len, scenario.values.values())),
            "seconds": round(float(scales[scenario.name].times[-1]), 3),
            "evaluations": round(scales[scenario.name].evaluations, 2),
        }
        for scenario in every
    ]
    for name in max(map(players, every), key=len):
        for scenario in every:
            done = {(one["scenario"], one["search"]) for one in document["runs"]}
            if name in players(scenario) and (scenario.name, name) not in done:
                document["runs"].append(run(scenario, scales[scenario.name], name, options.repeats, options.seconds))
                print(json.dumps(document["runs"][-1]), flush=True)
                write(PLACE, document, markdown(document))
    print(markdown(document))


if __name__ == "__main__":
    main()
