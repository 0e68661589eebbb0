"""The GPUs of a cluster, those that join later too.

In: a connected Ray. Out: benches, as of `sweep.devices.Devices`. An actor waits for each GPU that the sweep can use:
Ray starts it where a GPU is free, or its autoscaler starts a node. What is refused stays held until the end, so that no
further actor starts there.
"""

import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import count
from types import ModuleType
from typing import Any

from normtune.errors import NormtuneError, UsageError
from normtune.results.parallel import on_node as parallel_on_node
from normtune.results.parallel.connect import REPLAYS, in_one_line
from normtune.tuner.cluster import on_node
from normtune.tuner.cluster.binaries import CompilerTasks
from normtune.tuner.cluster.remote import ActorLostError, RemoteWorker
from normtune.tuner.compiling.binaries import Compilers
from normtune.tuner.device.bench import Bench
from normtune.tuner.device.engine import Identity
from normtune.tuner.device.open import ALL, opener_of, split

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


def check_names(names: str | None) -> None:
    """Raise UsageError unless the names are those of a kind of device that each node may have."""
    if names not in (None, ALL) and ("," in str(names) or split(names)[0] != "replay"):
        raise UsageError(f"--device is {names!r} with --ray: expected all, or one replay:NAME for every node")


class ClusterDevices:
    """The devices of a cluster, in place of `sweep.devices.Devices`; others join them.

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
    identities: tuple[Identity, ...] = ()

    def __init__(self, ray: ModuleType, address: str, names: str | None, regime: str, closing: ExitStack) -> None:
        self.lost: dict[str, str] = {}
        self._ray, self._closing = ray, closing
        self._opener = opener_of(None if names == ALL else names, regime)
        self._kind, resource, device = "cuda", "GPU", "a GPU"
        options: dict[str, Any] = {"num_gpus": 1}
        if names and names != ALL:
            self._kind, resource, device = "replay", REPLAYS, f"the resource {REPLAYS}"
            options = {"resources": {REPLAYS: 1}}
        there = ray.cluster_resources()
        self._count = int(there.get(resource, 0))
        if not self._count:
            nodes = sum(node["Alive"] for node in ray.nodes())
            raise NormtuneError(
                f"--ray {address}: none of the {nodes} nodes of the cluster has {device}: `ray start` takes --num-gpus "
                "and --resources, `ray status` lists them"
            )
        for module in (parallel_on_node, on_node):
            ray.cloudpickle.register_pickle_by_value(module)
        self._actor = ray.remote(num_cpus=0, max_restarts=0, **options)(on_node.Node)
        self._facts = parallel_on_node.facts()
        self._archives: dict[str, Any] = {}
        self._compilers = Compilers(elsewhere=lambda target: CompilerTasks(ray, target, self._facts, self._archives))
        self._compilers.enter()  # they stay while no device is there
        # Actors that wait for a GPU, by the answer that says where they are.
        self._waiting: dict[Any, Any] = {}
        self._opening: dict[Future[None], Bench] = {}
        # Of devices that are opened or open.
        self._workers: dict[Bench, RemoteWorker] = {}
        self._held: list[Any] = []
        self._losses: Counter[str] = Counter()
        self._unknown = 0
        self._alike: dict[tuple[str, int], str] = {}
        self._threads = ThreadPoolExecutor(64, "normtune-joining")
        closing.callback(self.close)

    def start(self) -> list[Bench]:
        """No device is known before it is open."""
        return []

    def open(self) -> list[Bench]:
        """Wait until a device is open, and a little for others.

        Raises:
            NormtuneError: none can be opened.
        """
        start, first, opened = time.monotonic(), 0.0, list[Bench]()
        while not opened or ((self._waiting or self._opening) and time.monotonic() < first + _OTHERS_SECONDS):
            self.request(max(1, self._count - len(self._held)))
            more = self.new_devices()
            first = first if opened or not more else time.monotonic()
            opened += more
            if not opened and (len(self._held) >= self._count or self._unknown > _MOST_UNKNOWN):
                names = {why: [name for name, other in self.lost.items() if other == why] for why in self.lost.values()}
                raise NormtuneError("; ".join(f"{', '.join(of_reason)}: {why}" for why, of_reason in names.items()))
            if not opened and time.monotonic() > start + _FIRST_SECONDS:
                raise NormtuneError(
                    f"no GPU of the cluster became free in {_FIRST_SECONDS:g} s: `ray status` says who has them"
                )
            time.sleep(_POLL_SECONDS)
        return opened

    def request(self, devices: int) -> None:
        """Let actors wait for as many devices as are wanted and not there, some at a time; end those that are not."""
        there = sum(not worker.is_lost for worker in self._workers.values())
        shortage = max(0, devices - there)
        limit = max(_WAITING, self._count - there - len(self._held))
        while len(self._waiting) < min(shortage, limit) and self._unknown <= _MOST_UNKNOWN:
            actor = self._actor.remote()
            self._waiting[actor.facts.remote()] = actor
        while len(self._waiting) > shortage:
            self._kill(self._waiting.popitem()[1])

    def new_devices(self) -> list[Bench]:
        """Devices that were opened since the last call."""
        for bench in [bench for bench, worker in self._workers.items() if worker.is_lost]:
            del self._workers[bench]
            self._losses[bench.name] += 1
        waiting = [*self._waiting]
        for answer in self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0] if waiting else ():
            self._arrived(answer, self._waiting.pop(answer))
        opened: list[Bench] = []
        for future in [future for future in self._opening if future.done()]:
            bench = self._opening.pop(future)
            try:
                future.result()
                self._check_alike(bench)
                opened.append(bench)
            except ActorLostError:
                pass  # counted by the next call
            except NormtuneError as error:
                self._leave_out(bench.name, str(error), self._workers.pop(bench).actor)
        return opened

    def close(self) -> None:
        """End all actors and compilers."""
        for actor in [*self._waiting.values(), *self._held, *(worker.actor for worker in self._workers.values())]:
            self._kill(actor)
        self._threads.shutdown()
        self._compilers.leave()

    def _arrived(self, answer: Any, actor: Any) -> None:
        """Open the device of an actor that has started, unless its node or GPU is left out."""
        try:
            facts = self._ray.get(answer)
        except self._ray.exceptions.RayError as error:  # with its node
            self._unknown += 1
            if self._unknown > _MOST_UNKNOWN:
                self.lost["actors"] = f"{self._unknown} ended before they began, {in_one_line(error)}"
            return
        host = f"{facts['host']}-{facts['node'][:6]}"
        prefix = f"{host}/{self._kind}:"
        names = {bench.name for bench in self._workers}  # replays have no numbers of their own
        name = prefix + (facts["gpu"] or next(free for free in map(str, count()) if prefix + free not in names))
        if unlike := [key for key, version in self._facts.items() if facts[key] != version]:
            texts = [f"{key} {facts[key]} where the sweep has {self._facts[key]}" for key in unlike]
            self._leave_out(host, f"it has {', '.join(texts)}: install the same there", actor)
        elif self._losses[name] >= MOST_LOST:
            self._leave_out(name, f"its actor was lost {MOST_LOST} times", actor)
        else:
            worker = RemoteWorker(self._ray, actor, name, self._archives)
            bench = Bench(self._opener, self._compilers, name, worker.start)
            self._closing.callback(bench.close)
            self._workers[bench] = worker
            self._opening[self._threads.submit(bench.open)] = bench

    def _check_alike(self, bench: Bench) -> None:
        """Raise NormtuneError for a device that differs from the first one of its kind."""
        versions = f"torch {bench.software.get('torch', 'none')}, driver {bench.device.driver}"
        facts = f"{versions}, {self._workers[bench].limits}"
        first = self._alike.setdefault(bench.device.kind, facts)
        if facts != first:
            raise NormtuneError(
                f"it has {facts}, others of the name {bench.device.label!r} have {first}: sweep it into another --store"
            )

    def _leave_out(self, name: str, reason: str, held: Any) -> None:
        self.lost[name] = reason
        self._held.append(held)

    def _kill(self, actor: Any) -> None:
        with suppress(Exception):  # it, or Ray, is gone
            self._ray.kill(actor)
