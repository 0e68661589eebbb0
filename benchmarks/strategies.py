"""All searches over recorded times, scored against calculated random search (`scores`).

In: the shipped H200 recording, and a folder with T4 files of benchmark_hub. Out: benchmarks/results/strategies/
strategies.json and .md. No GPU; what is there already is not run again.

    python benchmarks/strategies.py FOLDER [REPEATS [SECONDS]]

A search is repeated REPEATS times (100) with seeds of its own, or as often as SECONDS (600) of this machine allow.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normtune.benchmarks.lib.simulation import Moment, Space, simulate
from normtune.benchmarks.places import RESULTS, write
from normtune.benchmarks.recorded_spaces import foreign, recorded, some, space_of
from normtune.benchmarks.scores import Scale, Values, held, scale, score
from normtune.tuner.search.protocol import Search, Strategy
from normtune.tuner.search.registry import SEARCHES, search

PLACE = RESULTS / "strategies" / "strategies.json"
PROBLEMS = 40
# Configs after which a sampler takes seconds for a proposal.
MOST = {"tpe": 1000, "gp": 100}
# Random search as the baseline counts it: configs one after the other, all samples of each.
PLAIN = "random, all samples"


class Scenario(NamedTuple):
    """Spaces that a search runs over together, and the values of their configs."""

    name: str
    spaces: Sequence[Space]
    values: Values


def scenarios(folder: Path) -> list[Scenario]:
    """Problems of the recording (log times), and each file (its own objective, ns)."""
    spaces = some(recorded(), PROBLEMS)
    logs = {space.task.problem: {c: float(np.log(one).mean()) for c, one in space.blocks.items()} for space in spaces}
    least = {problem: min(own.values()) for problem, own in logs.items()}
    losses = {problem: {c: log - least[problem] for c, log in own.items()} for problem, own in logs.items()}
    result = [Scenario(f"H200 recording, {len(spaces)} problems", spaces, losses)]
    for one in foreign(folder):
        space = space_of(one)
        objective = {config: timed.objective for config, timed in one.timed.items()}
        result.append(Scenario(one.name, [space], {space.task.problem: objective}))
    return result


def strategy(name: str, seed: int) -> Strategy:
    """A search with a seed, if it has one; a sampler goes on until the time ends, or to `MOST` configs."""
    chosen: Callable[..., Search] = search(name)
    most = MOST.get(name, sys.maxsize)
    return partial(chosen, seed=seed, most=most) if getattr(chosen, "makes_studies", False) else chosen


def plain_random(scenario: Scenario, seed: int, seconds: float) -> list[Moment]:
    """Random search with all samples of each config, problems in turn."""
    draw = np.random.default_rng(seed)
    orders = [draw.permutation(len(space.task.candidates)) for space in scenario.spaces]
    now, moments = 0.0, []
    best = {space.task.problem: np.inf for space in scenario.spaces}
    for turn in range(max(map(len, orders))):
        for space, order in zip(scenario.spaces, orders, strict=True):
            if turn >= len(order) or now > seconds:
                continue
            config, problem = space.task.candidates[order[turn]].config, space.task.problem
            now += space.overhead[config]
            if config in space.blocks:
                samples = space.blocks[config]
                now += float(samples.sum()) * 1e-9 * space.launches + samples.size * space.fixed
                value = scenario.values[problem][config]
                if value < best[problem] and now <= seconds:
                    best[problem] = value
                    moments.append(Moment(now, problem, config))
    return moments


def run(scenario: Scenario, of: Scale, name: str, repeats: int, seconds: float) -> dict[str, Any]:
    """The scores of a search on a scenario."""
    begun, end = time.process_time(), float(of.times[-1])
    scores: list[float] = []
    ends: list[float] = []
    configs: list[int] = []
    device: list[float] = []
    while len(scores) < repeats and (len(scores) < 2 or time.process_time() - begun < seconds):
        seed = len(scores)
        if name == PLAIN:
            moments = plain_random(scenario, seed, end)
        else:
            result = simulate(strategy(name, seed), scenario.spaces, seed, end)
            moments = result.moments
            configs.append(result.timed)
            device.append(result.device)
        scores.append(score(moments, scenario.values, of))
        ends.append(float(held(moments, scenario.values, of.times[-1:])[0]))
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
        "configs": round(float(np.mean(configs))) if configs else None,
        "device_seconds": round(float(np.mean(device)), 1) if device else None,
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
                "" if one["configs"] is None else one["configs"],
                one["cpu_seconds"],
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def main() -> None:
    if not 2 <= len(sys.argv) <= 4:
        sys.exit("usage: python benchmarks/strategies.py FOLDER [REPEATS [SECONDS]] (T4 files of benchmark_hub)")
    folder = Path(sys.argv[1])
    repeats, seconds = (int(text) for text in (sys.argv[2:] + ["100", "600"][len(sys.argv) - 2 :]))
    PLACE.parent.mkdir(parents=True, exist_ok=True)
    document = json.loads(PLACE.read_text()) if PLACE.exists() else {"scenarios": [], "runs": []}
    every = scenarios(folder)
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
    names = sorted(SEARCHES, key=lambda name: (name == "gp", name))
    for name in (PLAIN, *names):
        for scenario in every:
            done = {(one["scenario"], one["search"]) for one in document["runs"]}
            if (scenario.name, name) not in done:
                document["runs"].append(run(scenario, scales[scenario.name], name, repeats, seconds))
                print(json.dumps(document["runs"][-1]), flush=True)
                write(PLACE, document, markdown(document))
    print(markdown(document))


if __name__ == "__main__":
    main()
