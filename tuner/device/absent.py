"""In place of a missing GPU, for plans: a `Bench` with the limits and the speed of an H200 that cannot measure."""

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
    """The limits of an H200, without the device."""

    name = ""
    target = TARGETS["sm_90"]
    device = Device("no GPU here, planned as for an H200", "sm_90", target.sms, target.l2_bytes, 0, "absent", "none")

    def __init__(self, regime: str = COLD) -> None:
        self.regime = regime
        self.software: dict[str, str] = {}
        self.free_bytes: int | None = None

    def open(self) -> None:
        """Do nothing."""

    def expect(self, target: str) -> None:
        """Do nothing."""

    def speed(self) -> Speed:
        """Speed measured on an H200."""
        return H200

    def prepare(self, tasks: Iterable[Task], on_progress: Callable[[int], None] | None = None) -> None:
        """Do nothing: no binary is needed."""

    def compiled(self, task: Task, seconds: float | None = None) -> bool:
        """Always False: nothing is compiled."""
        return False

    def examine(self, tasks: Iterable[Task]) -> None:
        """Do nothing: nothing is launched."""

    def measure(self, task: Task, race: Race) -> Mapping[Config, Outcome]:
        """Raise NotImplementedError: nothing can be measured."""
        raise NotImplementedError("a GPU that is not here measures nothing")

    def stop(self) -> None:
        """Do nothing: nothing is measured."""

    def phases(self) -> Phases:
        """Zero seconds."""
        return Phases(0.0, 0.0, 0.0, {})

    def close(self) -> dict[str, object]:
        """Do nothing; no clocks to summarize."""
        return {}
