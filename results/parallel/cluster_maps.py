"""Maps over items on the CPUs of a Ray cluster, in place of processes of this machine.

Nested maps are tasks as well: Ray gives the CPU of a task that waits to others.
"""

import atexit
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from types import ModuleType
from typing import Any

from normtune.kernels.load_file import load
from normtune.results.parallel import on_node
from normtune.results.parallel.connect import check_address, check_installed, connected
from normtune.results.parallel.maps import mapped_by
from normtune.results.parallel.operator_files import Files, files_of_operators, unpacked
from normtune.results.parallel.tasks import TaskPool

# Tasks are not worth their start, and copies of the data, for less.
LEAST_SECONDS = 2.0


def on_cluster(address: str | None) -> AbstractContextManager[None]:
    """A block whose maps go to the CPUs of a cluster.

    Args:
        address: as in `connect.check_address`; None for processes of this machine.

    Raises:
        UsageError: the address has an unknown form.
        NormtuneError: Ray is not installed; in the block, as `connected`.
    """
    if address is None:
        return nullcontext()
    check_address(address)
    check_installed()
    return _connected_maps(address)


@contextmanager
def _connected_maps(address: str) -> Iterator[None]:
    with connected(address) as ray, _maps(ray, on_node.facts(), files_of_operators()):
        yield


@contextmanager
def _maps(ray: ModuleType, versions: Mapping[str, str], files: Files) -> Iterator[None]:
    def tasks(function: Callable[[Any], Any], items: Sequence[Any], seconds: float) -> Iterator[Any]:
        if seconds < LEAST_SECONDS:
            yield from map(function, items)
            return
        pool = TaskPool(ray, versions, call, (versions, files, ray.put(ray.cloudpickle.dumps((function, items)))))
        try:
            for future in [pool.begin(index) for index in range(len(items))]:
                yield pickle.loads(pool.result(future))
        finally:
            pool.stop()

    with mapped_by(tasks):
        yield


def call(versions: Mapping[str, str], files: Files, work: bytes, index: int) -> tuple[bytes, None]:
    """On a node, the pickled result for an item.

    Args:
        versions: of nodes for nested maps, as `on_node.facts`.
        files: define operators.
        work: pickled function and items.
        index: of the item.
    """
    import ray

    _load(files)
    function, items = pickle.loads(work)
    with _maps(ray, versions, files):
        return ray.cloudpickle.dumps(function(items[index])), None


@cache
def _load(files: Files) -> None:
    scratch, paths = unpacked(files)
    atexit.register(scratch.remove)
    for path in paths:
        load(path)
