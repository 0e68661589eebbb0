"""A cluster of several nodes on this machine, sweeps on it that are disturbed, and what they must leave behind.

In: a kind of disturbance and a seed, which chooses the victim and the moment. Out: `Disturbed`, with every fault.
"""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from normtune.results.database.store import Store

KINDS = ("worker", "actor", "node", "driver", "interrupt")
DRIVER = "normtune.tests.tuner.cluster.cluster_driver"
# Two nodes with two replays each.
NODES, REPLAYS = 2, 2
LIMIT = 240.0
# Nodes are lost sooner than by default.
SYSTEM = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5, "health_check_timeout_ms": 5000}


class Disturbed(NamedTuple):
    """What a disturbance did.

    Attributes:
        struck: whether there was something to kill at that moment.
        faults: what was lost, doubled, changed or left; empty if all is well.
    """

    struck: bool
    faults: tuple[str, ...]


class Machines:
    """A head without devices, and nodes with replays; all are processes of this machine."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        common = {"num_cpus": 1, "object_store_memory": 80_000_000}
        self._cluster = Cluster(True, head_node_args={**common, "include_dashboard": False, "_system_config": SYSTEM})
        self._common = common
        for _ in range(NODES):
            self.add()
        self.address = self._cluster.address

    def add(self, replays: int = REPLAYS, **more):
        """A further node."""
        return self._cluster.add_node(resources={"normtune_replay": replays}, **self._common, **more)

    def nodes(self):
        """The nodes with replays."""
        return sorted(self._cluster.worker_nodes, key=lambda node: node.node_ip_address)

    def remove(self, node) -> None:
        """End a node at once, with all its processes."""
        self._cluster.remove_node(node, allow_graceful=False)

    def processes(self, title: str) -> list[int]:
        """Processes of our nodes with a text in their command line: `ray::Node` of actors, `spawn_main` of workers."""
        raylets = {node.all_processes["raylet"][0].process.pid for node in self._cluster.list_all_nodes()}
        found = {pid: (parent, line) for pid, parent, line in _processes()}

        def is_ours(pid: int) -> bool:
            while pid in found:
                if pid in raylets:
                    return True
                pid = found[pid][0]
            return False

        return sorted(pid for pid, (_, line) in found.items() if title in line and is_ours(pid))

    def close(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()


def _processes():
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            yield int(folder.name), parent, line


def begin(address: str, store: Path, seconds: float = 0.04) -> subprocess.Popen:
    """Start a sweep in a process of its own, with blocks of so many seconds."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", DRIVER, address, str(store), str(seconds)]
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, "PYTHONSAFEPATH": "1"})


def content(store: Path, with_times: bool = True):
    """What is stored, without who measured it; a row for each time that it was."""
    with Store.open(f"sqlite:///{store}") as opened:
        frame = opened.load().frame
    columns = ["operator", "rows", "hidden", "dtype", "config", "status"]
    samples = frame["samples"].map(lambda each: tuple(each.tolist()) if with_times else len(each))
    return sorted(zip(*(frame[name].tolist() for name in columns), samples.tolist(), strict=True))


def calm(machines: Machines, folder: Path) -> float:
    """Seconds of a sweep that nobody disturbs."""
    start = time.monotonic()
    driver = begin(machines.address, folder / "calm.db")
    out, err = _ended(driver)
    assert not driver.returncode, out + err
    return time.monotonic() - start


def disturb(machines: Machines, kind: str, seed: int, folder: Path, whole: Path, seconds: float) -> Disturbed:
    """Disturb one sweep at a random moment, let it or its successor finish, and compare the store with another.

    Args:
        machines: the cluster; a killed node is replaced.
        kind: one of `KINDS`.
        seed: of victim and moment.
        folder: for the store.
        whole: a store of the same sweep, undisturbed and without a cluster.
        seconds: as of `calm`: the moment is within the first 80 % of them, as later sweeps are faster.
    """
    draw, store, faults = random.Random(f"{kind} {seed}"), folder / f"{kind}-{seed}.db", []
    driver = begin(machines.address, store)
    time.sleep(draw.uniform(0.1, 0.8) * seconds)
    struck = _strike(machines, driver, kind, draw)
    out, err = _ended(driver)
    faults += _left(machines)
    if kind in ("driver", "interrupt") and driver.returncode:
        known = len({row[:4] for row in content(store)}) if store.exists() else 0
        driver = begin(machines.address, store)
        out, err = _ended(driver)
        if not driver.returncode and int(out.split()[1]) != known:
            faults.append(f"{known} problems were stored, but {out.split()[1]} were known to the next sweep")
        faults += _left(machines)
    if driver.returncode:
        return Disturbed(struck, (*faults, f"exit code {driver.returncode}: {(out + err)[-2000:]}"))
    with_times = kind != "worker"  # a task that goes on with a new worker has other draws of the replay
    found, wanted = content(store, with_times), content(whole, with_times)
    if len(found) != len(set(row[:5] for row in found)):
        faults.append("something was stored twice")
    if found != wanted:
        faults.append(f"{len(set(wanted) - set(found))} rows are missing, {len(set(found) - set(wanted))} are new")
    return Disturbed(struck, tuple(faults))


def _strike(machines: Machines, driver: subprocess.Popen, kind: str, draw: random.Random) -> bool:
    title = {"worker": "spawn_main", "actor": "ray::Node"}.get(kind, "")
    while driver.poll() is None and title and not machines.processes(title):
        time.sleep(0.1)
    if driver.poll() is not None:
        return False
    if kind in ("driver", "interrupt"):
        driver.send_signal(signal.SIGKILL if kind == "driver" else signal.SIGINT)
        return True
    if kind == "node":
        machines.remove(draw.choice(machines.nodes()))
        machines.add()
        return True
    time.sleep(draw.uniform(0.0, 3.0))
    victims = machines.processes(title)
    if not victims:
        return False
    with suppress(ProcessLookupError):
        os.kill(draw.choice(victims), signal.SIGKILL)
    return True


def _ended(driver: subprocess.Popen) -> tuple[str, str]:
    try:
        return driver.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        driver.kill()
        out, err = driver.communicate()
        return out, f"{err}no end after {LIMIT:g} s"


def _left(machines: Machines) -> list[str]:
    """Actors and workers that are there 20 seconds after the driver's end."""
    end = time.monotonic() + 20.0
    while True:
        left = {title: machines.processes(title) for title in ("ray::Node", "spawn_main")}
        if not any(left.values()):
            return []
        if time.monotonic() > end:
            return [f"{title} left: {pids}" for title, pids in left.items() if pids]
        time.sleep(0.2)
