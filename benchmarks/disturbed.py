"""What disturbances of a GPU cost the table, with disturbed rounds voided and without.

In: the default grid of the shipped H200 recording, plain operators in bfloat16. Out:
benchmarks/results/strategies/disturbed.json and .md. No GPU. Each search runs over the recorded times on a simulated
GPU that others disturb; a table is fitted to what it saw, and scored on the recording. It fails if with void rounds a
table loses over 0.3 % more than undisturbed.

    python benchmarks/disturbed.py [--searches NAME,...] [--seed N]
"""

import argparse
import math
from typing import Any

import numpy as np

from normtune.benchmarks.lib.disturbances import Disturbances, Disturbed
from normtune.benchmarks.lib.simulation import Simulated, Space, simulate
from normtune.benchmarks.places import RESULTS, write
from normtune.benchmarks.recorded_spaces import recorded
from normtune.benchmarks.refine import LEAVES, fitted, loss
from normtune.tuner.plan.grids import GRIDS
from normtune.tuner.search.registry import search
from normtune.tuner.timing.disturbance import of_rounds

SEARCHES = ("adaptive", "exhaustive", "plane")
# Where the same is also done without voiding any round, for comparison.
WITHOUT_VOID_ROUNDS = ("spikes, 10 % of batches", "all of them")
OPERATORS = ("rms_norm_forward", "rms_norm_backward")
# Most additional loss of the table, percent.
ALLOWED = 0.3
CASES = {
    "undisturbed": Disturbances(),
    "stretches, 20 % of the time": Disturbances(stretches=0.2),
    "long stretches, 20 % of the time": Disturbances(stretches=0.2, stretch_seconds=2.0),
    "spikes, 10 % of batches": Disturbances(spikes=0.1),
    "neighbour, 12 of every 40 ms": Disturbances(period=0.04, busy=0.3),
    "all of them": Disturbances(stretches=0.2, spikes=0.02, period=0.04, busy=0.3),
}


def measured(name: str, disturbances: Disturbances, voids: bool, spaces: list[Space], seed: int) -> dict[str, Any]:
    """The loss of the table after a search on a disturbed GPU, percent, and the rounds that were taken."""
    device = Disturbed(disturbances, seed, voids)
    found = simulate(search(name), spaces, seed, math.inf, device=device)
    return {
        "search": name,
        "voids": voids,
        "device_seconds": round(found.device, 1),
        "rounds": device.counts._asdict(),
        "told": sorted(of_rounds(device.counts)),
        "best_loses_percent": round(held(found, spaces), 3),
        "loses_percent": loss(fitted(found), spaces),
    }


def on_the_grid(spaces: list[Space]) -> list[Space]:
    """The problems of a default sweep."""
    shapes = set(GRIDS["default"])
    return [space for space in spaces if space.task.problem.shape in shapes]


def held(found: Simulated, spaces: list[Space]) -> float:
    """Mean loss of the config that is held to be the best of each problem, percent."""
    best, lost = {moment.problem: moment.best for moment in found.moments}, []
    for space in spaces:
        logs = {config: float(np.log(times).mean()) for config, times in space.blocks.items()}
        lost.append(logs[best[space.task.problem]] - min(logs.values()))
    return 100 * float(np.mean(lost))


def markdown(document: dict[str, Any]) -> str:
    lines = ["`python benchmarks/disturbed.py`", ""]
    lines += [
        "| search | disturbances | voided | GPU s | void | kept | each shape's best | forward | backward | table |"
    ]
    lines += ["| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for one in document["tables"]:
        loses, counts = one["loses_percent"], one["rounds"]
        void, kept = (f"{100 * counts[key] / counts['taken']:.1f} %" for key in ("void", "kept"))
        cells = [one["search"], one["disturbances"], "yes" if one["voids"] else "no", one["device_seconds"], void, kept]
        cells += [f"{value} %" for value in (one["best_loses_percent"], *map(loses.get, OPERATORS))]
        lines.append(f"| {' | '.join(map(str, cells))} | {one['more_percent']:+.2f} % |")
    lines += [
        "",
        "Columns forward and backward have the loss of the table, the last one how much more it is, at the worse",
    ]
    lines += ["of the two, than without disturbances. Kept rounds are disturbed and counted all the same."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", default=",".join(SEARCHES), help="names, with commas")
    parser.add_argument("--seed", type=int, default=0, help="of search and disturbances; others than 0 are not written")
    options = parser.parse_args()
    asked = options.searches.split(",")
    # Compiled ahead beside the timing, as a sweep does: seconds are those of the device.
    spaces = [space._replace(overhead=dict.fromkeys(space.overhead, 0.0)) for space in on_the_grid(recorded())]
    tables: list[dict[str, Any]] = []
    for name in asked:
        calm: dict[str, float] = {}
        for title, disturbances in CASES.items():
            for voids in (True, False) if title in WITHOUT_VOID_ROUNDS else (True,):
                one = measured(name, disturbances, voids, spaces, options.seed)
                calm = calm or one["loses_percent"]
                one["more_percent"] = round(max(one["loses_percent"][key] - calm[key] for key in OPERATORS), 3)
                tables.append({"disturbances": title, **one})
                print(tables[-1], flush=True)
    if asked == [*SEARCHES] and not options.seed:
        document = {"leaves": LEAVES, "problems": len(spaces), "allowed_percent": ALLOWED, "tables": tables}
        write(RESULTS / "strategies" / "disturbed.json", document, markdown(document))
    worst = max(one["more_percent"] for one in tables if one["voids"])
    if worst > ALLOWED:
        raise SystemExit(f"a disturbed sweep's table loses {worst} % more, over {ALLOWED} %")
    print(f"with disturbed rounds voided a table loses at most {worst:+.2f} % more than that of an undisturbed sweep")


if __name__ == "__main__":
    main()
