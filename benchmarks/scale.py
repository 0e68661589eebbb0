"""A store of 10 million measurements of 200 devices: its size, and the time to fill, to list and to fit one of them.

    python benchmarks/scale.py STORE [--devices 200] [--measurements 10000000] --out FILE.json

STORE is an SQLite file that does not exist, or the URL of an empty PostgreSQL database. It stays filled; run again with
such a store and the same FILE, only the commands are timed. The measurements are made up, and written as a sweep writes
them: a transaction for each problem, with 16 samples for each config, digests of the code, and one failure in a
hundred. Needs no GPU; 10 million take 12 minutes of a core.
"""

import argparse
import hashlib
import json
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.kernels.target import TARGETS
from normtune.results.atomic import replaced
from normtune.results.database import schema
from normtune.results.database.store import Store
from normtune.results.database.url import StoreUrl
from normtune.results.records import Device, Measurement, Run, TimedCode
from normtune.tuner.plan.grids import shapes
from normtune.tuner.plan.plan import plan, problems

SAMPLES = 16
CONFIGS = 100
RUNS_PER_DEVICE = 5
FAILED_ONE_IN = 100
# Leaves are given, because choosing their number takes a minute and nothing of the store.
FIT = ("--leaves", "8")
REPEATS = 2
OPERATORS = ("rms_norm_forward", "rms_norm_backward")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
PROTOCOL = {"rounds": 1600, "void_rounds": 3, "seconds": {"compile": 1.0, "gate": 1.0, "timing": 1.0}}
SOFTWARE = {"python": "3.12.3", "torch": "2.11.0", "triton": "3.6.0", "cuda": "13.0"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--measurements", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alone", help="an empty store for one device; default: an SQLite file that is removed")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    place, cases = StoreUrl.of(options.store), Cases(options.measurements // options.devices)
    found: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    url = place.url.render_as_string(hide_password=False)
    with Store.at(place) as store:
        if not store.runs():
            found = {"database": place.url.get_backend_name(), "machine": machine()}
            found |= filled(store, cases, options.devices, options.seed)
    found["bytes"] = size(place)
    found["bytes_per_measurement"] = round(found["bytes"] / found["measurements"], 1)
    write(options.out, found)
    found["list"] = timed("data", "list", "--store", url)
    write(options.out, found)
    middle = options.devices // 2
    found["fit_of_one"] = timed("fit", *FIT, "--device", device(middle).name, "--store", url)
    with tempfile.TemporaryDirectory() as folder:
        alone = options.alone or f"sqlite:///{folder}/alone.db"
        with Store.open(alone) as store:
            fill(store, cases, middle, np.random.default_rng([options.seed, middle]))
        found["fit_alone"] = timed("fit", *FIT, "--store", alone)
    write(options.out, found)
    print(json.dumps(found, indent=1))


def write(path: Path, found: dict[str, Any]) -> None:
    """Write what was found so far."""
    with replaced(path) as temporary:
        temporary.write_text(json.dumps(found, indent=1) + "\n")


class Cases:
    """The problems of each device with their configs, and a time for each, ns."""

    def __init__(self, measurements: int) -> None:
        keys, dtypes = list(OPERATORS), ["bfloat16", "float16", "float32"]
        every, wanted = problems(keys, dtypes, shapes("recording")), max(1, round(measurements / CONFIGS))
        places = np.linspace(0, len(every) - 1, min(len(every), wanted)).astype(int).tolist()
        draw = np.random.default_rng(1)
        self.tasks: list[tuple[Problem, list[Config], np.ndarray]] = []
        for task in plan([every[place] for place in places], "full", TARGETS["sm_90"]).tasks:
            # The default config and the yardstick come first in a space: a fit needs them.
            configs = [candidate.config for candidate in task.candidates[:CONFIGS]]
            least = 2000 + task.problem.rows * task.problem.hidden / 500
            self.tasks.append((task.problem, configs, least * draw.lognormal(0.3, 0.2, len(configs))))


def device(number: int) -> Device:
    """One of the devices."""
    uuid = hashlib.sha256(f"device {number}".encode()).hexdigest()[:32]
    return Device(f"Made-up GPU {number:05d}", "sm_90", 132, 60 << 20, 140 << 30, f"GPU-{uuid}", "570.86.15")


def filled(store: Store, cases: Cases, devices: int, seed: int) -> dict[str, Any]:
    """Fill a store; seconds in the store, without making measurements up: by the clock, and of this process's core."""
    spent, count = np.zeros(2), 0
    for number in range(devices):
        added, seconds = fill(store, cases, number, np.random.default_rng([seed, number]))
        spent, count = spent + seconds, count + added
        if number % 10 == 9:
            print(f"{count} measurements, {count / spent[0]:.0f} a second", file=sys.stderr, flush=True)
    return {
        "devices": devices,
        "measurements": count,
        "samples_each": SAMPLES,
        "runs": devices * RUNS_PER_DEVICE,
        "measurements_a_second": round(count / spent[0]),
        "measurements_a_core_second": round(count / spent[1]),
    }


def fill(store: Store, cases: Cases, number: int, draw: np.random.Generator) -> tuple[int, np.ndarray]:
    """Store the measurements of one device; their number, and the seconds in the store."""
    rounds, nothing = np.arange(SAMPLES, dtype=np.int32), np.empty(0, np.int32)
    prints = {name: f"sha256:{hashlib.sha256(name.encode()).hexdigest()}" for name in OPERATORS}
    count, spent = 0, np.zeros(2)
    for part in range(RUNS_PER_DEVICE):
        started = (EPOCH + timedelta(hours=number * RUNS_PER_DEVICE + part)).isoformat(timespec="seconds")
        run = Run(draw.bytes(16).hex(), device(number), SOFTWARE, started, {"strategy": "adaptive", "regime": "cold"})
        spent += took(store.begin_run, run)
        for problem, configs, times in cases.tasks[part::RUNS_PER_DEVICE]:
            samples = np.rint(times[:, None] * draw.lognormal(0, 0.02, (len(configs), SAMPLES))).astype(np.int32)
            failed = draw.integers(FAILED_ONE_IN, size=len(configs)) == 0
            items = []
            for config, taken, is_failed in zip(configs, samples, failed.tolist(), strict=True):
                outcome = ("timeout", "took over 10 s", nothing, nothing) if is_failed else ("ok", "", rounds, taken)
                place = problem, config, run.id, prints[problem.operator]
                items.append(Measurement._make((*place, *outcome, code_of(problem, config))))
            spent += took(store.add, items)
            count += len(items)
        spent += took(store.update_run, run._replace(protocol=run.protocol | PROTOCOL))
    return count, spent


def took(call: Callable[[Any], None], argument: Any) -> np.ndarray:
    """Seconds of a call, by the clock and of this process's core."""
    begun = time.perf_counter(), time.process_time()
    call(argument)
    return np.subtract((time.perf_counter(), time.process_time()), begun)


@cache
def code_of(problem: Problem, config: Config) -> TimedCode:
    """Digests as long as real ones: of a launch, which is of a shape, and of a binary, which shapes share."""
    launch = hashlib.sha256(f"{problem} {config}".encode()).digest()
    binary = hashlib.sha256(f"{problem.operator} {problem.dtype} {config}".encode()).digest()
    return TimedCode(launch[:8], binary[:16])


def size(store: StoreUrl) -> int:
    """Bytes of the database, its indexes included."""
    if store.path:
        return store.path.stat().st_size
    engine = sa.create_engine(store.url)
    with engine.connect() as connection:
        tables = [*schema.metadata.tables]
        total = sum(connection.execute(sa.select(sa.func.pg_total_relation_size(name))).scalar_one() for name in tables)
    engine.dispose()
    return int(total)


def timed(*words: str) -> dict[str, float]:
    """Seconds of a command of normtune by the clock and of cores, the least of some, and its peak memory in MB."""
    seconds, cores, memory = [], [], []
    for _ in range(REPEATS):
        begun = time.monotonic()
        process = subprocess.Popen([sys.executable, "-m", "normtune", *words], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        if os.waitstatus_to_exitcode(status):
            sys.exit(f"normtune {' '.join(words)} failed")
        seconds.append(time.monotonic() - begun)
        cores.append(used.ru_utime + used.ru_stime)
        memory.append(used.ru_maxrss / 1024)
    return {
        "seconds": round(min(seconds), 2),
        "core_seconds": round(min(cores), 2),
        "first_seconds": round(seconds[0], 2),
        "peak_mb": round(max(memory)),
    }


def machine() -> str:
    """The processor and the versions that the times depend on."""
    cores = f"{os.cpu_count()} cores"
    return f"{platform.machine()}, {cores}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"


if __name__ == "__main__":
    main()
