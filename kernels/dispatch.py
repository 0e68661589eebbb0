"""From device to table to config to launch: the one place that looks a config up.

In: an operator, tensors that exist, and whatever table serves their GPU. Out: kernels on the current stream. Which
table that is, is found once a GPU by `normtune.heuristics.locate`; `use_table` says otherwise.
"""

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from normtune.heuristics import locate
from normtune.kernels.call import run
from normtune.kernels.config import Config
from normtune.kernels.device import describe
from normtune.kernels.gpu_name import plain_name
from normtune.kernels.operator import IllegalConfigError, Launch, OperatorSpec
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm_launch import alignment_of
from normtune.kernels.target import TARGETS, Target

Lookup = Callable[[Problem], Config | None]

_chosen: str | os.PathLike[str] | Literal["auto"] | None = "auto"
_lookups: dict[int, Lookup] = {}


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


def config_for(spec: OperatorSpec, problem: Problem, target: Target, device: int) -> Config:
    """The config that launches `problem` on GPU `device`: the table's, else the operator's default.

    Raises:
        UsageError: NORMTUNE_TABLE names no table.
    """
    lookup = _lookups.get(device)
    if lookup is None:
        lookup = _lookups[device] = _find(device)
    return lookup(problem) or spec.default_config(problem, target)


def launch(spec: OperatorSpec, problem: Problem, tensors: Mapping[str, Tensor], eps: float, offset: float) -> None:
    """Launch an operator on tensors that exist, on the current stream of their device.

    Args:
        spec: the operator.
        problem: of at least one row.
        tensors: by name, as `spec.buffers` lists them; last dimension contiguous, row strides free.
        eps: added to the mean square.
        offset: added to the weight.
    """
    first = next(iter(tensors.values()))
    device = first.device.index or 0
    target = _target(first)
    strides = [tensor.stride(0) for tensor in tensors.values() if tensor.dim() == 2]
    resolved = _resolve(spec, problem, target, device, alignment_of(problem.hidden, *strides))
    workspace = None
    if resolved.workspace:
        workspace = torch.empty(resolved.workspace, dtype=torch.float32, device=first.device)
    calls = spec.kernels().calls(resolved, problem, tensors, workspace, eps, offset)
    if first.is_cuda:
        with torch.cuda.device(first.device):
            run(calls)
    else:
        run(calls)


def _resolve(spec: OperatorSpec, problem: Problem, target: Target, device: int, alignment: int) -> Launch:
    try:
        return spec.resolve(config_for(spec, problem, target, device), problem, target, alignment)
    except IllegalConfigError:  # the table was made for a GPU with other limits
        return spec.resolve(spec.default_config(problem, target), problem, target, alignment)


def _target(tensor: Tensor) -> Target:
    # Tensors on a CPU get here only under the Triton interpreter.
    return describe(tensor.device.index) if tensor.is_cuda else TARGETS["sm_90"]


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
    tables = table.tables

    def look_up(problem: Problem) -> Config | None:
        found = tables.get((problem.key, problem.dtype)) or tables.get((problem.operator, problem.dtype))
        return Config(*found(problem.rows, problem.hidden)) if found else None

    return look_up
