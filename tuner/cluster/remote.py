"""A worker on a node of a cluster, as the process that drives a device is seen by a bench."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

from normtune.errors import NormtuneError
from normtune.results.parallel.connect import in_one_line
from normtune.results.parallel.operator_files import files_of_operators
from normtune.tuner.compiling.kernel_cache import Folder
from normtune.tuner.device.engine import DeviceGoneError, Identity, NoMemoryError, Opener
from normtune.tuner.device.limits import Limits
from normtune.tuner.device.worker import START_SECONDS, WorkerLostError

# A node that does not answer so long after the limit of a step is lost, whatever Ray knows.
GRACE_SECONDS = 60.0
_END_SECONDS = 15.0


class ActorLostError(DeviceGoneError):
    """The actor or its node is gone, for which no config is to blame."""


class RemoteWorker:
    """The worker of an actor; an `engine.Driver`. A lost worker is started again by the same actor.

    Args:
        ray: connected.
        actor: an `on_node.Node`.
        name: of the device.
        archives: Ray's objects with the files that can be brought to the node, by kernel.

    Attributes:
        identity, limits: of the engine and its device, once it is open.
        is_lost: whether the actor or its node is gone.
    """

    def __init__(self, ray: ModuleType, actor: Any, name: str, archives: Mapping[str, Any]) -> None:
        self.actor = actor
        self._ray, self._name, self._archives = ray, name, archives
        self._brought: set[str] = set()
        self._refused = 0
        self._opening: Any = None
        self.identity: Identity
        self.limits: Limits
        self.is_lost = False

    def start(self, opener: Opener, folder: Folder | None = None) -> "RemoteWorker":
        """Start the worker in place of the last one."""
        self._opening = self.actor.open.remote(opener, files_of_operators())
        return self

    def open(self) -> None:
        """Wait until the engine is open, as `Driver.open`."""
        self.identity, self.limits = self._answer(self._opening, START_SECONDS)

    def supply(self, kernels: Collection[str]) -> None:
        """Bring kernels from Ray's object store to the node; what does not arrive is compiled there."""
        lacking = [kernel for kernel in kernels if kernel in self._archives and kernel not in self._brought]
        if not lacking:
            return
        self._brought.update(lacking)
        answer = self.actor.supply.remote(lacking, *{self._archives[kernel] for kernel in lacking})
        with suppress(self._ray.exceptions.RayError):  # a lost actor fails the next step
            self._refused += self._ray.get(answer, timeout=GRACE_SECONDS)

    def call(self, step: str, *arguments: Any, seconds: float) -> Any:
        """The engine's answer to a step, as `Driver.call`.

        Raises:
            ActorLostError: the actor or its node is gone.
        """
        return self._answer(self.actor.call.remote(step, arguments, seconds), seconds)

    def kill(self) -> None:
        """End the actor, as `Driver.kill`."""
        with suppress(Exception):  # it, or Ray, is gone
            self._ray.kill(self.actor)

    def abandon(self) -> None:
        """End the actor without waiting."""
        self.kill()

    def close(self) -> dict[str, object]:
        """End the worker, then the actor; returns the summary of the clocks."""
        summary: dict[str, object] = {}
        with suppress(Exception):
            summary = self._ray.get(self.actor.clear.remote(), timeout=_END_SECONDS)
        self.kill()
        return summary | ({"binaries_refused": self._refused} if self._refused else {})

    def _answer(self, answer: Any, seconds: float) -> Any:
        try:
            return self._ray.get(answer, timeout=seconds + GRACE_SECONDS)
        except self._ray.exceptions.RayTaskError as error:  # of the step, not of the node
            if isinstance(error.cause, WorkerLostError | NoMemoryError | NormtuneError):
                raise error.cause from None
            raise RuntimeError(f"the actor of {self._name} failed:\n{error}") from None
        except self._ray.exceptions.RayError as error:
            self.is_lost = True
            self.kill()  # of a node that does not answer: it would keep the GPU
            raise ActorLostError(f"its actor is lost, {in_one_line(error)}") from None
