"""The GPUs of a cluster, those that join later too.

In: a connected Ray. Out: benches, as of `sweep.devices.Devices`. An actor waits for each GPU that the sweep can use:
Ray starts it where a GPU is free, or its autoscaler starts a node. What is refused stays held until the end, so that no
further actor starts there.
"""

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import ModuleType
from typing import Any, NamedTuple

from normtune.errors import NormtuneError
from normtune.tuner.cluster import on_node
from normtune.tuner.cluster.binaries import Made, TaskPool
from normtune.tuner.cluster.connect import REPLAYS, check_names
from normtune.tuner.cluster.remote import ActorLostError, RemoteWorker
from normtune.tuner.compiling.binaries import Compilers
from normtune.tuner.device.bench import WorkerBench
from normtune.tuner.device.engine import Identity
from normtune.tuner.device.open import ALL, Bench, opener_of

# An actor on a GPU that is lost so often is not started there again.
MOST_LOST = 3
# Actors that wait for a GPU at a time, while others measure.
_WAITING = 8
# Longest wait for the first GPU, which others may use, and then for further ones that start meanwhile.
_FIRST_SECONDS = 900.0
_OTHERS_SECONDS = 5.0
_POLL_SECONDS = 0.05
# Actors that end before they say where they are.
_MOST_UNKNOWN = 20


class _Place(NamedTuple):
    """A GPU: the node and the number there."""

    node: str
    number: str


class _Member(NamedTuple):
    """An actor that said where it is."""

    bench: WorkerBench
    worker: RemoteWorker
    place: _Place


class ClusterDevices:
    """The devices of a cluster; a `sweep.Joining`.

    Args:
        ray: connected.
        address: of the cluster, for messages.
        names: as in `check_names`.
        regime: of the timing.
        closing: closes the benches.

    Attributes:
        lost: why nodes and devices are left out, by name.

    Raises:
        NormtuneError: the cluster has no such device.
    """

    # They have to be opened first.
    identities: Sequence[Identity] = ()

    def __init__(self, ray: ModuleType, address: str, names: str | None, regime: str, closing: ExitStack) -> None:
        check_names(names)
        self.lost: dict[str, str] = {}
        self._ray, self._closing = ray, closing
        self._kind = "replay" if names and names != ALL else "cuda"
        self._opener = opener_of("cuda:0" if names == ALL else names, regime)
        self._resource = REPLAYS if self._kind == "replay" else "GPU"
        self._count = int(ray.cluster_resources().get(self._resource, 0))
        if not self._count:
            wanted = "a GPU" if self._resource == "GPU" else f"the resource {REPLAYS}"
            nodes = sum(node["Alive"] for node in ray.nodes())
            raise NormtuneError(
                f"--ray {address}: none of the {nodes} nodes of the cluster has {wanted}: `ray start` takes --num-gpus "
                "and --resources, `ray status` lists them"
            )
        ray.cloudpickle.register_pickle_by_value(on_node)
        options: dict[str, Any] = {"num_gpus": 1} if self._resource == "GPU" else {"resources": {REPLAYS: 1}}
        self._actor = ray.remote(num_cpus=0, max_restarts=0, **options)(on_node.Node)
        self._facts = on_node.facts()
        self._made = Made()
        self._compilers = Compilers(elsewhere=lambda target: TaskPool(ray, target, self._facts, self._made))
        self._compilers.workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._compilers.enter()  # they stay while no device is there
        self._waiting: dict[Any, Any] = {}
        self._opening: dict[Future[None], _Member] = {}
        self._members: list[_Member] = []
        self._held: list[Any] = []
        self._losses: Counter[_Place] = Counter()
        self._unknown = 0
        self._alike: dict[tuple[str, int], str] = {}
        self._threads = ThreadPoolExecutor(64, "normtune-joining")
        closing.callback(self.close)

    @property
    def joining(self) -> "ClusterDevices":
        """Itself: it has devices that join later."""
        return self

    def start(self) -> list[Bench]:
        """Start actors for all devices that are there; none is known yet."""
        self.want(self._count)
        return []

    def open(self) -> list[Bench]:
        """Wait until a device is open, and a little for others.

        Raises:
            NormtuneError: none can be opened.
        """
        begun, first, opened = time.monotonic(), 0.0, list[Bench]()
        while not opened or ((self._waiting or self._opening) and time.monotonic() < first + _OTHERS_SECONDS):
            self.want(max(1, self._count - len(self._held)))
            more = self.joined()
            first = first if opened or not more else time.monotonic()
            opened += more
            if not opened and (len(self._held) >= self._count or self._unknown > _MOST_UNKNOWN):
                names = {why: [name for name, other in self.lost.items() if other == why] for why in self.lost.values()}
                raise NormtuneError("; ".join(f"{', '.join(found)}: {why}" for why, found in names.items()))
            if not opened and time.monotonic() > begun + _FIRST_SECONDS:
                raise NormtuneError(
                    f"no GPU of the cluster became free in {_FIRST_SECONDS:g} s: `ray status` says who has them"
                )
            time.sleep(_POLL_SECONDS)
        return opened

    def want(self, devices: int) -> None:
        """Let actors wait for as many devices as are wanted and not there, some at a time; end those that are not."""
        there = len(self._opening) + sum(not member.worker.is_lost for member in self._members)
        missing = max(0, devices - there)
        limit = max(_WAITING, self._count - there - len(self._held))
        while len(self._waiting) < min(missing, limit) and self._unknown <= _MOST_UNKNOWN:
            actor = self._actor.remote()
            self._waiting[actor.facts.remote()] = actor
        while len(self._waiting) > missing:
            self._kill(self._waiting.popitem()[1])

    def joined(self) -> list[Bench]:
        """Devices that were opened since the last call."""
        for member in [member for member in self._members if member.worker.is_lost]:
            self._members.remove(member)
            self._losses[member.place] += 1
        arrived = (
            self._ray.wait([*self._waiting], num_returns=len(self._waiting), timeout=0)[0] if self._waiting else ()
        )
        for answer in arrived:
            self._arrived(answer, self._waiting.pop(answer))
        opened: list[Bench] = []
        for future in [future for future in self._opening if future.done()]:
            member = self._opening.pop(future)
            try:
                future.result()
                self._check_alike(member)
            except ActorLostError:
                self._losses[member.place] += 1
            except NormtuneError as error:
                self._leave_out(member.bench.name, str(error), member)
            else:
                self._members.append(member)
                opened.append(member.bench)
        return opened

    def close(self) -> None:
        """End all actors and compilers."""
        for actor in [*self._waiting.values(), *self._held]:
            self._kill(actor)
        for member in self._opening.values():
            member.worker.kill()
        self._threads.shutdown()
        self._compilers.leave()

    def _arrived(self, answer: Any, actor: Any) -> None:
        """Open the device of an actor that has started, unless its node or GPU is left out."""
        try:
            facts = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:  # with its node
            self._unknown += 1
            if self._unknown > _MOST_UNKNOWN:
                self.lost["actors"] = f"{self._unknown} ended before they began, {str(error).splitlines()[0]}"
            return
        host = f"{facts['host']}-{facts['node'][:6]}"
        place = _Place(facts["node"], facts["gpu"] or self._number(facts["node"]))
        name = f"{host}/{self._kind}:{place.number}"
        if unlike := [key for key, version in self._facts.items() if facts[key] != version]:
            texts = [f"{key} {facts[key]} where the sweep has {self._facts[key]}" for key in unlike]
            self._leave_out(host, f"it has {', '.join(texts)}: install the same there", actor)
        elif self._losses[place] >= MOST_LOST:
            self._leave_out(name, f"its actor was lost {MOST_LOST} times", actor)
        else:
            worker = RemoteWorker(self._ray, actor, name, self._made)
            bench = WorkerBench(self._opener, self._compilers, name, worker.start)
            self._closing.callback(bench.close)
            self._opening[self._threads.submit(bench.open)] = _Member(bench, worker, place)

    def _number(self, node: str) -> str:
        """The least number that no replay on a node has."""
        members = [*self._members, *self._opening.values()]
        taken = {member.place.number for member in members if member.place.node == node}
        return next(str(number) for number in range(len(taken) + 1) if str(number) not in taken)

    def _check_alike(self, member: _Member) -> None:
        """Raise NormtuneError for a device that differs from the first one of its kind."""
        bench, limits = member.bench, member.worker.limits
        parts = [f"torch {bench.software.get('torch', 'none')}", f"driver {bench.device.driver}"]
        own = ", ".join([*parts, str(limits)] if limits else parts)
        first = self._alike.setdefault(bench.device.kind, own)
        if own != first:
            raise NormtuneError(
                f"it has {own}, others of the name {bench.device.label!r} have {first}: sweep it into another --store"
            )

    def _leave_out(self, name: str, reason: str, held: Any) -> None:
        self.lost[name] = reason
        self._held.append(held)

    def _kill(self, actor: Any) -> None:
        with suppress(Exception):  # it, or Ray, is gone; members are closed with their benches
            self._ray.kill(actor)
