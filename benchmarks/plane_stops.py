"""The search `plane` when it is stopped, with other noise, after a quick sweep, and where configs fail.

In: made-up operators (`lib.landscapes`) and the H200 recordings. Out: plane_stops.json and .md in
benchmarks/results/strategies. No GPU. A search is stopped after a share of the GPU time that it takes without a
stop; one that goes on begins again with all that is stored. Loss is that of the best config of each shape; of the
config of the nearest one where it was not begun.

    python benchmarks/plane_stops.py [SEEDS]
"""

import math
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from normtune.benchmarks.lib.landscapes import Landscape
from normtune.benchmarks.lib.simulation import Space, simulate, stored
from normtune.benchmarks.places import RESULTS, write
from normtune.benchmarks.recorded_spaces import recorded
from normtune.kernels.config import Config
from normtune.kernels.config_space import spread
from normtune.kernels.problem import Problem
from normtune.results.exchange.recording import recordings
from normtune.results.records import Coverage
from normtune.tuner.search.adaptive import Adaptive
from normtune.tuner.search.plane.group import NEIGHBOURS, point
from normtune.tuner.search.plane.plane import Plane

SEEDS, OPERATORS = 6, ("rms_norm_backward", "rms_norm_gated_backward", "rms_norm_quantize_fp8_static")
# Configs and shapes of a made-up operator.
MADE_UP = 600, 25
# Problems of a recorded operator at most, evenly spread.
PROBLEMS = 60
# Share of the time without a stop at which it is stopped.
SHARE = 0.6
# Shares of it at which it is stopped and goes on.
STOPS = (0.1, 0.3, 0.6, 0.9)

Known = dict[Problem, dict[Config, Coverage]]


def searched(
    spaces: Sequence[Space], seed: int, noise: int, seconds: float = math.inf, known: Known | None = None
) -> tuple[Known, float]:
    """What is known after a search of so many seconds with this draw of the noise, and its GPU seconds."""
    found = simulate(lambda tasks, _: Plane(tasks, known or {}, seed=seed), spaces, noise, seconds)
    return stored(found, known or {}), found.device


def going_on(spaces: Sequence[Space], seed: int, seconds: float) -> Known:
    """What is known after a stop and a second search, which meets the device in another state."""
    return searched(spaces, seed, 100 + seed, known=searched(spaces, seed, seed, seconds)[0])[0]


def quick(spaces: Sequence[Space], seed: int) -> Known:
    """What a quick sweep has: 12 configs at every third shape."""
    some = [
        one._replace(task=one.task._replace(candidates=tuple(spread([*one.task.candidates], 12)))) for one in spaces
    ]
    return stored(simulate(Adaptive, some[::3], seed, math.inf), {})


def scores(spaces: Sequence[Space], known: Known) -> dict[str, float]:
    """Loss of what is known, tries, and the share of them that failed."""
    tries = [one.median_ns is None for configs in known.values() for one in configs.values()]
    chosen = {problem: best for problem, configs in known.items() if (best := _best(configs))}
    return {"loss": _loss(spaces, chosen), "configs": len(tries), "failed": sum(tries) / max(1, len(tries))}


def drawn(spaces: Sequence[Space], known: Known, seed: int) -> dict[str, float]:
    """Scores of as many random draws at each shape, with the best of the nearest shapes, which count as well."""
    random, chosen = np.random.default_rng(seed), {}
    tried = []
    for one in spaces:
        count = max(1, len(known.get(one.task.problem, {})) - NEIGHBOURS)
        picks = [one.task.configs[index] for index in random.permutation(len(one.task.configs))[:count]]
        tried += [config not in one.blocks for config in picks]
        logs = {config: _log(one, config) for config in picks if config in one.blocks}
        if logs:
            chosen[one.task.problem] = min(logs, key=lambda config: logs[config])
    for one in spaces:
        near = sorted(chosen, key=lambda other: math.dist(point(one.task.problem), point(other)))[: NEIGHBOURS + 1]
        fine = [chosen[other] for other in near if chosen[other] in one.blocks]
        if fine:
            chosen[one.task.problem] = min(fine, key=partial(_log, one))
    return {
        "loss": _loss(spaces, chosen),
        "configs": len(tried) + NEIGHBOURS * len(spaces),
        "failed": float(np.mean(tried)),
    }


def measured(name: str, of_seeds: Sequence[tuple[int, Sequence[Space]]]) -> dict[str, Any]:
    """All scores of one operator, means over seeds."""
    found: dict[str, list[dict[str, float]]] = {}
    for seed, spaces in of_seeds:
        known, device = searched(spaces, seed, seed)
        after_quick = quick(spaces, seed)
        cases = {
            "no stop": scores(spaces, known),
            "another draw of the noise": scores(spaces, searched(spaces, seed, 100 + seed)[0]),
            "as many random draws": drawn(spaces, known, seed),
            f"{SHARE} of the time": scores(spaces, searched(spaces, seed, seed, SHARE * device)[0]),
            **{
                f"stopped at {share}, then on": scores(spaces, going_on(spaces, seed, share * device))
                for share in STOPS
            },
            "after a quick sweep": scores(spaces, searched(spaces, seed, seed, known=after_quick)[0]),
        }
        for case, part in cases.items():
            found.setdefault(case, []).append(part)
    means = {
        case: {key: round(float(np.mean([s[key] for s in part])), 4) for key in part[0]} for case, part in found.items()
    }
    print(name, means, flush=True)
    return {"operator": name, "seeds": len(of_seeds), "shapes": len(of_seeds[0][1]), "scores": means}


def _best(configs: Mapping[Config, Coverage]) -> Config | None:
    medians = {config: one.median_ns for config, one in configs.items() if one.median_ns is not None}
    return min(medians, key=lambda config: (medians[config], config), default=None)


def _log(space: Space, config: Config) -> float:
    return float(np.log(np.median(space.blocks[config])))


def _loss(spaces: Sequence[Space], chosen: Mapping[Problem, Config]) -> float:
    losses = []
    for one in spaces:
        logs = {config: _log(one, config) for config in one.blocks}
        near = sorted(chosen, key=lambda other: math.dist(point(one.task.problem), point(other)))
        config = next((chosen[other] for other in near if chosen[other] in logs), None)
        losses.append((max(logs.values()) if config is None else logs[config]) - min(logs.values()))
    return float(np.mean(losses))


def markdown(document: dict[str, Any]) -> str:
    lines = ["`python benchmarks/plane_stops.py`", "", "| operator | case | loses | configs tried | of these failed |"]
    lines.append("| --- | --- | ---: | ---: | ---: |")
    for one in document["operators"]:
        for case, part in one["scores"].items():
            figures = f"{100 * part['loss']:.2f} % | {part['configs']:.0f} | {100 * part['failed']:.0f} %"
            lines.append(f"| {one['operator']} | {case} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    seeds = range(1, 1 + (int(sys.argv[1]) if sys.argv[1:] else SEEDS))
    operators = [
        measured(name, [(seed, Landscape(kind, *MADE_UP, seed).spaces()) for seed in seeds])
        for name, kind in (("made up", "rough"), ("made up, 70 % of the configs fail", "failing"))
    ]
    spaces = [one for recording in recordings() for one in recorded("bfloat16", recording)]
    for name in OPERATORS:
        part = [
            one._replace(overhead=dict.fromkeys(one.overhead, 0.0))
            for one in spaces
            if one.task.problem.operator == name
        ]
        part = part[:: -(-len(part) // PROBLEMS)]
        operators.append(measured(name, [(seed, part) for seed in seeds]))
    document = {"operators": operators}
    if not sys.argv[1:]:
        write(RESULTS / "strategies" / "plane_stops.json", document, markdown(document))
    print(markdown(document))


if __name__ == "__main__":
    main()
