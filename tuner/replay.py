"""A recording as a bench: the whole tool without a GPU.

In: the name of a recording. Out: outcomes drawn from its rounds. Each block of rounds that a session asks for is one
recorded block, the same for all configs, drawn with a fixed seed; what was not recorded says so.
"""

import random
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence

from normtune.errors import UsageError
from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError, Launch, operator
from normtune.kernels.problem import Problem
from normtune.kernels.target import target_for
from normtune.results.recording import load_recording, recordings
from normtune.results.records import COPY, REPLAY_PREFIX, ROUNDS_PER_BLOCK
from normtune.tuner.device import Outcome, Phases
from normtune.tuner.planning import Task
from normtune.tuner.racing import race

# Recorded blocks of one config: block number to its samples, ns.
Blocks = dict[int, list[int]]


class ReplayBench:
    """A recording; a `device.Bench`. Its device is the recorded one under a uuid of its own.

    Raises:
        UsageError: no recording of that name is shipped.
    """

    def __init__(self, name: str) -> None:
        if name not in recordings():
            raise UsageError(
                f"unknown recording {name!r}: expected one of {', '.join(recordings()) or '(none shipped)'}"
            )
        evidence = load_recording(name)
        newest = max(evidence.runs, key=lambda run: run.started)
        self.device = newest.device._replace(uuid=f"{REPLAY_PREFIX}{name}")
        self.target = target_for(self.device.target, self.device.sms)
        self.software = newest.software
        self._name = name
        self._seconds = 0.0
        self._cells: dict[Problem, dict[Config, Outcome | Blocks]] = {}
        for item in evidence.measurements():
            cells = self._cells.setdefault(item.problem, {})
            if item.status != "ok":
                cells.setdefault(item.config, Outcome(item.status, item.reason))
                continue
            blocks: Blocks = {}
            for number, sample in zip(item.rounds.tolist(), item.samples.tolist(), strict=True):
                blocks.setdefault(number // ROUNDS_PER_BLOCK, []).append(sample)
            # Several runs of one cell: the largest is the recording, the others are anchors.
            known = cells.get(item.config)
            if not isinstance(known, dict) or len(blocks) > len(known):
                cells[item.config] = blocks

    def prepare(self, tasks: Sequence[Task]) -> Iterator[tuple[int, int]]:
        """Nothing is compiled."""
        return iter(())

    def measure(self, task: Task, strategy: str) -> Mapping[Config, Outcome]:
        """Outcomes of a task, from the recorded cells of the same launches."""
        start = time.perf_counter()
        cells = self._by_launch(task.problem)
        outcomes: dict[Config, Outcome] = {}
        blocks: dict[Config, Blocks] = {}
        for candidate in task.candidates:
            found = cells.get(candidate.launch, Outcome("not_recorded", f"not in recording {self._name}"))
            if isinstance(found, dict):
                blocks[candidate.config] = found
            else:
                outcomes[candidate.config] = found
        yardstick = self._cells.get(task.problem, {}).get(COPY)
        if isinstance(yardstick, dict):
            blocks[COPY] = yardstick
        session = _ReplaySession(blocks, seed=zlib.crc32(str(task.problem).encode()))
        for config, samples in race(session, [config for config in blocks if config != COPY], strategy).items():
            outcomes[config] = Outcome("ok", "", samples.rounds, samples.nanoseconds)
        self._seconds += time.perf_counter() - start
        return outcomes

    def phases(self) -> Phases:
        """All of the time counts as timing."""
        return Phases(0.0, 0.0, self._seconds, {"regime": f"replay of {self._name}"})

    def close(self) -> dict[str, object]:
        """Nothing to release."""
        return {}

    def _by_launch(self, problem: Problem) -> dict[Launch, Outcome | Blocks]:
        spec = operator(problem.operator)
        found: dict[Launch, Outcome | Blocks] = {}
        for config, cell in self._cells.get(problem, {}).items():
            if config == COPY:
                continue
            try:
                found[spec.resolve(config, problem, self.target, None)] = cell
            except IllegalConfigError:
                continue  # recorded before the rules changed
        return found


class _ReplaySession:
    """One problem being replayed: a `racing.Session`."""

    def __init__(self, blocks: Mapping[Config, Blocks], seed: int) -> None:
        self._blocks = blocks
        self._random = random.Random(seed)
        self._numbers = sorted({number for found in blocks.values() for number in found})

    def block(self, configs: Sequence[Config]) -> dict[Config, list[int]]:
        if not self._numbers:
            return {}
        number = self._random.choice(self._numbers)
        times = {}
        for config in configs:
            if config in self._blocks:
                found = self._blocks[config]
                times[config] = found.get(number) or found[min(found, key=lambda other: abs(other - number))]
        return times
