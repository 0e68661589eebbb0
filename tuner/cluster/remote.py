"""A worker on a node of a cluster, as the process that drives a device is seen by a bench."""

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from normtune.kernels.load_file import loaded
from normtune.results.records import REPLAY_PREFIX
from normtune.tuner.cluster.binaries import Made
from normtune.tuner.compiling.binary_cache import Folder
from normtune.tuner.device.engine import Identity, NoMemoryError, Opener
from normtune.tuner.device.limits import Limits
from normtune.tuner.device.open import DeviceGoneError
from normtune.tuner.device.worker import START_SECONDS, WorkerLostError

# A node that does not answer so long after the limit of a step is lost, whatever Ray knows.
_GRACE_SECONDS = 60.0
_END_SECONDS = 15.0


class ActorLostError(DeviceGoneError):
    """The actor or its node is gone, for which no config is to blame."""


class RemoteWorker:
    """The worker of an actor; an `engine.Driver`. A lost worker is started again by the same actor.

    Args:
        ray: connected.
        actor: an `on_node.Node`.
        name: of the device.
        made: kernels to be brought to the node.

    Attributes:
        identity: of the engine, once it is open.
        limits: of a GPU, once it is open.
        is_lost: whether the actor or its node is gone.
        refused: number of kernels that did not arrive as they were made.
    """

    def __init__(self, ray: ModuleType, actor: Any, name: str, made: Made) -> None:
        self._ray, self._actor, self._name, self._made = ray, actor, name, made
        self._brought: set[str] = set()
        self._opening: Any = None
        self.identity: Identity
        self.limits: Limits | None = None
        self.is_lost = False
        self.refused = 0

    def start(self, opener: Opener, folder: Folder | None = None) -> "RemoteWorker":
        """Start the worker in place of the last one."""
        self._opening = self._actor.open.remote(opener, tuple((path, Path(path).read_bytes()) for path in loaded()))
        return self

    def open(self) -> None:
        """Wait until the engine is open, as `Driver.open`."""
        self.identity = self._answer(self._opening, START_SECONDS)
        if self.limits is None and not self.identity.device.uuid.startswith(REPLAY_PREFIX):
            with suppress(self._ray.exceptions.RayError):  # a lost actor fails the next step
                self.limits = self._ray.get(self._actor.limits.remote(self.identity.device), timeout=_GRACE_SECONDS)

    def supply(self, kernels: Collection[str]) -> None:
        """Bring kernels from Ray's object store to the node; what does not arrive is compiled there."""
        new = set(kernels) - self._brought
        made = {kernel: self._made.digests[kernel] for kernel in new if kernel in self._made.digests}
        if not made:
            return
        self._brought |= made.keys()
        archives = {self._made.objects[kernel] for kernel in made}
        answer = self._actor.supply.remote(self.identity.target.name, made, *archives)
        with suppress(self._ray.exceptions.RayError):  # a lost actor fails the next step
            self.refused += len(self._ray.get(answer, timeout=_GRACE_SECONDS))

    def call(self, step: str, *arguments: Any, seconds: float) -> Any:
        """The engine's answer to a step, as `Driver.call`.

        Raises:
            ActorLostError: the actor or its node is gone.
        """
        return self._answer(self._actor.call.remote(step, arguments, seconds), seconds)

    def kill(self) -> None:
        """End the actor, as `Driver.kill`."""
        with suppress(Exception):  # it, or Ray, is gone
            self._ray.kill(self._actor)

    def abandon(self) -> None:
        """End the actor without waiting."""
        self.kill()

    def close(self) -> dict[str, object]:
        """End the worker, then the actor; returns the summary of the clocks."""
        summary: dict[str, object] = {}
        with suppress(Exception):
            summary = self._ray.get(self._actor.clear.remote(), timeout=_END_SECONDS)
        self.kill()
        return summary | ({"binaries_refused": self.refused} if self.refused else {})

    def _answer(self, answer: Any, seconds: float) -> Any:
        try:
            kind, value = self._ray.get(answer, timeout=seconds + _GRACE_SECONDS)
        except self._ray.exceptions.RayTaskError as error:  # ours, not the node's
            raise RuntimeError(f"the actor of {self._name} failed:\n{error}") from None
        except self._ray.exceptions.RayError as error:
            self.is_lost = True
            raise ActorLostError(f"its actor is lost, {_reason(error)}") from None
        if kind == "lost":
            raise WorkerLostError(*value)
        if kind == "memory":
            raise NoMemoryError(value)
        if kind == "failed":
            raise value
        return value


def _reason(error: Exception) -> str:
    """Why an actor is lost, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "died because" in line or "is dead because" in line), "")
    return (told or (lines[0] if lines else type(error).__name__))[:160]
