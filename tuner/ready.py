"""The work of a sweep, from a request, a store and the identity of a device, which need not be open.

In: these. Out: `Ready`: the plan, the stored measurements, with the fingerprints of their compiled code, and the search
over what is left.
"""

from typing import NamedTuple

from normtune.kernels.target import Target
from normtune.results.database.store import Store
from normtune.results.records import Device
from normtune.tuner.device.identity import renew
from normtune.tuner.plan.plan import Plan
from normtune.tuner.plan.resume import Stored, known, stale_plan
from normtune.tuner.request import Request, Wanted
from normtune.tuner.search.protocol import Search, Strategy


class Ready(NamedTuple):
    """The work of a sweep on a device.

    Attributes:
        device: that is planned for.
        target: its limits.
        lines: about stored measurements whose kernels changed.
        stored: state of what is stored.
        plan: the wanted problems and configs; of stale ones alone, if these are asked for.
        search: over the plan, with what is stored.
    """

    device: Device
    target: Target
    lines: list[str]
    stored: Stored
    plan: Plan
    search: Search

    def is_of(self, device: Device, target: Target) -> bool:
        """Whether it holds for a device."""
        return (self.device.kind, self.target) == (device.kind, target)

    def strategy(self, request: Request, plan: Plan) -> Strategy:
        """What makes the search over a plan: the same search, if it is the same plan."""
        return (lambda tasks, known: self.search) if plan.tasks == self.plan.tasks else request.search()


def ready(request: Request, wanted: Wanted, store: Store, device: Device, target: Target) -> Ready:
    """Compare what is stored with what is wanted, and correct stored fingerprints.

    Raises:
        NormtuneError: the store failed, or no compiler can start to compare code.
    """
    held = store.coverage(device, request.regime)
    comparison = renew(store, device, target, request.regime, held)
    stored = comparison.applied(held)
    plan = stale_plan(stored, target) if request.stale else wanted.plan(request.chosen.space, target)
    names = {task.problem.operator for task in plan.tasks}
    search = request.search()(plan.tasks, known(stored, names, request.retry_failed))
    return Ready(device, target, comparison.lines(), stored, plan, search)
