"""Seconds and memory of a fit, with a given number of leaves and with cross-validation.

    python benchmarks/fit.py [--store NAME] [--leaves N] [--json FILE]

Each case is a process of its own that runs the command line, so that imports, reading and printing count and the peak
of memory is its own. As a check of the table it is fitted twice: both files must be equal byte for byte.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from normtune.kernels.tablefile.locate import header_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="nvidia-h200", help="store, or name of a recording that ships")
    parser.add_argument("--leaves", type=int, default=16, help="leaves of the first case")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    cases = []
    data = ["--store", options.store]
    print(f"{'':24} seconds   peak MB")
    for title, more in ((f"--leaves {options.leaves}", ["--leaves", str(options.leaves)]), ("cross-validated", [])):
        with tempfile.TemporaryDirectory() as folder:
            outs = [Path(folder, name, "table.py") for name in ("first", "second")]
            runs = [_timed([*data, *more], out) for out in outs]
            if outs[0].read_bytes() != outs[1].read_bytes():
                raise SystemExit(f"{title}: two fits of the same data differ")
            measurements = header_of(outs[0]).data.measurements
        seconds, peak = min(run[0] for run in runs), max(run[1] for run in runs)
        print(f"{title:24} {seconds:7.2f} {peak:9.0f}")
        cases.append({"case": title, "seconds": round(seconds, 2), "peak_mb": round(peak)})
    if options.json:
        cores = len(os.sched_getaffinity(0))
        document = {"data": data[1], "measurements": measurements, "cores": cores, "cases": cases}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def _timed(arguments: list[str], out: Path) -> tuple[float, float]:
    """Seconds on the wall and the peak of resident memory, MB, of one fit."""
    out.parent.mkdir()
    start = time.perf_counter()
    command = [sys.executable, "-m", "normtune", "fit", *arguments, "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return seconds, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
