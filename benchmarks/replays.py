"""A recording in this process: thousands of checks without a worker, and the true loss of a function.

In: evidence of one device. Out: a bench that answers a check, and the mean loss of a planted function over all shapes.
"""

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from normtune.benchmarks.planted import Plant
from normtune.heuristics.fitting.options import FitOptions
from normtune.heuristics.fitting.pipeline import fit
from normtune.heuristics.regret.fixed_log import MILLION
from normtune.heuristics.regret.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.writing.emit import module_text
from normtune.kernels.config import Config
from normtune.kernels.key import Key
from normtune.kernels.operator import IllegalConfigError, operator
from normtune.kernels.problem import Problem, Shape
from normtune.kernels.tablefile.tree import choose
from normtune.results.evidence import Evidence
from normtune.results.records import Outcome
from normtune.tests.heuristics.made_up import as_command
from normtune.tuner.checking import subject
from normtune.tuner.checking.subject import Checked, TableUnderTest
from normtune.tuner.device.engine import Phases
from normtune.tuner.device.replay import ReplayEngine, RoundsByBlock
from normtune.tuner.plan.plan import Task
from normtune.tuner.search.protocol import Race
from normtune.tuner.search.rounds import timed

# Least and most shapes of a user's own table, and the most sizes of an axis.
_OWN_SHAPES, _OWN_SIZES = (3, 30), 8


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
        self._known: dict[Problem, dict[Config, Outcome | RoundsByBlock]] = {}

    def _recorded(self, problem: Problem) -> dict[Config, Outcome | RoundsByBlock]:
        if problem not in self._known:
            self._known[problem] = super()._recorded(problem)
        return self._known[problem]


class Replay:
    """Evidence as a bench, without a process of its own; what a check asks of a `Bench`.

    Args:
        name: of the evidence.
        evidence: measurements of one device.

    Attributes:
        races: number of races after which its time is used up; None for no limit.
    """

    def __init__(self, name: str, evidence: Evidence) -> None:
        self.name = name
        self._engine = _Remembering(name, evidence)
        self.device, self.target, self.software, self.free_bytes, _, self.regime = self._engine.identify()
        self.races: int | None = None
        self._done = 0
        self._evidence = evidence
        self._halves: dict[Key, dict[Shape, int]] = {}
        self._places: dict[Key, dict[Shape, int]] = {}
        self._matrices: dict[Key, TimingMatrix | None] = {}

    def seeded(self, seed: int, races: int | None) -> "Replay":
        """The same evidence with another seed, for at most `races` races."""
        self._engine.draw_anew(seed)
        self.races, self._done = races, 0
        return self

    def prepare(self, tasks: Iterable[Task], told: Callable[[int], None] | None = None) -> None:
        """Do nothing: no binary is needed."""

    def compiled(self, task: Task, seconds: float | None = None) -> bool:
        return self.races is None or self._done < self.races

    def examine(self, tasks: Iterable[Task]) -> None:
        """Do nothing: nothing is launched."""

    def measure(self, task: Task, race: Race) -> Mapping[Config, Outcome]:
        self._done += 1
        configs = [candidate.config for candidate in task.candidates]
        self._engine.begin(task.problem, task.candidates)
        outcomes = dict(self._engine.warm_up(configs))
        alive = [config for config in configs if config not in outcomes]
        found = timed(self, alive, race) if alive else {}
        return outcomes | {config: Outcome("ok", "", one.rounds, one.nanoseconds) for config, one in found.items()}

    def block(self, configs: Sequence[Config]) -> dict[Config, list[int]]:
        """One block of a race; see `search.rounds.ProblemSession`."""
        return self._engine.block(configs).times

    def stop(self) -> None:
        """Do nothing: a race ends by itself."""

    def phases(self) -> Phases:
        return Phases(0.0, 0.0, 0.0, {})

    def close(self) -> dict[str, object]:
        """Do nothing: the replay is used again."""
        return {}

    def timed(self, one: Checked) -> list[Shape]:
        """The shapes at which the config of a function has a time or cannot be launched.

        Configs that were recorded on one half of a recording only do not concern the check.
        """
        matrix = self._matrix(one)
        found = []
        for place, shape in enumerate(matrix.problems if matrix else ()):
            if matrix and (matrix.loss(place, choose(one.tree, shape)) is not None or not self._is_legal(one, shape)):
                found.append(shape)
        return found

    def half(self, one: Checked, shape: Shape) -> int:
        """Half of the shapes of a function's data to which this one belongs: every other one, 0 or 1."""
        kind = one.key.usual
        if kind not in self._halves:
            self._halves[kind] = _halves(self._evidence, kind)
        return self._halves[kind][shape]

    def truth(self, one: Checked, plant: Plant, shapes: Sequence[Shape]) -> Truth:
        """Loss of a planted function against the best of all configs, over these shapes."""
        matrix = self._matrix(one)
        if matrix is None:
            return Truth(None, True)
        columns = {config: column for column, config in enumerate(matrix.configs)}
        losses = []
        for shape in shapes:
            place = self._places[one.key.usual][shape]
            own = columns.get(choose(plant.tree, shape))
            if own is not None and matrix.usable[place, own]:
                regret = matrix.regret[place].astype(float)
                if plant.slow in columns:
                    factor = plant.scale(Problem(one.key.usual, *shape), plant.slow)
                    regret[columns[plant.slow]] += MILLION * math.log(factor)
                losses.append(regret[own] - regret[matrix.usable[place]].min())
        return Truth(round(float(np.mean(losses))) if losses else None, len(losses) == len(shapes))

    def _is_legal(self, one: Checked, shape: Shape) -> bool:
        problem = Problem(one.key.usual, *shape)
        try:
            operator(one.key.operator).resolve(choose(one.tree, shape), problem, self.target, None)
        except IllegalConfigError:
            return False
        return True

    def _matrix(self, one: Checked) -> TimingMatrix | None:
        kind = one.key.usual
        if kind not in self._matrices:
            found = timing_matrix(self._evidence, operator(kind.operator), kind, self.target)
            self._matrices[kind] = found
            self._places[kind] = {shape: place for place, shape in enumerate(found.problems if found else ())}
        return self._matrices[kind]


def half_table(recording: Evidence, half: int, leaves: int | None) -> TableUnderTest:
    """A table of the plain operators, fitted to one half of the recorded shapes.

    Args:
        recording: the evidence.
        half: 0 or 1.
        leaves: the most leaves of a function; None chooses by cross-validation.
    """
    of = {key: _halves(recording, key) for key in recording.measured_keys() if not key.modes}
    own = {key: {shape for shape, other in halves.items() if other == half} for key, halves in of.items()}
    return _fitted(recording, own, leaves)


def own_table(recording: Evidence, operators: str, seed: int) -> tuple[TableUnderTest, set[Shape]]:
    """A table of one function, fitted to 3 to 30 shapes as a user would name them, and these shapes.

    They are of up to 8 numbers of rows and 8 hidden sizes: all pairs of these, or some.

    Args:
        recording: the evidence.
        operators: how the names begin of those whose functions take turns.
        seed: of the draw.
    """
    rng = random.Random(f"{seed} {operators}")
    kinds = [key for key in recording.measured_keys() if key.family.startswith(operators) and not key.modes]
    kind = kinds[seed % len(kinds)]
    measured = sorted(_halves(recording, kind))
    own: set[Shape] = set()
    while len(own) < _OWN_SHAPES[0]:
        rows, hidden = (
            set(rng.sample(sizes, min(len(sizes), rng.randint(1, _OWN_SIZES))))
            for sizes in (sorted({shape[axis] for shape in measured}) for axis in (0, 1))
        )
        grid = [shape for shape in measured if shape[0] in rows and shape[1] in hidden]
        own = set(rng.sample(grid, min(len(grid), rng.randint(*_OWN_SHAPES))))
    return _fitted(recording, {kind: own}, None), own


def _fitted(recording: Evidence, shapes: Mapping[Key, Collection[Shape]], leaves: int | None) -> TableUnderTest:
    """The table of these kinds of functions at these shapes."""
    columns = (recording.frame[name].tolist() for name in ("operator", "variant", "dtype", "rows", "hidden"))
    kept = [(rows, hidden) in shapes.get(Key.of(*kind), ()) for *kind, rows, hidden in zip(*columns, strict=True)]
    found = fit(Evidence(recording.frame[kept].reset_index(drop=True), recording.runs), FitOptions(leaves=leaves))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "fitted.py"
        path.write_text(module_text(found, as_command(f"normtune fit --out {path.name}")))
        return subject.read(path)


def _halves(evidence: Evidence, key: Key) -> dict[Shape, int]:
    """The half of each measured shape of a function, as the fields of a chessboard have two colours."""
    part = evidence.part(key)
    rows, hidden = (sorted(set(part[name].tolist())) for name in ("rows", "hidden"))
    shapes = set(zip(part["rows"].tolist(), part["hidden"].tolist(), strict=True))
    return {shape: (rows.index(shape[0]) + hidden.index(shape[1])) % 2 for shape in shapes}
