"""All rounds for every config: the exhaustive search, for recordings, and tasks that come before another search."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from normtune.kernels.config import Config
from normtune.results.records import Outcome
from normtune.tuner.plan.plan import Task
from normtune.tuner.search.by_problem import ByProblem
from normtune.tuner.search.protocol import Batch, Race, Search
from normtune.tuner.timing.protocol import ALL_BLOCKS


def all_rounds(task: Task) -> Race:
    """All rounds for every config of a task."""
    yield Batch(task.configs, ALL_BLOCKS)


class Exhaustive(ByProblem):
    """A `protocol.Search`."""

    name = "exhaustive"
    least_blocks = ALL_BLOCKS

    def batches(self, task: Task) -> Race:
        """See `all_rounds`."""
        return all_rounds(task)


class First(Search):
    """A `protocol.Search`: tasks with all rounds before those of another search, because a budget may end before these.

    Args:
        tasks: the first ones.
        search: the other search, which hears of its own tasks only.
        learn: receives the outcomes of the first ones.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        search: Search,
        learn: Callable[[Task, Mapping[Config, Outcome]], None] = lambda task, outcomes: None,
    ) -> None:
        self._first, self._search, self._learn = list(tasks), search, learn
        self.name = search.name

    def pending(self) -> Sequence[Task]:
        """The tasks of both that are not done."""
        return [*self._first, *self._search.pending()]

    def ask(self) -> Iterator[Task]:
        """The first tasks, then those of the other search."""
        yield from list(self._first)
        yield from self._search.ask()

    def race(self, task: Task) -> Race:
        """All rounds, or the batches of the other search."""
        return all_rounds(task) if any(task is one for one in self._first) else self._search.race(task)

    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Pass outcomes to the one that asked for them."""
        others = [one for one in self._first if one is not task]
        learn = self._search.tell if len(others) == len(self._first) else self._learn
        self._first = others
        learn(task, outcomes)

    def report(self) -> Mapping[str, list[str]]:
        """As that of the other search."""
        return self._search.report()
