"""The tables that ship against a plain copy of as many bytes, and against each shape's best config.

    python benchmarks/against_copy.py [RECORDING]

Reads the recording (times of one run, cold, in the same rounds; docs/design.md, "Timing protocol"); needs no GPU. A
cell is the geometric mean over the shapes of a range: time of the table's config over that of the copy, and in
brackets the same for the best config of each shape.
"""

import sys
from collections import defaultdict
from math import exp, log
from statistics import fmean, median

SIZES = ((0, "up to 1 MB"), (1 << 20, "1 to 16 MB"), (1 << 24, "16 to 256 MB"), (1 << 28, "256 MB and more"))
WIDTHS = ((64, "to 1024"), (1025, "to 8192"), (8193, "to 32768"))


def main() -> None:
    """Read and print."""
    from normtune.heuristics import locate
    from normtune.kernels.config import Config
    from normtune.kernels.operator import operator
    from normtune.kernels.target import target_for
    from normtune.results.recording import load_recording
    from normtune.results.records import COPY

    name = sys.argv[1] if len(sys.argv) > 1 else "nvidia-h200"
    evidence = load_recording(name)
    (device,) = evidence.devices()
    target = target_for(device.target, device.sms)
    table = locate.select(device.name, target.name, target.sms).table
    times = defaultdict(dict)
    for item in evidence.measurements():
        if item.status == "ok":
            times[item.problem][item.config] = median(item.samples.tolist())
    ratios = defaultdict(list)
    for problem, cells in times.items():
        look_up = table.tables.get((problem.key, problem.dtype)) or table.tables[problem.operator, problem.dtype]
        spec = operator(problem.operator)
        launch = spec.resolve(Config(*look_up(problem.rows, problem.hidden)), problem, target, None)
        copy = cells.pop(COPY)
        by_launch = {spec.resolve(config, problem, target, None): time for config, time in cells.items()}
        size = max(label for label in SIZES if label[0] <= spec.bytes_moved(problem))
        width = max(label for label in WIDTHS if label[0] <= problem.hidden)
        if launch in by_launch:
            ratios[problem.key, problem.dtype, size, width].append(
                (log(by_launch[launch] / copy), log(min(by_launch.values()) / copy))
            )
    print(f"{device.name}, recording {name}: time of the table's config over a copy of as many bytes (best config)\n")
    print("| operator | dtype | bytes moved | " + " | ".join(f"hidden {label}" for _, label in WIDTHS) + " |")
    print("|---|---|---|" + "---:|" * len(WIDTHS))
    for key, dtype in sorted({found[:2] for found in ratios}):
        for size in SIZES:
            row = [cell(ratios.get((key, dtype, size, width), [])) for width in WIDTHS]
            print(f"| {key} | {dtype} | {size[1]} | " + " | ".join(row) + " |")


def cell(pairs) -> str:
    """Geometric means of the two ratios."""
    if not pairs:
        return "-"
    return "{:.2f} ({:.2f})".format(*(exp(fmean(values)) for values in zip(*pairs, strict=True)))


if __name__ == "__main__":
    main()
