"""The shipped tables against a plain copy of as many bytes, and against each shape's best config.

    python benchmarks/against_copy.py [RECORDING]

Reads the recording (times of one run, cold, in the same rounds; docs/measuring.md, "Timing"); needs no GPU. A
cell is the geometric mean over the shapes of a range: time of the table's config over that of the copy, and in
brackets the same for the best config of each shape.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

SIZES = ((0, "up to 1 MB"), (1 << 20, "1 to 16 MB"), (1 << 24, "16 to 256 MB"), (1 << 28, "256 MB and more"))
WIDTHS = ((64, "to 1024"), (1025, "to 8192"), (8193, "to 32768"))

# By operator key, dtype, size and width: logarithms of the table's config and of the best one over the copy.
Ratios = dict[tuple[str, str, str, str], list[tuple[float, float]]]


def main() -> None:
    from normtune.results.exchange.recording import load_recording

    name = sys.argv[1] if len(sys.argv) > 1 else "nvidia-h200"
    evidence = load_recording(name)
    (device,) = evidence.devices()
    print(f"{device.name}, recording {name}: time of the table's config over a copy of as many bytes (best config)\n")
    print("\n".join(table(ratios(evidence, shipped_for(device.name)))))


def shipped_for(device: str) -> Path:
    """The file of the shipped table of a GPU.

    Raises:
        SystemExit: no table ships for it.
    """
    from normtune.kernels.tablefile import locate

    path = locate.SHIPPED / f"{locate.slug(device)}.py"
    if not path.exists():
        raise SystemExit(f"no table ships for {device}: fit one to {path}")
    return path


def ratios(evidence: Any, path: Path) -> Ratios:
    """Times of a table's configs, relative to the copy.

    Args:
        evidence: a `results.evidence.Evidence` of one device.
        path: the file of the table.
    """
    from normtune.kernels.config import COPY
    from normtune.kernels.operator import operator
    from normtune.kernels.tablefile import locate
    from normtune.kernels.target import target_for

    (device,) = evidence.devices()
    target = target_for(device.target, device.sms)
    shipped = locate.load(path)
    result: Ratios = defaultdict(list)
    for problem, cells in times_of(evidence).items():
        look_up = shipped.function(problem.key)
        if look_up is None:
            continue
        spec = operator(problem.operator)
        copy = cells.pop(COPY)
        # A config that was legal for the kernels of the recording may be illegal today.
        launches = ((spec.launch_of(config, problem, target), time) for config, time in cells.items())
        by_launch = {launch: time for launch, time in launches if launch}
        launch = spec.launch_of(spec.config(*look_up(problem.rows, problem.hidden)), problem, target)
        size = max(label for label in SIZES if label[0] <= spec.bytes_moved(problem))[1]
        width = max(label for label in WIDTHS if label[0] <= problem.hidden)[1]
        if launch in by_launch:
            pair = log(by_launch[launch] / copy), log(min(by_launch.values()) / copy)
            result[problem.key.text, problem.dtype, size, width].append(pair)
    return result


def times_of(evidence: Any) -> dict[Any, dict[Any, float]]:
    """The median time of each config that has one, and of the copy, by problem; nanoseconds."""
    times: dict[Any, dict[Any, float]] = defaultdict(dict)
    for item in evidence.measurements():
        if item.status == "ok":
            times[item.problem][item.config] = median(item.samples.tolist())
    return times


def table(found: Ratios, keys: Iterable[tuple[str, str]] = ()) -> list[str]:
    """The lines of the table, for these operator keys and dtypes; for all without any."""
    lines = ["| operator | dtype | bytes moved | " + " | ".join(f"hidden {label}" for _, label in WIDTHS) + " |"]
    lines.append("|---|---|---|" + "---:|" * len(WIDTHS))
    for key, dtype in keys or sorted({name[:2] for name in found}):
        for _, size in SIZES:
            row = [cell(found.get((key, dtype, size, width), [])) for _, width in WIDTHS]
            lines.append(f"| {key} | {dtype} | {size} | " + " | ".join(row) + " |")
    return lines


def cell(pairs: list[tuple[float, float]]) -> str:
    """Geometric means of the two ratios."""
    if not pairs:
        return "-"
    return "{:.2f} ({:.2f})".format(*(exp(fmean(values)) for values in zip(*pairs, strict=True)))


if __name__ == "__main__":
    main()
