"""Loss of the default space against the full one, and the worth of each value of each knob.

    normtune sweep --grid probe --space full --store probe.db
    normtune data export --store probe.db --out probe.parquet
    python benchmarks/space.py probe.parquet

The configs are chosen on half of the blocks and scored on the other half, then swapped. "Without" is the loss of the
full space without that value, at the shape where it is largest.
"""

import argparse
from collections import defaultdict
from math import exp, log
from pathlib import Path
from statistics import mean, median

KNOBS = ("schedule", "block_row", "num_warps", "num_stages", "programs_per_sm")
SHOWN = 0.005


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurements", type=Path)
    options = parser.parse_args()
    from normtune.kernels.operator import operator
    from normtune.kernels.target import target_for
    from normtune.results.exchange.parquet_csv import read_parquet
    from normtune.tuner.plan.plan import candidates

    evidence = read_parquet(options.measurements)
    (device,) = evidence.devices()
    target = target_for(device.target, device.sms)
    for key, times in by_half(evidence).items():
        spec = operator(key)
        losses = []
        for problem, cells in times.items():
            kept, _ = candidates(spec, spec.configs("default", problem, target), problem, target)
            launches = {candidate.launch for candidate in kept}
            default = {c for c in cells if spec.resolve(c, problem, target, None) in launches}
            losses.append((loss(cells, default), problem))
        worst, where = max(losses)
        print(
            f"{key}: {len(losses)} problems, default space against full: mean {percent(mean(x for x, _ in losses))}, "
        )
        print(f"  worst {percent(worst)} at {where.rows} x {where.hidden}")
        for knob in KNOBS:
            for value in sorted({getattr(config, knob) for cells in times.values() for config in cells}):
                without = [
                    (loss(cells, {c for c in cells if getattr(c, knob) != value}), problem)
                    for problem, cells in times.items()
                ]
                worst, where = max(without)
                if worst > SHOWN:
                    shown = "nothing is left" if worst == float("inf") else percent(worst)
                    print(f"  without {knob}={value}: {shown} at {where.rows} x {where.hidden}")


def by_half(evidence):
    """Operator to problem to config to the median time in each half of the blocks."""
    from normtune.kernels.config import COPY
    from normtune.results.statistics import halves

    found = defaultdict(lambda: defaultdict(dict))
    for item in evidence.measurements():
        if item.status == "ok" and item.config != COPY:
            even = halves(item.rounds)
            pair = (median(item.samples[even].tolist()), median(item.samples[~even].tolist()))
            found[item.problem.operator][item.problem][item.config] = pair
    return found


def loss(cells, allowed) -> float:
    """Mean log-slowdown of the best allowed config against the best of all; infinite if none is allowed."""
    if not allowed:
        return float("inf")
    total = 0.0
    for choose, score in ((0, 1), (1, 0)):
        best = min(cells, key=lambda c: (cells[c][choose], c))
        chosen = min(allowed, key=lambda c: (cells[c][choose], c))
        total += log(cells[chosen][score] / cells[best][score])
    return total / 2


def percent(value: float) -> str:
    return f"{100 * (exp(value) - 1):.2f} %"


if __name__ == "__main__":
    main()
