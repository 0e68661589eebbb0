"""From device to table to config to launch: the one place that looks a config up.

In: an operator, tensors that exist, and whatever table serves their GPU. Out: kernels on the current stream. Which
table that is, is found once a GPU by `normtune.heuristics.locate`; `use_table` says otherwise.
"""

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from normtune.heuristics import locate
from normtune.kernels.alignment import alignment_of
from normtune.kernels.config import Config
from normtune.kernels.device import describe
from normtune.kernels.gpu_name import plain_name
from normtune.kernels.launcher import Prepared
from normtune.kernels.operator import IllegalConfigError, Launch, OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.target import TARGETS, Target

Kept = TypeVar("Kept")
Lookup = Callable[[Problem], Config | None]

_chosen: str | os.PathLike[str] | Literal["auto"] | None = "auto"
_lookups: dict[int, Lookup] = {}
_caches: list[dict[Any, Any]] = []
# A server that sees batches of every length would fill a cache; a launch takes a few kB.
MOST_KEPT = 4096


def use_table(table: str | os.PathLike[str] | None = "auto") -> None:
    """Choose the table that all later launches of this process look up.

    Args:
        table: path of a table that `normtune fit --out` wrote; None for the fixed default config of each operator, as
            if there were no table; `auto`, as at the start, for NORMTUNE_TABLE, else the table installed for the GPU,
            else the one shipped for it.

    Raises:
        UsageError: the file is missing or is no table; the table in use stays as it was.
    """
    global _chosen
    if table is not None and table != "auto":
        locate.load(table)
    _chosen = table
    _lookups.clear()
    for cache in _caches:
        cache.clear()


def config_for(spec: OperatorSpec, problem: Problem, target: Target, device: int) -> Config:
    """The config that launches `problem` on GPU `device`: the table's, else the operator's default.

    Raises:
        UsageError: NORMTUNE_TABLE names no table.
    """
    lookup = _lookups.get(device)
    if lookup is None:
        lookup = _lookups[device] = _find(device)
    return lookup(problem) or spec.default_config(problem, target)


def prepared(
    spec: OperatorSpec, problem: Problem, tensors: Mapping[str, Tensor | None], eps: float, offset: float
) -> Prepared:
    """The launch of an operator on tensors that exist, to be made on them and on others that are alike.

    Args:
        spec: the operator.
        problem: of at least one row.
        tensors: by name, as `spec.buffers` lists them; last dimension contiguous, row strides free. None stands for one
            that the variant leaves out.
        eps: added to the mean square.
        offset: added to the weight.
    """
    there = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first = next(iter(there.values()))
    target = _target(first)
    strides = [tensor.stride(0) for tensor in there.values() if tensor.dim() == 2]
    resolved = _resolve(spec, problem, target, first.device.index or 0, alignment_of(problem.hidden, *strides))
    workspace = None
    if resolved.workspace:
        workspace = torch.empty(resolved.workspace, dtype=torch.float32, device=first.device)
    calls = spec.kernels().calls(resolved, problem, there, workspace, eps, offset)
    arguments = [*tensors.values(), *([workspace] if resolved.workspace else [])]
    return Prepared(calls, arguments, resolved.workspace, first.device.index if first.is_cuda else None)


class Cache(dict[Any, Kept]):
    """What was found of launches, by whatever tells them apart.

    It is forgotten when another table is chosen, and when it has become too much.
    """

    def __init__(self) -> None:
        super().__init__()
        _caches.append(self)

    def keep(self, key: Any, found: Kept) -> Kept:
        """Keep what was found under a key, and return it."""
        if len(self) >= MOST_KEPT:
            self.clear()
        self[key] = found
        return found


def _resolve(spec: OperatorSpec, problem: Problem, target: Target, device: int, alignment: int) -> Launch:
    try:
        return spec.resolve(config_for(spec, problem, target, device), problem, target, alignment)
    except IllegalConfigError:  # the table was made for a GPU with other limits
        return spec.resolve(spec.default_config(problem, target), problem, target, alignment)


def _target(tensor: Tensor) -> Target:
    # Tensors on a CPU get here only under the Triton interpreter, which knows nothing that came after sm_80.
    return describe(tensor.device.index) if tensor.is_cuda else TARGETS["sm_80"]


def _find(device: int) -> Lookup:
    """The lookup that serves GPU `device` under the present choice."""
    if _chosen is None:
        return lambda problem: None
    if _chosen != "auto":
        return _in_table(locate.load(_chosen))
    if not torch.cuda.is_available():
        return lambda problem: None
    name, target = torch.cuda.get_device_properties(device).name, describe(device)
    selection = locate.select(name, target.name, target.sms)
    if not selection.exact:
        warnings.warn(
            f"normtune has no table for {plain_name(name)} ({target.name}, {target.sms} SMs) and uses "
            f"{selection.source}: run `normtune sweep && normtune fit --install` on this GPU to make its own",
            stacklevel=4,
        )
    return _in_table(selection.table)


def _in_table(table: locate.Table) -> Lookup:
    def look_up(problem: Problem) -> Config | None:
        found = table.function(problem.key, problem.dtype)
        return Config(*found(problem.rows, problem.hidden)) if found else None

    return look_up
