"""A GPU that is absent, to plan for.

In: nothing. Out: a `Bench` with the limits and the speed of an H200 with 16 cores, which measures nothing.
"""

from collections.abc import Callable, Iterable, Mapping

from normtune.kernels.config import Config
from normtune.kernels.target import TARGETS
from normtune.results.records import Device
from normtune.results.regimes import COLD
from normtune.tuner.device.open import Outcome, Phases
from normtune.tuner.plan.estimate import H200, Speed
from normtune.tuner.plan.plan import Task
from normtune.tuner.search.protocol import Race


class AbsentBench:
    """An H200 known only by its limits."""

    target = TARGETS["sm_90"]
    device = Device("no GPU here, planned as for an H200", "sm_90", target.sms, target.l2_bytes, 0, "absent", "none")

    def __init__(self, regime: str = COLD) -> None:
        self.regime = regime
        self.software: dict[str, str] = {}
        self.free_bytes: int | None = None

    def speed(self) -> Speed:
        """As measured on one."""
        return H200

    def prepare(self, tasks: Iterable[Task], told: Callable[[int], None] | None = None) -> None:
        """Nothing is compiled."""

    def compiled(self, task: Task, seconds: float | None = None) -> bool:
        """Nothing is."""
        return False

    def measure(self, task: Task, race: Race) -> Mapping[Config, Outcome]:
        """It cannot.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("a GPU that is not here measures nothing")

    def phases(self) -> Phases:
        """No time was spent."""
        return Phases(0.0, 0.0, 0.0, {})

    def close(self) -> dict[str, object]:
        """Nothing to release."""
        return {}
