"""A search chooses the configs and problems to measure next, and decides when to stop.

In: the tasks of a plan (problems with their legal configs), the store's coverage of them, and the time left. Out: tasks
to measure, and for each of them batches of blocks of rounds. A search knows neither device nor store. Its caller
(`sweep`) compiles ahead, gates, keeps the budget, survives configs that crash and stores the outcomes.

To write one, put a subclass of `Search` into a file of this folder and one line into `registry`. The
caller then makes these calls:

1. `Search(tasks, previous)`, once per sweep. `previous` holds the measurements with the present kernels, failures
   included. A config that is not in it was never measured, or has to be measured again.
2. `pending()` returns the problems that are not done.
3. `ask()`, repeatedly, yields the tasks worth measuring now, the best first. Binaries are compiled ahead in this
   order, for these tasks only. The caller takes the first task that is compiled and fits into the time left. A task may
   hold some of a problem's configs, and a problem may return in a later task. Times are compared only within rounds, so
   new configs need an anchor: the best config timed before. The sweep ends when `ask` yields no task, or none fits.
4. `race(task)` for the task that was taken; a generator:

       def race(self, task):
           alive = task.configs
           while len(alive) > 4:
               samples = yield Batch(alive, 1)  # a failed config has no samples
               alive = fastest_half([config for config in alive if config in samples], samples)
           yield Batch(alive, 5)

   It yields a batch of configs of the task and receives all samples of the task so far, including those of the copy,
   which is timed beside every batch. All of a task is stored at once when the generator ends.
5. `tell(task, outcomes)` with the outcomes of the task. After empty outcomes (the task could not be measured now),
`ask` must not yield the task again, nor ever a config that failed.

The candidates of a large space are a `plan.pool.Pool`, which gives a config its launch when it is asked for: a search
that leaves configs out takes some of them by `task.subset`, and others by `Pool.of` and `draw`. Tasks that it yields
hold candidates, never a pool.

A sweep that was stopped begins its search again, with all that is stored. `report()` has what only some searches have
to say.

A search that visits each problem once is best a subclass of `by_problem.ByProblem`, as `exhaustive`. A sampler per
problem yields tasks of a few configs; while those of one problem are compiled, those of others are measured.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from normtune.kernels.config import Config
from normtune.kernels.problem import Problem
from normtune.results.records import Outcome
from normtune.tuner.plan.plan import Task

if TYPE_CHECKING:
    from normtune.results.records import Coverage


class Batch(NamedTuple):
    """Configs timed together in `blocks` blocks of rounds, by default with the copy beside them."""

    configs: Sequence[Config]
    blocks: int
    with_copy: bool = True


class Samples(NamedTuple):
    """Times of one config: round numbers, ascending, and nanoseconds."""

    rounds: list[int]
    nanoseconds: list[int]


Race: TypeAlias = Generator[Batch, Mapping[Config, Samples], None]
Previous: TypeAlias = "Mapping[Problem, Mapping[Config, Coverage]]"


def medians_of(coverage: "Mapping[Config, Coverage]") -> dict[Config, int]:
    """Median times, ns, of the stored configs of a problem that have one."""
    return {config: state.median_ns for config, state in coverage.items() if state.median_ns is not None}


class Search(ABC):
    """The base class of searches; see the module.

    Args:
        tasks, previous: of the plan, and stored measurements.

    Attributes:
        name: in the registry, and in the protocol of the stored run.
        leaves_out: whether it leaves configs out; it then takes `advice`, `seed`, `most`, `devices`.
    """

    name: str
    leaves_out = False

    @abstractmethod
    def __init__(self, tasks: Sequence[Task], previous: Previous) -> None: ...

    @abstractmethod
    def pending(self) -> Sequence[Task]:
        """The tasks of the problems that are not done, each with about as many configs as will be timed.

        They are in about the order of `ask`.
        """

    @abstractmethod
    def ask(self) -> Iterator[Task]:
        """The tasks worth measuring now, the best first; pure."""

    @abstractmethod
    def race(self, task: Task) -> Race:
        """The batches of a task, whose measurement begins now; again, if the device of the first time was lost."""

    @abstractmethod
    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Receive the outcomes of a task, the copy included; empty if it could not be measured."""

    def report(self) -> Mapping[str, list[str]]:
        """What only some searches have to say, by name.

        `unguided`: operators and dtypes in which it knew nothing of configs that it had not timed. `refinement`: lines
        about the loss that a table may have where nothing was measured.
        """
        return {}


# Creates a search: its class, or a `partial` of it with options.
Strategy: TypeAlias = Callable[[Sequence[Task], Previous], Search]
