"""Seconds and memory of the fit of many tables at once: by default 100, of a million measurements of 16 samples.

    python benchmarks/many_tables.py [--operators 50] [--leaves 16] [--profile] [--json FILE]

The evidence is made up: operators with the launches of `rms_norm_backward`, each in two dtypes, with the measurements
of the recording, all times of one measurement slowed by the same up to 2 %. The number of leaves is given, so nothing
is cross-validated. The fit is timed, without the making of the evidence. Beside the wall time stands that of the cores,
which other work on the machine does not lengthen, and the peak memory of all processes together, with shared pages
counted once. All tables must be there, and the worst of them must lose less than 10 % on average.
"""

import argparse
import cProfile
import json
import os
import pstats
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

    from normtune.results.evidence import Evidence

PER_TABLE = 10_000  # measurements, or as many as were recorded
LIKE, DTYPES = "rms_norm_backward", ("bfloat16", "float32")
_MOST_NOISE = 0.02
_SHOWN = 35


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recording", default="nvidia-h200", help="name of a recording that ships")
    parser.add_argument("--operators", type=int, default=50, help="each with two dtypes")
    parser.add_argument("--leaves", type=int, default=16, help="the most leaves of a function")
    parser.add_argument("--profile", action="store_true", help="say where the time goes; slower")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()

    start = time.perf_counter()
    evidence = made_up(options.recording, options.operators)
    made = time.perf_counter() - start
    samples = sum(map(len, evidence.frame["samples"]))
    print(f"{len(evidence.frame)} measurements, {samples} samples, made in {made:.1f} s")

    from normtune.heuristics.fitting import pipeline
    from normtune.heuristics.fitting.options import FitOptions

    profile = cProfile.Profile()
    start, busy = time.perf_counter(), _busy()
    with _Memory() as memory:
        if options.profile:
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # in this process, where the profiler sees it
            profile.enable()
        fitted = pipeline.fit(evidence, FitOptions(leaves=options.leaves))
        profile.disable()
    seconds, busy = time.perf_counter() - start, _busy() - busy
    tables = len(fitted.functions) + len(fitted.shared)
    cores = len(os.sched_getaffinity(0))
    print(
        f"{tables} tables fitted in {seconds:.1f} s on {cores} cores, {busy:.1f} s of a core, peak {memory.peak:.0f} MB"
    )
    if options.profile:
        pstats.Stats(profile).sort_stats("cumulative").print_stats(_SHOWN)
    worst = max(one.figures.loss.worst for one in fitted.functions)
    mean = max(one.figures.loss.mean for one in fitted.functions)
    print(f"the tables lose at most {mean / 1e4:.2f} % on average, {worst / 1e4:.1f} % at worst")
    if tables != 2 * options.operators or mean > 100_000:
        raise SystemExit(f"expected {2 * options.operators} tables that lose less than 10 % on average")
    if options.json:
        document = {
            "measurements": len(evidence.frame),
            "tables": tables,
            "cores": cores,
            "seconds": round(seconds, 2),
            "core_seconds": round(busy, 2),
            "peak_mb": round(memory.peak),
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def made_up(recording: str, count: int) -> "Evidence":
    """Evidence of `count` operators, which are registered, in two dtypes each."""
    from normtune.kernels.fingerprint import fingerprint
    from normtune.kernels.key import Key
    from normtune.kernels.operator import operator, register
    from normtune.results.columns import COLUMNS
    from normtune.results.evidence import Evidence
    from normtune.results.exchange.recording import load_recording

    real = operator(LIKE)
    recorded = load_recording(recording).select([LIKE], ["bfloat16"])
    source = {name: recorded.frame[name].tolist() for name in COLUMNS if name != "samples"}
    plain = _spread(recorded.part(Key.of(LIKE, "", "bfloat16")))
    samples = recorded.frame["samples"].tolist()
    draw = np.random.default_rng(7)
    columns: dict[str, list[object]] = {name: [] for name in COLUMNS}
    for number in range(count):
        spec = register(replace(real, name=f"made_up_{number:03}"))
        kernels = fingerprint(spec)
        for dtype in DTYPES:
            slower = 1 + _MOST_NOISE * draw.random(len(plain))
            columns["operator"] += [spec.name] * len(plain)
            columns["dtype"] += [dtype] * len(plain)
            columns["fingerprint"] += [kernels] * len(plain)
            for name in source.keys() - {"operator", "dtype", "fingerprint"}:
                columns[name] += [source[name][place] for place in plain]
            columns["samples"] += [
                (samples[place] * factor).astype(np.int32) for place, factor in zip(plain, slower, strict=True)
            ]
    return Evidence.from_columns(columns, recorded.runs)


def _spread(plain: "pd.DataFrame") -> list[int]:
    """Indices of all measurements of enough shapes, spread evenly over the grid."""
    of_shape = [places.tolist() for places in plain.groupby(["hidden", "rows"]).groups.values()]
    count = min(len(of_shape), round(len(of_shape) * PER_TABLE / len(plain)))
    kept = [of_shape[number * len(of_shape) // count] for number in range(count)]
    return [place for places in kept for place in places]


def _with_children(process: int) -> list[int]:
    """A process, its children, and theirs."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:  # it has just ended
        children = []
    return [process, *(descendant for child in children for descendant in _with_children(int(child)))]


def _busy() -> float:
    """Seconds of core time of this process and its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class _Memory:
    """Peak memory of this process and its children, MB, sampled ten times a second; shared pages count once."""

    def __enter__(self) -> "_Memory":
        self.peak = self._now()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            self.peak = max(self.peak, self._now())

    def _now(self) -> float:
        total = 0
        for process in _with_children(os.getpid()):
            try:
                lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue  # it has just ended
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total / 1024


if __name__ == "__main__":
    main()
