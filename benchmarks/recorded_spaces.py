"""Recorded times as spaces that a search runs over: the shipped H200 recording, and T4 files of others.

In: a grid or a folder. Out: `Space`s, with the costs of a sweep on that device.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from normtune.benchmarks.lib.simulation import Space
from normtune.benchmarks.lib.t4 import RecordedSpace, is_t4, read_t4
from normtune.benchmarks.places import RESULTS
from normtune.errors import UsageError
from normtune.kernels.call import AnyLaunch, ImplementationLaunch
from normtune.kernels.config import COPY, Config
from normtune.kernels.operator import operator, read_config
from normtune.kernels.problem import Problem
from normtune.kernels.target import TARGETS
from normtune.results.evidence import Evidence
from normtune.results.exchange.parquet_csv import read_parquet
from normtune.results.exchange.recording import load_recording
from normtune.results.records import ROUNDS_PER_BLOCK
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.timing.protocol import timed_launches

RECORDING = "nvidia-h200"
# Every legal config of RMSNorm's full space at each shape of the quick grid, timed by `adaptive` on an H100, Triton
# 3.6.0: normtune.sweep(space="full", strategy="adaptive", grid="quick", operators="rms_norm_forward")
# --operator rms_norm_backward, then normtune data export.
FULL_SPACE = RESULTS / "nvidia_h100_80gb_hbm3" / "full_space.parquet"
# Searches that do not time every config.
PARTIAL = ("plane", "tpe", "random", "gp")  # the last two were searches of normtune
# Of an H200 beside 16 cores: bytes a second that a copy reads and writes; seconds of a config's binary, compiled on the
# cores that the timing leaves free, and of its gate at the trial problem and at its own.
BYTES_PER_SECOND = 4.0e12
_OVERHEAD = 0.147 / 15 + 4.0e-3 + 0.57e-3


_UNKNOWN = ImplementationLaunch("")


def load(recording: str | Path) -> Evidence:
    """A shipped recording by its name, or that of a Parquet file."""
    return read_parquet(recording) if isinstance(recording, Path) else load_recording(recording, None)


def recorded(dtype: str = "bfloat16", recording: str | Path = RECORDING) -> list[Space]:
    """The problems of the plain operators in a recording, or a file, of an H200 or H100, with more than three configs.

    A config that is no longer legal is left out, and so are runs of a search that left configs out. Costs are those of
    the H200: a round of a config takes one untimed and the timed launches, and a read of twice the L2 before them. A
    config with fewer rounds than others has its own again.
    """
    evidence = load(recording)
    whole = [run.id for run in evidence.runs if run.protocol.get("strategy", "") not in PARTIAL]
    frame = evidence.frame[evidence.frame["run"].isin(whole)]
    frame = frame[(frame.status == "ok") & (frame.variant == "") & (frame.dtype == dtype)]
    evict = 2 * evidence.devices()[0].l2_bytes / BYTES_PER_SECOND
    spaces = []
    for (name, rows, hidden), part in cast(Any, frame.groupby(["operator", "rows", "hidden"])):
        times: dict[Config, list[int]] = {}
        for text, samples in zip(part["config"], part["samples"], strict=True):
            if (config := read_config(name, text)) != COPY:
                times.setdefault(config, []).extend(samples)
        problem = Problem.of(name, rows, hidden, dtype)
        launch: Any = partial(operator(name).launch_of, problem=problem, target=TARGETS["sm_90"])
        rounds = max(map(len, times.values()), default=0) // ROUNDS_PER_BLOCK * ROUNDS_PER_BLOCK
        blocks = {
            config: np.resize(one, rounds).reshape(-1, ROUNDS_PER_BLOCK)
            for config, one in times.items()
            if launch(config)
        }
        if len(blocks) > 3:
            launches = 1 + timed_launches(operator(name).bytes_moved(problem))
            spaces.append(
                Space(task_of(problem, blocks, launch), blocks, dict.fromkeys(blocks, _OVERHEAD), launches, evict)
            )
    return spaces


def foreign(folder: Path) -> Iterator[RecordedSpace]:
    """The T4 files of a folder, in the order of their names.

    Raises:
        UsageError: there are none.
    """
    paths = sorted(path for path in folder.glob("*_T4.json*") if is_t4(path))
    if not paths:
        raise UsageError(f"{folder} holds no T4 files: expected a folder with files of benchmark_hub, NAME_T4.json.gz")
    return map(read_t4, paths)


def space_of(recorded_space: RecordedSpace, configs: list[Config] | None = None, rows: int = 1) -> Space:
    """A T4 file, or some of its configs, as the space of a made-up problem."""
    chosen = recorded_space.configs if configs is None else configs
    timed = {config: one for config, one in recorded_space.timed.items() if config in set(chosen)}
    blocks = {config: one.nanoseconds.reshape(-1, ROUNDS_PER_BLOCK) for config, one in timed.items()}
    overhead = {config: recorded_space.overhead[config] for config in chosen}
    return Space(task_of(Problem.of(recorded_space.name, rows, 1, "float32"), chosen), blocks, overhead)


def task_of(
    problem: Problem, configs: Iterable[Config], launch: Callable[[Config], AnyLaunch] = lambda _: _UNKNOWN
) -> Task:
    """A task of these configs; nothing is known of launches that somebody else recorded."""
    return Task(problem, tuple(Candidate(config, launch(config)) for config in sorted(configs)))


def some(spaces: list[Space], count: int) -> list[Space]:
    """Spaces drawn with a fixed seed, in their order."""
    chosen = set(random.Random(1).sample(range(len(spaces)), min(count, len(spaces))))
    return [space for index, space in enumerate(spaces) if index in chosen]
