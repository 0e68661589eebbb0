"""Looks up the config of a problem in the table of its GPU, and binds its launch.

In: an operator, tensors, and the tables of their GPU (`tablefile.locate`, or `use_table`). Out: launches. Tables have
separate functions for the batch-invariant mode; without one, the operator's default config is used. Different numbers
of rows get different configs in this mode only if all of these are legal and sum a row in the same order
(`Launch.row_sum`); else all get the config of the largest number of rows.
"""

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from normtune.kernels.alignment import alignment_of
from normtune.kernels.arguments import checked
from normtune.kernels.call import AnyLaunch
from normtune.kernels.calling.device import describe
from normtune.kernels.calling.launcher import BoundLaunch, bind_launch
from normtune.kernels.config import Config, Implementation
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import HIDDEN_ROWS, MAX_ROWS, Problem
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.selection import TableSelection
from normtune.kernels.tablefile.selection import row_bounds as row_bounds_of
from normtune.kernels.target import TARGETS, Target, plain_name

Value = TypeVar("Value")
# Returns a config of a class that the table defines, or None.
Lookup = Callable[[Problem], Any]
# The least and the most rows, the least and the most hidden, and the function that answers there.
_EndsAndFunction = tuple[int, int, int, int, Callable[[int, int], Any]]

_chosen: str | os.PathLike[str] | Literal["auto"] | None = "auto"
_tables: dict[int, TableSelection | None] = {}
_lookups: dict[tuple[int, bool], Lookup] = {}
_caches: list[dict[Any, Any]] = []
# Held while a table is chosen or located.
_choosing = threading.RLock()
# A server sees batches of every length. A cached launch takes 2 KB and no GPU memory; making it again takes 0.1 ms.
MOST_KEPT = 2048


class LaunchRequest(NamedTuple):
    """What a launch is bound for.

    Attributes:
        spec: the operator.
        problem: of at least one row.
        tensors: by name, in the order of `spec.buffers`; contiguous in the last dimension, with any row strides. None
            for a tensor that the variant leaves out.
        scalars: a value for each of the operator's `scalars`.
        batch_invariant: give a row the same bits in every batch.
        options: further compiler options.
        is_in_place: outputs may be inputs.
    """

    spec: OperatorSpec
    problem: Problem
    tensors: Mapping[str, Tensor | None]
    scalars: Mapping[str, float]
    batch_invariant: bool
    options: Mapping[str, Any] | None
    is_in_place: bool


_requests: list[LaunchRequest] | None = None
_recording = threading.Lock()


@contextmanager
def recorded_requests() -> Iterator[list[LaunchRequest]]:
    """Record the launches that all threads request inside of a `with`; one `with` at a time."""
    global _requests
    with _recording:
        requests: list[LaunchRequest] = []
        _requests = requests
        try:
            yield requests
        finally:
            _requests = None


@checked
def use_table(table: str | os.PathLike[str] | None = "auto") -> None:
    """Choose the table for all later launches of this process.

    Args:
        table: path of a table that `normtune fit --out` wrote, or the name of a shipped one; None for the default
            config of each operator; `auto`, the initial state, for NORMTUNE_TABLE. Beyond twice its measured sizes the
            table installed for the GPU answers, then the one shipped for it, then the default config.

    Raises:
        UsageError: the file is missing or is not a table; the choice before is kept.
    """
    global _chosen
    if table is not None and table != "auto":
        table = locate.file_of(table)
        locate.load(table)
    with _choosing:
        _chosen = table
        _tables.clear()
        _lookups.clear()
        forget_launches()


def forget_launches() -> None:
    """Drop all cached launches; binaries stay loaded."""
    for cache in _caches:
        cache.clear()


def config_for(
    spec: OperatorSpec, problem: Problem, target: Target, device: int, batch_invariant: bool = False
) -> Config:
    """The config for `problem` on GPU `device`, with these limits: the table's, else the operator's default.

    Raises:
        UsageError: NORMTUNE_TABLE is not the path of a table.
    """
    lookup = _lookups.get((device, batch_invariant))
    if lookup is None:
        with _choosing:
            lookup = _lookups[device, batch_invariant] = _in_table(_table_of(device, target), batch_invariant)
    config = lookup(problem)
    if config is not None and spec.implementations and config._fields == Implementation._fields:
        return Implementation(*config)
    if config is None or not spec.knows(config):  # the operator had other knobs when the table was made
        return spec.default_config(problem, target)
    return spec.config(*config)


def bind_from_table(request: LaunchRequest) -> BoundLaunch:
    """A launch of an operator, repeatable on tensors like these."""
    if _requests is not None:
        _requests.append(request)
    spec, problem, tensors, scalars, batch_invariant, options, is_in_place = request
    first = next(tensor for tensor in tensors.values() if tensor is not None)
    alignment = alignment_in(spec, problem, tensors)
    launch = resolved(spec, problem, first, alignment, batch_invariant, is_in_place)
    return bind_launch(spec, launch, problem, tensors, scalars, options, spec.reuses_dy(launch, target_of(first)))


def resolved(
    spec: OperatorSpec,
    problem: Problem,
    first: Tensor,
    alignment: int,
    batch_invariant: bool = False,
    is_in_place: bool = False,
) -> AnyLaunch:
    """The launch of the table's config, or of the operator's default config if that is illegal.

    `first` is a tensor on the GPU; other arguments as in `LaunchRequest` and from `alignment_in`.
    """
    launch = _resolve(spec, problem, target_of(first), first.device.index or 0, alignment, batch_invariant)
    return getattr(launch, "in_place", launch) if is_in_place else launch


def alignment_in(spec: OperatorSpec, problem: Problem, tensors: Mapping[str, Tensor | None]) -> int:
    """The alignment of hidden and of all row strides; `tensors` by the names of `spec.buffers`."""
    # A transposed output is left out: its stride is the number of rows, whose alignment the kernels handle themselves.
    transposed = {buffer.name for buffer in spec.buffers(problem) if buffer.axes == HIDDEN_ROWS}
    of_rows = [tensor for name, tensor in tensors.items() if tensor is not None and name not in transposed]
    return alignment_of(problem.hidden, *(stride for tensor in of_rows for stride in tensor.stride()[:-1]))


def row_bounds(problem: Problem, target: Target, device: int, batch_invariant: bool) -> list[int]:
    """The numbers of rows, ascending from 1, at which the table's config may change; `problem` may have any."""
    with _choosing:
        tables = _table_of(device, target)
    key = problem.key.batch_invariant if batch_invariant else problem.key
    return row_bounds_of(tables.functions(key) if tables else (), problem.hidden)


class Cache(dict[Any, Value]):
    """A cache of at most `MOST_KEPT` entries, of which the oldest are dropped; `use_table` clears it."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self.generation = 0
        _caches.append(self)

    def clear(self) -> None:
        """Drop all entries, and keep none that are being made meanwhile."""
        with self._lock:
            self.generation += 1
            super().clear()

    def keep(self, key: Any, value: Value, generation: int | None = None) -> Value:
        """Store a value under a key, unless the cache was cleared since `generation`, and return it."""
        with self._lock:
            if generation not in (None, self.generation):
                return value
            while len(self) >= MOST_KEPT:
                del self[next(iter(self))]
            self[key] = value
        return value


# Results of `_sums_alike`, which takes 0.3 ms for five configs, by problem without rows, alignment and device.
_alike: Cache[bool] = Cache()


def _resolve(
    spec: OperatorSpec, problem: Problem, target: Target, device: int, alignment: int, batch_invariant: bool = False
) -> AnyLaunch:
    looked_up = problem
    if batch_invariant:
        key, generation = (problem._replace(rows=MAX_ROWS), alignment, device), _alike.generation
        alike = _alike.get(key)
        if alike is None:
            alike = _alike.keep(key, _sums_alike(spec, problem, target, device, alignment), generation)
        looked_up = problem if alike else key[0]
    config = config_for(spec, looked_up, target, device, batch_invariant)
    is_legal = spec.launch_of(config, looked_up, target, alignment) is not None
    launch = spec.launch_of(config, problem, target, alignment) if is_legal else None
    # A config is illegal if the table was made for a GPU with other limits.
    return launch or spec.launch(spec.default_config(problem, target), problem, target, alignment)


def _sums_alike(spec: OperatorSpec, problem: Problem, target: Target, device: int, alignment: int) -> bool:
    """Whether a hidden size has several configs in the mode, all of which are legal and sum a row in one order."""
    bounds = row_bounds(problem, target, device, True)
    sums = set()
    for rows in (*(bound - 1 for bound in bounds[1:]), MAX_ROWS):
        at_bound = problem._replace(rows=rows)
        launch = spec.launch_of(config_for(spec, at_bound, target, device, True), at_bound, target, alignment)
        sums.add(getattr(launch, "row_sum", None))
    return len(bounds) > 1 and len(sums) == 1 and None not in sums


def device_of(tensor: Tensor) -> int | None:
    """CUDA's number of a tensor's GPU; None if kernels are interpreted."""
    return tensor.device.index if tensor.is_cuda else None


def target_of(tensor: Tensor) -> Target:
    """The limits of a tensor's GPU."""
    # Only the Triton interpreter reads CPU tensors; as on sm_89 it has no dependent launches and no fetches of rows.
    return describe(tensor.device.index) if tensor.is_cuda else TARGETS["sm_89"]


def _table_of(device: int, target: Target) -> TableSelection | None:
    """The tables of GPU `device`, located once; the caller holds `_choosing`."""
    if device not in _tables:
        _tables[device] = _find(device, target)
    return _tables[device]


def _find(device: int, target: Target) -> TableSelection | None:
    """The tables of GPU `device` under the present choice; None for the default configs."""
    if _chosen is None:
        return None
    chosen = None if _chosen == "auto" else _chosen
    if not torch.cuda.is_available():
        if chosen is None:
            return None
        return locate.selection_of(locate.load(chosen), locate.quoted(chosen))
    name = torch.cuda.get_device_properties(device).name
    selection = locate.select(name, target.name, target.sms, chosen)
    if not selection.exact:
        warnings.warn(
            f"normtune has no table for {plain_name(name)} ({target.name}, {target.sms} SMs) and uses "
            f"{selection.source}: `normtune sweep --effort quick && normtune fit --install` on this GPU makes its "
            "own in a minute",
            stacklevel=5,
        )
    return selection


def _in_table(selection: TableSelection | None, batch_invariant: bool = False) -> Lookup:
    """A function that looks a problem up in the tables; it returns None for the default config."""
    is_warned = False
    functions: dict[Key, list[_EndsAndFunction]] = {}

    def look_up(problem: Problem) -> Any:
        nonlocal is_warned
        if selection is None:
            return None
        entries = functions.get(problem.key)
        if entries is None:
            key = problem.key.batch_invariant if batch_invariant else problem.key
            bounded = [(*one.box, one.function) for one in selection.functions(key) if len(one.box) == 2]
            entries = [(*rows[1:], *hidden[1:], function) for rows, hidden, function in bounded]
            functions[problem.key] = entries
        if not entries and batch_invariant and not is_warned:
            is_warned = True
            warnings.warn(
                f"{selection.source or 'the table'} has no batch-invariant function of {problem.key}: the "
                "default config serves, which may be slow; `normtune.fit(batch_invariant=True)` adds them to a table",
                stacklevel=4,
            )
        _, rows, hidden = problem
        for least_rows, most_rows, least_hidden, most_hidden, function in entries:
            if least_rows <= rows <= most_rows and least_hidden <= hidden <= most_hidden:
                return function(rows, hidden)
        return None

    return look_up
