"""What like devices measure: a search, the tasks that are pending, and the counts.

In: a plan, the search over it, the coverage of a store. Out: `Work`, which `loop` measures.
"""

from collections.abc import Sequence
from typing import NamedTuple

from normtune.tuner.plan.plan import Plan, Task
from normtune.tuner.plan.resume import Stored, without_times
from normtune.tuner.search.protocol import Search
from normtune.tuner.sweep.summary import Summary


class Backlog(NamedTuple):
    """The work ahead of a sweep.

    Attributes:
        plan: the requested problems and configs.
        tasks: the pending tasks of the search, in about the order of measuring.
        known: number of problems that are complete in the store.
        binaries: number of binaries to compile.
    """

    plan: Plan
    tasks: Sequence[Task]
    known: int
    binaries: int

    @classmethod
    def of(cls, plan: Plan, tasks: Sequence[Task]) -> "Backlog":
        """The backlog of a search over a plan with these pending tasks."""
        return cls(plan, tasks, len(plan.complete(tasks)), len(Plan(tuple(tasks), {}).jobs()))

    @property
    def cells(self) -> int:
        """Number of (problem, config) pairs to be timed."""
        return Plan(tuple(self.tasks), {}).cells()


class Work(NamedTuple):
    """What like devices measure together.

    Attributes:
        search: chooses tasks and rounds.
        backlog: the tasks that were pending before.
        summary: counts of what was and is measured.
        key: of the request, stored when all is measured; None where that follows from the store.
    """

    search: Search
    backlog: Backlog
    summary: Summary
    key: str | None = None

    @classmethod
    def of(cls, plan: Plan, search: Search, stored: Stored, option: str = "", key: str | None = None) -> "Work":
        """The work of a search.

        Args:
            plan: of the search.
            search: over the plan.
            stored: coverage of the store.
            option: words of a printed command that name the store.
            key: see the class.
        """
        backlog = Backlog.of(plan, tuple(search.pending()))
        complete, count = plan.complete(backlog.tasks), len(backlog.tasks)
        failed = without_times(stored, complete)
        summary = Summary(option, known=len(complete), known_failed=failed, total=count, left=count)
        return cls(search, backlog, summary, key)
