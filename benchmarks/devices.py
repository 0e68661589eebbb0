"""How many times as fast a sweep is on several devices: replays of the H200's recording whose steps take real time.

    python benchmarks/devices.py [--strategy adaptive] [--devices 1,2,4] [--json FILE]

A block takes as long as on the GPU: 0.3 ms a config, as long as its launches are short. The seconds are those after the
plan, without the shared sample at the end (`tuner/sweep/spread.py`), which a single device does not measure. For GPUs,
run `benchmarks/sweep.py` with `--device cuda:0` and with `--device all`.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.results.database.store import Store
from normtune.tuner.device.bench import Bench
from normtune.tuner.device.engine import Block
from normtune.tuner.device.replay import ReplayEngine
from normtune.tuner.plan.grids import shapes
from normtune.tuner.plan.plan import plan, problems
from normtune.tuner.search.registry import search
from normtune.tuner.sweep.loop import measure
from normtune.tuner.sweep.progress import Silent
from normtune.tuner.sweep.summary import Best, Summary
from normtune.tuner.sweep.work import Work

# Seconds of a config's block on an H200, as long as its launches are short.
BLOCK_SECONDS = 3.0e-4


class TimedReplay(ReplayEngine):
    """A replay whose blocks take as long as on the GPU."""

    def block(self, configs: Sequence[Config]) -> Block:
        time.sleep(len(configs) * BLOCK_SECONDS)
        return super().block(configs)


def engine(name: str) -> TimedReplay:
    return TimedReplay(name)


class Ending(Silent):
    """Notes when the last problem was measured."""

    ended = 0.0

    def measured(self, device: str, problem: Problem, best: Best | None, summaries: Sequence[Summary]) -> None:
        self.ended = time.monotonic()


def seconds(count: int, strategy: str, recording: str) -> float:
    """Seconds from the first to the last task."""
    benches = [Bench((__name__, "engine", (recording,)), name=f"{recording}#{n}") for n in range(count)]
    for bench in benches:
        bench.open()
    whole = plan(problems([], ["bfloat16"], shapes("default")[::3]), "default", benches[0].target)
    ending = Ending()
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{folder}/store.db") as store:
        work = Work.of(whole, search(strategy)(whole.tasks, {}), {})
        start = time.monotonic()
        measure([(work, benches)], store, display=ending)
        return ending.ended - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="adaptive")
    parser.add_argument("--devices", default="1,2,4")
    parser.add_argument("--recording", default="nvidia-h200")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    taken = {
        count: seconds(count, options.strategy, options.recording) for count in map(int, options.devices.split(","))
    }
    first = next(iter(taken))
    for count, each in taken.items():
        print(f"{count} devices: {each:.1f} s, {taken[first] / each:.2f} times as fast as {first}")
    if options.json:
        figures = {"strategy": options.strategy, "seconds": {count: round(each, 2) for count, each in taken.items()}}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
