"""A recording as an engine, to run the whole tool without a GPU.

In: the name of a recording. Out: outcomes from its rounds. Each requested block is one recorded block drawn at random,
the same for all configs. The draws of a task depend on its problem and launches only, so that a sweep that is stopped
and goes on has the same times; a task that is measured again draws on. A config that was not recorded gets the outcome
`not_recorded`.
"""

import random
import zlib
from collections.abc import Mapping, Sequence

from normtune.errors import UsageError
from normtune.kernels.call import AnyLaunch
from normtune.kernels.config import COPY, Config
from normtune.kernels.operator import IllegalConfigError, operator, read_config
from normtune.kernels.problem import Problem
from normtune.kernels.target import target_for
from normtune.results.evidence import Evidence
from normtune.results.exchange.recording import load_recording, recordings
from normtune.results.records import REPLAY_PREFIX, ROUNDS_PER_BLOCK, Outcome, launch_digest
from normtune.results.regimes import COLD, in_regime
from normtune.tuner.device.engine import Block, Engine, Identity
from normtune.tuner.plan.pool import Candidate
from normtune.tuner.timing.rounds import RoundCounts

# Recorded blocks of one config: block number to its samples, ns.
RoundsByBlock = dict[int, list[int]]


class ReplayEngine(Engine):
    """A recording; `warm_up` has all of its failures. Its device is the recorded one with another uuid.

    Args:
        name: of the recording.
        regime: of the recorded times.
        seed: of the draws of blocks.
        evidence: measurements of one device, to be replayed instead of the recording.

    Raises:
        UsageError: no recording of that name is shipped, or it has no times of that regime.
    """

    def __init__(self, name: str, regime: str = COLD, seed: int = 0, evidence: Evidence | None = None) -> None:
        if evidence is None and name not in recordings():
            raise UsageError(
                f"unknown recording {name!r}: expected one of {', '.join(recordings()) or '(none shipped)'}"
            )
        evidence = in_regime(evidence or load_recording(name, None), regime, f"recording {name}")
        newest = max(evidence.runs, key=lambda run: run.started)
        self._device = newest.device._replace(uuid=f"{REPLAY_PREFIX}{name}")
        self._target = target_for(newest.device.target, newest.device.sms)
        self._software = newest.software
        self._name = name
        self._regime = regime
        self.draw_anew(seed)
        self._failures: dict[Config, Outcome] = {}
        self._blocks: dict[Config, RoundsByBlock] = {}
        self._frame = evidence.frame
        self._row_indices = evidence.places()

    def draw_anew(self, seed: int) -> None:
        """Restart the draws of every task with this seed."""
        self._seed = seed
        self._draws: dict[bytes, random.Random] = {}
        self._random = random.Random(seed)

    def identify(self) -> Identity:
        """The recorded device, which needs no binaries and no memory."""
        return Identity(self._device, self._target, self._software, None, False, self._regime)

    def try_copy(self) -> None:
        """Do nothing: no memory is copied."""

    def begin(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        """Find the recorded cells of these launches."""
        task = b"".join([str(problem).encode(), *sorted(launch_digest(candidate.launch) for candidate in candidates)])
        self._random = self._draws.setdefault(task, random.Random(zlib.crc32(task, self._seed)))
        self._failures, self._blocks = {}, {}
        recorded = self._recorded(problem)
        cells = self._by_launch(problem, recorded)
        cell_of = {c.config: cells.get(c.launch) for c in candidates} | {COPY: recorded.get(COPY)}
        for config, cell in cell_of.items():
            if isinstance(cell, dict):
                self._blocks[config] = cell
            elif config != COPY:
                self._failures[config] = cell or Outcome("not_recorded", f"not in recording {self._name}")

    def warm_up(self, configs: Sequence[Config]) -> Mapping[Config, Outcome]:
        """The recorded failures, and `not_recorded` for missing configs."""
        return {config: self._failures[config] for config in configs if config in self._failures}

    def block(self, configs: Sequence[Config]) -> Block:
        """One recorded block, drawn at random; the nearest one for a config without it."""
        numbers = sorted({number for blocks in self._blocks.values() for number in blocks})
        if not numbers:
            return Block({}, RoundCounts())
        number = self._random.choice(numbers)
        times = {}
        for config in configs:
            if config in self._blocks:
                blocks = self._blocks[config]
                times[config] = blocks.get(number) or blocks[min(blocks, key=lambda other: abs(other - number))]
        return Block(times, RoundCounts(ROUNDS_PER_BLOCK))

    def _recorded(self, problem: Problem) -> dict[Config, Outcome | RoundsByBlock]:
        result: dict[Config, Outcome | RoundsByBlock] = {}
        names = ["config", "status", "reason", "rounds", "samples"]
        rows = self._frame.iloc[self._row_indices.get(problem.columns, [])]
        for text, status, reason, rounds, samples in zip(*(rows[name].tolist() for name in names), strict=True):
            config = read_config(problem.operator, text)
            if status != "ok":
                result.setdefault(config, Outcome(status, reason))
                continue
            blocks: RoundsByBlock = {}
            for number, sample in zip(rounds.tolist(), samples.tolist(), strict=True):
                blocks.setdefault(number // ROUNDS_PER_BLOCK, []).append(sample)
            # If several runs measured a config, the one with most blocks is the recording; the others are anchors.
            earlier = result.get(config)
            if not isinstance(earlier, dict) or len(blocks) > len(earlier):
                result[config] = blocks
        return result

    def _by_launch(
        self, problem: Problem, recorded: Mapping[Config, Outcome | RoundsByBlock]
    ) -> dict[AnyLaunch, Outcome | RoundsByBlock]:
        spec = operator(problem.operator)
        result: dict[AnyLaunch, Outcome | RoundsByBlock] = {}
        for config, cell in recorded.items():
            if config == COPY:
                continue
            try:
                result[spec.launch(config, problem, self._target)] = cell
            except IllegalConfigError:
                continue  # recorded before the rules changed
        return result
