"""A search in the state in which an interrupted sweep of the same request left it.

In: what was known when the request began, and its measurements in the order in which they were stored. Out: the search,
begun from the same state, that asked for the same tasks and was told the same outcomes: what it does next depends
neither on the stop nor on which binaries were compiled first. Where it would not ask for a stored task, because the
code, a table or the stored data have changed, the search begins anew with all that is known.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from normtune.kernels.config import COPY, Config
from normtune.results.records import Measurement, Outcome
from normtune.tuner.plan.plan import Task
from normtune.tuner.plan.resume import Begun
from normtune.tuner.search.protocol import Known, Search, Strategy


def resumed(
    tasks: Sequence[Task], known: Known, strategy: Strategy, read_begun: Callable[[Collection[str]], Begun]
) -> Search:
    """The search of a request that goes on as it began, which `read_begun` reads, or else with all that is `known`."""
    before, log = read_begun({task.problem.operator for task in tasks})
    if log:
        search = strategy(tasks, before)
        if _tell_again(search, log):
            return search
    return strategy(tasks, known)


def _tell_again(search: Search, log: Sequence[Measurement]) -> bool:
    """Tell a search the outcomes of its tasks; whether it asked for all of them."""
    done = 0
    while done < len(log):
        search.left()
        found = _asked(search, log, done)
        if found is None:  # a thread may still choose it
            search.wait()
            found = _asked(search, log, done)
        if found is None:
            return False
        task, outcomes = found
        search.race(task).close()
        search.tell(task, outcomes)
        done += len(outcomes)
    return True


def _asked(search: Search, log: Sequence[Measurement], start: int) -> tuple[Task, Mapping[Config, Outcome]] | None:
    """The task that a search asks for now whose outcomes are the next ones, with them; None without it."""
    tasks = [task for task in search.ask(math.inf) if task.problem == log[start].problem]
    return next(((task, outcomes) for task in tasks if (outcomes := _outcomes(task, log, start))), None)


def _outcomes(task: Task, log: Sequence[Measurement], start: int) -> Mapping[Config, Outcome]:
    """The outcomes of a task, if they are the next ones; else none."""
    for configs in ([*task.configs, COPY], task.configs):
        rows = log[start : start + len(configs)]
        if [(row.problem, row.config) for row in rows] == [(task.problem, config) for config in sorted(configs)]:
            return {
                row.config: Outcome(row.status, row.reason, row.rounds.tolist(), row.samples.tolist(), row.code)
                for row in rows
            }
    return {}
