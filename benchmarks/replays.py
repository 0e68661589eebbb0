"""A recording in this process: thousands of checks without a worker, and the true loss of a function.

In: evidence of one device. Out: a bench that answers a check, and the mean loss of a planted function over all shapes.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from normtune.benchmarks.planted import Plant
from normtune.heuristics.checking import subject
from normtune.heuristics.checking.subject import Checked, Suspect
from normtune.heuristics.fitted.emit import module_text
from normtune.heuristics.fitted.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.regret.fixed_log import MILLION
from normtune.heuristics.regret.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.tablefile.tree import choose
from normtune.kernels.config import Config
from normtune.kernels.operator import IllegalConfigError, operator
from normtune.kernels.problem import Problem
from normtune.results.evidence import Evidence
from normtune.tuner.device.open import Outcome, Phases, Speed
from normtune.tuner.device.replay import Blocks, ReplayEngine
from normtune.tuner.plan.plan import Task
from normtune.tuner.search.protocol import Race
from normtune.tuner.search.rounds import timed


class Truth(NamedTuple):
    """Loss of a function, by the whole recording.

    Attributes:
        mean: over shapes, millionths; None if nothing is known.
        is_legal: its config can be launched at each shape.
    """

    mean: int | None
    is_legal: bool


class _Remembering(ReplayEngine):
    """A replay that reads each problem once."""

    def __init__(self, name: str, evidence: Evidence) -> None:
        super().__init__(name, evidence=evidence)
        self._known: dict[Problem, dict[Config, Outcome | Blocks]] = {}

    def _recorded(self, problem: Problem) -> dict[Config, Outcome | Blocks]:
        if problem not in self._known:
            self._known[problem] = super()._recorded(problem)
        return self._known[problem]


class Replay:
    """Evidence as a bench, without a process of its own; an `open.Bench`.

    Args:
        name: of the evidence.
        evidence: measurements of one device.

    Attributes:
        races: number of races after which its time is used up; None for no limit.
    """

    def __init__(self, name: str, evidence: Evidence) -> None:
        self._engine = _Remembering(name, evidence)
        self.device, self.target, self.software, self.free_bytes, _, self.regime = self._engine.identify()
        self.races: int | None = None
        self._done = 0
        self._evidence = evidence
        self._halves: dict[tuple[str, str, str], dict[tuple[int, int], int]] = {}
        self._places: dict[tuple[str, str, str], dict[tuple[int, int], int]] = {}
        self._matrices: dict[tuple[str, str, str], TimingMatrix | None] = {}

    def seeded(self, seed: int, races: int | None) -> "Replay":
        """The same evidence with another seed and, again, `races` races."""
        self._engine.draw_anew(seed)
        self.races, self._done = races, 0
        return self

    def speed(self) -> Speed:
        """Speed of a replay."""
        return self._engine.speed()

    def prepare(self, tasks: Iterable[Task], told: Callable[[int], None] | None = None) -> None:
        """Do nothing: no binary is needed."""

    def compiled(self, task: Task, seconds: float | None = None) -> bool:
        """Whether time is left."""
        return self.races is None or self._done < self.races

    def examine(self, tasks: Iterable[Task]) -> None:
        """Do nothing: nothing is launched."""

    def measure(self, task: Task, race: Race, meanwhile: Callable[[], None] | None = None) -> Mapping[Config, Outcome]:
        """Race the candidates with times."""
        self._done += 1
        configs = [candidate.config for candidate in task.candidates]
        self._engine.begin(task.problem, task.candidates)
        outcomes = dict(self._engine.warm_up(configs))
        alive = [config for config in configs if config not in outcomes]
        found = timed(self, alive, race) if alive else {}
        return outcomes | {config: Outcome("ok", "", one.rounds, one.nanoseconds) for config, one in found.items()}

    def block(self, configs: Sequence[Config]) -> dict[Config, list[int]]:
        """One block of a race; see `search.rounds.Session`."""
        return self._engine.block(configs).times

    def phases(self) -> Phases:
        """Zero seconds."""
        return Phases(0.0, 0.0, 0.0, {})

    def close(self) -> dict[str, object]:
        """Do nothing: the replay is used again."""
        return {}

    def timed(self, one: Checked) -> list[tuple[int, int]]:
        """The shapes at which the config of a function has a time or cannot be launched.

        Configs that were recorded on one half of a recording only do not concern the check.
        """
        matrix = self._matrix(one)
        found = []
        for place, shape in enumerate(matrix.problems if matrix else ()):
            if matrix and (matrix.loss(place, choose(one.tree, *shape)) is not None or not self._is_legal(one, shape)):
                found.append(shape)
        return found

    def half(self, one: Checked, shape: tuple[int, int]) -> int:
        """Half of the shapes of a function's data to which this one belongs: every other one, 0 or 1."""
        kind = one.operator, one.variant, one.dtype
        if kind not in self._halves:
            self._halves[kind] = _halves(self._evidence, *kind)
        return self._halves[kind][shape]

    def truth(self, one: Checked, plant: Plant, shapes: Sequence[tuple[int, int]]) -> Truth:
        """Loss of a planted function against the best of all configs, over these shapes."""
        matrix = self._matrix(one)
        if matrix is None:
            return Truth(None, True)
        columns = {config: column for column, config in enumerate(matrix.configs)}
        losses = []
        for shape in shapes:
            place = self._places[one.operator, one.variant, one.dtype][shape]
            own = columns.get(choose(plant.tree, *shape))
            if own is not None and matrix.usable[place, own]:
                regret = matrix.regret[place].astype(float)
                if plant.slow in columns:
                    factor = plant.scale(Problem(one.operator, *shape, one.dtype, one.variant), plant.slow)
                    regret[columns[plant.slow]] += MILLION * math.log(factor)
                losses.append(regret[own] - regret[matrix.usable[place]].min())
        return Truth(round(float(np.mean(losses))) if losses else None, len(losses) == len(shapes))

    def _is_legal(self, one: Checked, shape: tuple[int, int]) -> bool:
        problem = Problem(one.operator, *shape, one.dtype, one.variant)
        try:
            operator(one.operator).resolve(choose(one.tree, *shape), problem, self.target, None)
        except IllegalConfigError:
            return False
        return True

    def _matrix(self, one: Checked) -> TimingMatrix | None:
        kind = one.operator, one.variant, one.dtype
        if kind not in self._matrices:
            found = timing_matrix(self._evidence, operator(one.operator), one.variant, one.dtype, self.target)
            self._matrices[kind] = found
            self._places[kind] = {shape: place for place, shape in enumerate(found.problems if found else ())}
        return self._matrices[kind]


def half_table(recording: Evidence, half: int, leaves: int | None) -> Suspect:
    """A table of the plain operators, fitted to one half of the recorded shapes.

    Args:
        recording: the evidence.
        half: 0 or 1.
        leaves: the most leaves of a function; None chooses by cross-validation.
    """
    of = {kind: _halves(recording, *kind) for kind in recording.kinds() if not kind[1]}
    kept = []
    for one in recording.measurements():
        problem = one.problem
        if not problem.variant and of[problem.operator, "", problem.dtype][problem.rows, problem.hidden] == half:
            kept.append(one)
    found = fit(Evidence.from_measurements(kept, recording.runs), FitOptions(leaves=leaves))
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"half_{half}.py"
        path.write_text(module_text(found, f"normtune fit --out {path.name}"))
        return subject.read(path)


def _halves(evidence: Evidence, operator: str, variant: str, dtype: str) -> dict[tuple[int, int], int]:
    """The half of each measured shape of a function, as the fields of a chessboard have two colours."""
    part = evidence.part(operator, variant, dtype)
    rows, hidden = (sorted(set(part[name].tolist())) for name in ("rows", "hidden"))
    shapes = set(zip(part["rows"].tolist(), part["hidden"].tolist(), strict=True))
    return {shape: (rows.index(shape[0]) + hidden.index(shape[1])) % 2 for shape in shapes}
