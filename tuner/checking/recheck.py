"""Measures the probes of a check in the loop of a sweep, most informative first, while its session wants them.

In: a `CheckSession`, a bench. Out: the outcomes, which the session learns, and the `Work` with its counts. Functions
with a probe of the same problem share a race, as a store keeps the times of a config once per run.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from tempfile import TemporaryDirectory

from normtune.kernels.config import Config
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem
from normtune.results.database.store import Store
from normtune.results.records import Outcome
from normtune.tuner.checking.session import CheckSession, ProbeRequest
from normtune.tuner.device.bench import Bench
from normtune.tuner.plan.plan import Plan, Task, candidates, fitting
from normtune.tuner.search.adaptive import Adaptive, two_batches
from normtune.tuner.search.protocol import Race, Search
from normtune.tuner.sweep.loop import measure as measure_work
from normtune.tuner.sweep.work import Work

# The probes of each task, with the config of the task that has the launch of the table's.
Probes = Mapping[Task, Sequence[tuple[ProbeRequest, Config]]]


class ProbeSearch(Search):
    """A `protocol.Search`; a task that the session does not want now it may want later."""

    name = Adaptive.name

    def __init__(self, tasks: Sequence[Task], session: CheckSession, probes: Probes) -> None:
        self._session, self._probes = session, {task: probes[task] for task in tasks}

    def pending(self) -> Sequence[Task]:
        """The tasks with a probe that the session wants."""
        return [task for task, probes in self._probes.items() if any(self._session.wants(probe) for probe, _ in probes)]

    def ask(self) -> Iterator[Task]:
        """As `pending`."""
        return iter(self.pending())

    def race(self, task: Task) -> Race:
        """The batches of `adaptive`."""
        return two_batches(task.configs)

    def tell(self, task: Task, outcomes: Mapping[Config, Outcome]) -> None:
        """Pass the outcomes to the session for each probe of the task."""
        for probe, config in self._probes.pop(task):
            if outcomes:
                self._session.learn(probe, config, outcomes)


def measure(session: CheckSession, bench: Bench, seconds: float | None, store: Store | None = None) -> Work:
    """Measure a session's probes until none is needed or the seconds, if any, are over; closes the bench at the end.

    Args:
        session: of the check.
        bench: the device.
        seconds: probes that would probably end later do not begin; None for no limit.
        store: for the measurements, one transaction per task; None to keep none.

    Returns:
        The work, with its counts.

    Raises:
        NormtuneError: the device or the store failed, or no problem fits into the free memory.
    """
    of_problem: dict[Problem, list[ProbeRequest]] = {}
    for probe in session.probes:
        of_problem.setdefault(probe.problem, []).append(probe)
    probes_of: dict[Task, list[tuple[ProbeRequest, Config]]] = {}
    for problem, probes in of_problem.items():
        spec = operator(problem.operator)
        configs = {config for probe in probes for config in (probe.config, *probe.rivals)}
        legal, _ = candidates(spec, configs, problem, bench.target)
        of_launch = {candidate.launch: candidate.config for candidate in legal}
        launches = [spec.launch(probe.config, problem, bench.target) for probe in probes]
        probes_of[Task(problem, tuple(legal))] = [*zip(probes, map(of_launch.__getitem__, launches), strict=True)]
    plan = fitting(Plan(tuple(probes_of), {}), bench.free_bytes)
    work = Work.of(plan, ProbeSearch(plan.tasks, session, probes_of), {})
    if not work.backlog.tasks:
        bench.close()
        return work
    with ExitStack() as closing:
        if store is None:
            folder = closing.enter_context(TemporaryDirectory(prefix="normtune-"))
            store = closing.enter_context(Store.open(f"sqlite:///{folder}/check.db"))
        measure_work([(work, [bench])], store, seconds)
    return work
