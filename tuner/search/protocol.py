"""A search: it says which configs of which problems are measured next, and when that is enough.

In: the tasks of a plan (problems with their legal configs), what the store knows of them, and the time that is left.
Out: tasks to measure, and for each of them batches of blocks of rounds. A search knows no device and no store: it is
asked and told. Whoever asks (`sweep`, `recheck`) compiles ahead, gates, keeps the budget, survives configs that crash
and stores what came back.

To write one, put a class with the methods of `Search` into a file of this folder and one line into `registry`. Then

1. it is made, once a sweep: `Search(tasks, known)`. What `known` says of a config was measured with the present
   kernels; a failure is known like a time. A config that is not in it was never measured, or is to be measured again.
2. `left()` names the problems that are not done. None: there is nothing to do. So a sweep that is resumed asks whether
   it is complete.
3. Over and over, `ask(seconds)` is iterated for the tasks that are worth measuring now, the best first. Binaries are
   compiled ahead in this order and for no other task. The first task is taken that is compiled and fits into the time
   that is left, so later ones may be taken before it. A task may be a part of a problem's configs, and a problem may
   come back in a later task. Times are compared only within rounds, so an anchor goes with new configs: the best that
   was timed before. The sweep ends where nothing is asked for, or nothing fits.
4. `race(task)` is called for the task that was taken, and is a generator:

       def race(self, task):
           alive = task.configs
           while len(alive) > 4:
               samples = yield Batch(alive, 1)  # who failed has no samples
               alive = fastest_half([config for config in alive if config in samples], samples)
           yield Batch(alive, 5)

   It yields a batch of configs of the task, and is sent all samples that the task has by then, those of the copy,
   which is timed beside every batch, included. All of a task is stored at once when the generator ends.
5. `tell(task, outcomes)` says what came of the task. No outcomes: it could not be measured now, and is not to be asked
   for again. Neither is a config that failed.

A search that turns to each problem once is a `by_problem.ByProblem`: `exhaustive` says nothing but its batches. A
sampler with `ask` and `tell` of its own for each problem asks for tasks of a few configs; while the next ones of one
problem are compiled, others are measured. A model over all shapes asks for tasks of one config and an anchor.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.tuner.plan.outcome import Outcome
from normtune.tuner.plan.plan import Task

if TYPE_CHECKING:
    from normtune.results.database.store import Coverage


class Batch(NamedTuple):
    """Configs that are timed together, in so many blocks of rounds."""

    configs: Sequence[Config]
    blocks: int


class Samples(NamedTuple):
    """Times of one config: round numbers, ascending, and nanoseconds."""

    rounds: list[int]
    nanoseconds: list[int]


Race: TypeAlias = Generator[Batch, Mapping[Config, Samples], None]
Known: TypeAlias = "Mapping[Problem, Mapping[Config, Coverage]]"


class Search(Protocol):
    """See the module.

    Attributes:
        name: in the registry, and of the run that is stored.
        expected_blocks: blocks that a candidate of `left` gets on average, for estimates of time.
    """

    name: str
    expected_blocks: float

    def __init__(self, tasks: Sequence[Task], known: Known) -> None: ...

    def left(self) -> Sequence[Task]:
        """The problems that are not done, each with all that may still be asked for, in about the order of asking."""
        ...

    def ask(self, seconds: float) -> Iterator[Task]:
        """The tasks worth measuring now, the best first; pure.

        Args:
            seconds: what is left of the budget, infinite without one.
        """
        ...

    def race(self, task: Task) -> Race:
        """The batches of a task that was asked for and is begun now."""
        ...

    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Hear what came of a task, the copy included; nothing where it could not be measured."""
        ...
