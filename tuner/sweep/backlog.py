"""The work ahead of a sweep: the search over what the store lacks, and its counts.

In: a store, a plan and a strategy. Out: the search, a `Backlog`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from normtune.tuner.plan.plan import Plan, Task
from normtune.tuner.plan.resume import Stored, previous_of
from normtune.tuner.search.protocol import Search, Strategy


class Backlog(NamedTuple):
    """The work ahead of a sweep.

    Attributes:
        plan: the wanted problems and configs.
        tasks: the tasks of the search, in about the order of measuring.
        known: number of problems that are complete in the store.
        binaries: number of binaries to compile.
    """

    plan: Plan
    tasks: Sequence[Task]
    known: int
    binaries: int

    @classmethod
    def of(cls, plan: Plan, tasks: Sequence[Task]) -> "Backlog":
        """The backlog of a search over a plan; `tasks` are those left."""
        return cls(plan, tasks, len(plan.complete(tasks)), len(Plan(tuple(tasks), {}).jobs()))

    @property
    def cells(self) -> int:
        """Number of (problem, config) pairs to be timed."""
        return Plan(tuple(self.tasks), {}).cells()


def search_of(plan: Plan, strategy: Strategy, stored: Stored, retry_failed: bool = False) -> Search:
    """The search over what is not stored.

    Args:
        plan: the wanted problems and configs.
        strategy: creates the search.
        stored: coverage of the store.
        retry_failed: whether to repeat configs that are stored as crashed or timed out.
    """
    return strategy(plan.tasks, previous_of(stored, {task.problem.operator for task in plan.tasks}, retry_failed))
