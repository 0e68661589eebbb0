"""The work ahead of a sweep: the search over what the store lacks, and how long it will take.

In: a device, a store, a plan and a strategy. Out: the search, an `Outlook`.
"""

from typing import Any, NamedTuple

from normtune.results.database.store import Store
from normtune.results.records import REPLAY_PREFIX, Device
from normtune.tuner.device.bench import Bench
from normtune.tuner.device.unopened import AbsentGpu
from normtune.tuner.plan.estimate import Estimate, Pace, corrected, python_seconds
from normtune.tuner.plan.plan import Plan, Task
from normtune.tuner.plan.resume import Stored, known
from normtune.tuner.search.protocol import Search, Strategy


class Outlook(NamedTuple):
    """The work ahead of a sweep.

    Attributes:
        plan: the wanted problems and configs.
        tasks: the tasks of the search, in about the order of measuring.
        known: number of problems that are complete in the store.
        binaries: number of binaries to compile.
        estimate: expected duration of all tasks.
        budget_seconds: rest of the budget; None for no limit.
        longest: how many times as long gate and timing may take, where the search cannot say how long it will be.
        is_replay: whether nothing is timed, so that the estimate, which is of a GPU, says nothing.
    """

    plan: Plan
    tasks: tuple[Task, ...]
    known: int
    binaries: int
    estimate: Estimate
    budget_seconds: float | None
    longest: float = 1.0
    is_replay: bool = False

    @property
    def cells(self) -> int:
        """Number of (problem, config) pairs to be timed."""
        return Plan(self.tasks, {}).cells()


def look_ahead(
    bench: Bench | AbsentGpu,
    store: Store | None,
    plan: Plan,
    strategy: Strategy,
    budget_seconds: float | None = None,
    retry_failed: bool = False,
    stored: Stored | None = None,
    devices: int = 1,
) -> Outlook:
    """The outlook of a sweep; it measures only the speed of the machine.

    Args:
        bench: the device.
        store: with what was measured; None if there is none.
        plan: the wanted problems and configs.
        strategy: creates the search.
        budget_seconds: limit of the time; None without one.
        retry_failed: whether to repeat configs that are stored as crashed or timed out.
        stored: coverage of the store; None to load it.
        devices: number of like devices that share the work.
    """
    if stored is None:
        stored = store.coverage(bench.device, bench.regime) if store else {}
    search = search_of(plan, strategy, stored, retry_failed)
    pace = pace_of(bench, store, search)[0]
    return outlook_of(bench.device, plan, search, tuple(search.left()), pace, budget_seconds, devices)


def search_of(plan: Plan, strategy: Strategy, stored: Stored, retry_failed: bool) -> Search:
    """The search over what is not stored; arguments as in `look_ahead`."""
    return strategy(plan.tasks, known(stored, {task.problem.operator for task in plan.tasks}, retry_failed))


def outlook_of(
    device: Device,
    plan: Plan,
    search: Search,
    tasks: tuple[Task, ...],
    pace: Pace,
    budget_seconds: float | None,
    devices: int = 1,
) -> Outlook:
    """The outlook of a search; `tasks` are those left, to be shared by so many devices like `device`."""
    binaries, longest = len(Plan(tasks, {}).jobs()), search.longest
    whole = pace.estimate(tasks)
    estimate = whole._replace(gate=whole.gate / devices, timing=whole.timing / devices)
    is_replay = device.uuid.startswith(REPLAY_PREFIX)
    return Outlook(plan, tasks, len(plan.complete(tasks)), binaries, estimate, budget_seconds, longest, is_replay)


def pace_of(bench: Bench | AbsentGpu, store: Store | None, search: Search) -> tuple[Pace, dict[str, Any]]:
    """Speed of this machine, and the same as entries of a run's protocol."""
    speed, python = bench.speed(), python_seconds()
    correction = corrected(store.runs(), bench.device, bench.regime) if store else 1.0
    recorded = {"speed": speed._asdict() | {"python_seconds": round(python, 5)}, "correction": round(correction, 3)}
    return Pace(speed, bench.target, search.expected_blocks, python, correction, bench.regime), recorded
