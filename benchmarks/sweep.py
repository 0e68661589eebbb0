"""Duration of the default sweep, compilation included: wall time, and the share of timing.

    python benchmarks/sweep.py [--device cuda:0] [--strategy NAME] [--space NAME] [--budget SECONDS] [--json FILE]

Calls `normtune.sweep` on the default grid in bfloat16, with an empty store and an empty compiler cache.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--store", type=Path, help="keep the measurements in this new file")
    for name in ("--strategy", "--space"):
        parser.add_argument(name, help="as of normtune.sweep")
    parser.add_argument("--budget", type=float, metavar="SECONDS")
    options = parser.parse_args()
    more = {"strategy": options.strategy, "space": options.space, "budget_seconds": options.budget}
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{options.store or folder + '/sweep.db'}"
        call = f"import normtune; normtune.sweep({options.device!r}, store={url!r}, **{more!r})"
        command = [sys.executable, "-c", call]
        start = time.perf_counter()
        subprocess.run(command, check=True, env={**os.environ, "TRITON_CACHE_DIR": f"{folder}/triton"})
        wall = time.perf_counter() - start
        told = [f"--{name.removesuffix('_seconds')} {value}" for name, value in more.items() if value]
        figures = {"options": told} | read(url) | {"wall_s": round(wall, 1)}
    figures["timing_share"] = round(figures["seconds"]["timing"] / wall, 3)
    print(
        f"{figures['device']}: {figures['problems']} problems, {figures['measurements']} measurements, "
        f"{figures['samples']} samples in {wall:.1f} s, {figures['timing_share']:.0%} of it timing"
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def read(url: str) -> dict:
    """Content of the sweep's store."""
    from normtune.results.database.store import Store

    with Store.open(url, create=False) as store:
        runs = store.runs()
        frame = store.load().frame
    run = runs[0]
    return {
        "device": run.device.name,
        "devices": len(runs),
        "software": run.software,
        "problems": len(frame[["operator", "variant", "dtype", "rows", "hidden"]].drop_duplicates()),
        "measurements": len(frame),
        "samples": int(frame["samples"].map(len).sum()),
        **run.protocol,
    }


if __name__ == "__main__":
    main()
