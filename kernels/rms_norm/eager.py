"""RMSNorm of existing tensors: kept launches, and gradients for autograd.

In: tensors with readable memory. Out: y, rstd, dx, dweight, launched on the current stream. Inputs that the kernels do
not take are composed of torch's operations (`composed`).

Most kernels take less time than a launch from Python, so a call of known arguments does little: everything on which its
checks, its config and its binary depend makes a key, under which the launch was kept the first time. No kept object
holds a tensor. The backward is launched for the tensors that it gets: saved tensors may come back with other strides,
elsewhere in memory, or recomputed.

In the batch-invariant mode (`batch_invariant`) each row of y, rstd and dx has the same bits as in any other batch.
"""

from typing import Any

import torch
from torch import Tensor

from normtune.kernels.calling.dispatch import Cache, prepared, target_of
from normtune.kernels.calling.launcher import Prepared
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm import composed, dweight
from normtune.kernels.rms_norm.arguments import DTYPES, check
from normtune.kernels.rms_norm.readable import (
    KERNELS_TAKE,
    PLAIN,
    POINTER_MASK,
    columns_of,
    has_memory,
    is_aligned,
    rows_of,
    shown,
    takes_kernels,
    traits,
)
from normtune.kernels.rms_norm.spec import rms_norm_backward, rms_norm_forward

_FLOAT32 = torch.float32
# Triton's reciprocal square root flushes subnormal numbers to zero by default.
_LEAST_NORMAL = torch.finfo(torch.float32).tiny
_SUBNORMAL = {"enable_reflect_ftz": False}
# In the batch-invariant mode rstd begins this many elements into its memory. So a backward recognises an rstd that was
# recomputed by a caller outside of that mode, as activation checkpointing does.
_MARK = 4

_plans: "Cache[Plan]" = Cache()
_launches: Cache[Prepared] = Cache()


class Plan:
    """The launches of contiguous, aligned tensors of one shape.

    Attributes:
        eps, offset, batch_invariant: arguments of the call.
        forward: None if nothing is launched.
        shape: of x.
        rows: number of rows.
        elements, hidden: of x and of the weight.
        dtype, weight_dtype, device: of x; the weight's own dtype.
        backward: without and with a gradient of the weight, each None until its first use.
    """

    __slots__ = (
        *("backward", "batch_invariant", "device", "dtype", "elements", "eps", "forward", "hidden", "offset"),
        *("rows", "shape", "weight_dtype"),
    )

    def __init__(self, x: Tensor, weight: Tensor | None, eps: float, offset: float, batch_invariant: bool) -> None:
        self.eps, self.batch_invariant = eps, batch_invariant
        self.offset = 0.0 if weight is None else offset
        self.forward: Prepared | None = None
        self.shape, self.elements, self.hidden = x.shape, x.numel(), x.shape[-1]
        self.rows = self.shape[:-1].numel()
        self.dtype, self.device = x.dtype, x.get_device()
        self.weight_dtype = None if weight is None else weight.dtype
        self.backward: list[Prepared | None] = [None, None]


def forward(
    x: Tensor, weight: Tensor | None, eps: float, offset: float, batch_invariant: bool, store_rstd: bool
) -> tuple[Tensor, Tensor | None, Plan]:
    """Y of x's shape, contiguous, rstd (rows,) if it is stored, and the plan.

    Raises:
        TypeError, ValueError: as `arguments.check`, or the batch-invariant mode is not available.
    """
    key = plan = None
    if weight is not None:
        try:
            first, second = x.data_ptr(), weight.data_ptr()
            if (
                first
                and second
                and not (first | second) & POINTER_MASK
                and x.is_contiguous()
                and weight.is_contiguous()
                and not x.is_neg()
                and not weight.is_neg()
            ):
                # Everything on which checks, config and binary depend.
                key = (
                    *(x.shape, x.dtype, x.get_device(), weight.shape, weight.dtype, weight.get_device()),
                    *(eps, offset, batch_invariant, store_rstd),
                )
                plan = _plans.get(key)
        except RuntimeError:  # it has no memory: sparse, nested, of a mode that has ended
            key = None
    if plan is None or plan.forward is None:
        return _new_forward(key, x, weight, eps, offset, batch_invariant, store_rstd)
    y = torch.empty_like(x)
    rstd = _new_rstd(x, plan) if store_rstd else None
    plan.forward(x, weight, y, rstd)
    return y, rstd, plan


def backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, plan: Plan, needs_dx: bool, needs_dweight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """The wanted ones of dx, of x's shape, and dweight (hidden,), in the weight's dtype.

    Args:
        dy: of x's shape and dtype, any strides.
        x: saved by the forward, or a copy.
        weight: as x.
        rstd: as x.
        plan: of the forward.
        needs_dx: whether dx is wanted.
        needs_dweight: whether dweight is wanted.

    Raises:
        ValueError: a saved tensor came back different.
    """
    launch = plan.backward[needs_dweight]
    if launch is not None and needs_dx and weight is not None and _is_as_saved(dy, x, weight, rstd, plan):
        dx, dweight = torch.empty_like(dy), torch.empty_like(weight) if needs_dweight else None
        launch(dy, x, weight, rstd, dx, dweight)
        return dx, dweight
    return _new_backward(dy, x, weight, rstd, plan, needs_dx, needs_dweight)


def is_marked(rstd: Tensor) -> bool:
    """Whether a forward in the batch-invariant mode made this rstd; a copy may have lost the mark."""
    return rstd.storage_offset() == _MARK


def _is_as_saved(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, plan: Plan) -> bool:
    """Whether the plan's kept backward launch fits these tensors; written out, as each call evaluates it."""
    try:
        first, second, third, fourth = dy.data_ptr(), x.data_ptr(), weight.data_ptr(), rstd.data_ptr()
    except RuntimeError:  # batched gradients have no memory
        return False
    return (
        not (first | second | third | fourth) & POINTER_MASK
        and bool(first and second and third and fourth)
        and type(dy) in PLAIN
        and type(x) in PLAIN
        and type(weight) in PLAIN
        and dy.is_contiguous()
        and x.is_contiguous()
        and weight.is_contiguous()
        and rstd.is_contiguous()
        and not (dy.is_neg() or x.is_neg() or weight.is_neg())
        and rstd.dtype is _FLOAT32
        and (not plan.batch_invariant or is_marked(rstd))
        and x.dtype is plan.dtype
        and weight.dtype is plan.weight_dtype
        and x.numel() == plan.elements
        and weight.numel() == plan.hidden
        and rstd.numel() == plan.rows
        and x.get_device() == plan.device
        and weight.get_device() == plan.device
        and rstd.get_device() == plan.device
    )


def _new_rstd(x: Tensor, plan: Plan) -> Tensor:
    if plan.batch_invariant:
        return x.new_empty(plan.rows + _MARK, dtype=_FLOAT32)[_MARK:]
    return x.new_empty(plan.rows, dtype=_FLOAT32)


def _new_forward(
    key: tuple[Any, ...] | None,
    x: Tensor,
    weight: Tensor | None,
    eps: float,
    offset: float,
    batch_invariant: bool,
    store_rstd: bool,
) -> tuple[Tensor, Tensor | None, Plan]:
    """`forward` of new arguments, or of those that need more than a launch."""
    check(x, weight, eps, offset)
    plan = Plan(x, weight, float(eps), float(offset), batch_invariant)
    if not takes_kernels(x):
        if batch_invariant and not x.is_meta:
            raise ValueError(f"x is {shown(x)}: the batch-invariant mode has {KERNELS_TAKE}")
        return (*composed.forward_in_pieces(x, weight, plan.eps, plan.offset), plan)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rstd = _new_rstd(x, plan) if store_rstd else None
    if not x.numel():
        return y, rstd, plan
    rows, columns = rows_of("x", x, batch_invariant), columns_of(x, weight)
    variant = "" if store_rstd else "no_rstd"
    problem = Problem(rms_norm_forward.name, rows.shape[0], rows.shape[1], DTYPES[x.dtype], variant)
    is_kept = key is not None and columns is weight
    tensors: dict[str, Tensor | None] = {"x": rows, "weight": columns, "y": y.view(rows.shape), "rstd": rstd}
    general = (problem, plan.eps, plan.offset, batch_invariant, *map(traits, tensors.values()))
    launch = None if is_kept else _launches.get(general)
    generation = _plans.generation
    if launch is None:
        launch = prepared(
            *(rms_norm_forward, problem, tensors, {"eps": plan.eps, "offset": plan.offset}, batch_invariant),
            _SUBNORMAL if plan.eps < _LEAST_NORMAL and not torch.version.hip else None,
        )
        if is_kept:
            plan.forward = launch
            _plans.keep(key, plan, generation)
        else:
            _launches.keep(general, launch, generation)
    launch(rows, columns, y, rstd)
    return y, rstd, plan


def _new_backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, plan: Plan, needs_dx: bool, needs_dweight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """`backward` of new tensors, or of those that need more than a launch."""
    _check_saved(dy, x, weight, rstd, plan)
    is_batched = not has_memory(dy)
    if is_batched or not takes_kernels(x):
        if plan.batch_invariant:
            raise ValueError("the batch-invariant mode has no batched gradients: ask for one at a time")
        if is_batched:
            found = composed.backward(dy, x, weight, rstd.view(x.shape[:-1]), plan.offset)
        else:
            found = composed.backward_in_pieces(dy, x, weight, rstd, plan.offset)
        return found[0] if needs_dx else None, found[1] if needs_dweight else None
    if not x.numel():
        nothing = torch.zeros_like(weight) if needs_dweight and weight is not None else None
        return torch.empty_like(x) if needs_dx else None, nothing
    is_kept = weight is not None and is_aligned(dy, x, weight, rstd) and rstd.dtype is _FLOAT32
    if plan.batch_invariant and not is_marked(rstd):
        _, anew, _ = forward(x, weight, plan.eps, plan.offset, True, True)
        rstd = rstd if anew is None else anew
    columns = columns_of(x, weight)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device) if needs_dx else None
    dweight = torch.empty_like(columns) if needs_dweight else None
    rows = rows_of("x", x, plan.batch_invariant)
    tensors: dict[str, Tensor | None] = {
        **{
            "dy": rows_of("dy", dy, plan.batch_invariant),
            "x": rows,
            "weight": columns,
            "rstd": rstd.reshape(-1).to(_FLOAT32).contiguous(),
        },
        **{"dx": None if dx is None else dx.view(rows.shape), "dweight": dweight},
    }
    variant = "" if needs_dweight else "no_dweight"
    problem = Problem(rms_norm_backward.name, rows.shape[0], rows.shape[1], DTYPES[x.dtype], variant)
    key = (problem, plan.offset, plan.batch_invariant, *map(traits, tensors.values()))
    launch = _launches.get(key)
    generation = _launches.generation
    if launch is None:
        if needs_dx:
            scalars = {"eps": plan.eps, "offset": plan.offset}
            launch = prepared(rms_norm_backward, problem, tensors, scalars, plan.batch_invariant)
        else:
            launch = _prepared_dweight(tensors)
        _launches.keep(key, launch, generation)
    if is_kept and columns is weight and plan.forward is not None and needs_dx:
        plan.backward[needs_dweight] = launch
    launch(*tensors.values())
    if dweight is not None and weight is not None:
        dweight = dweight.to(weight.dtype)
    return dx, dweight


def _prepared_dweight(tensors: dict[str, Tensor | None]) -> Prepared:
    """The launch of the weight gradient alone; its table would have one line, so there is none."""
    there = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    x = there["x"]
    parts = dweight.parts_of(x.shape[0], x.shape[1], target_of(x).sms)
    workspace = x.new_empty(parts * x.shape[1], dtype=torch.float32)
    calls = dweight.calls(parts, there, workspace)
    return Prepared(calls, [*tensors.values(), workspace], workspace.numel(), x.device.index if x.is_cuda else None)


def _check_saved(dy: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, plan: Plan) -> None:
    """Raise ValueError if hooks of saved tensors returned different tensors."""
    if tuple(dy.shape) != tuple(plan.shape):
        raise ValueError(f"dy has shape {tuple(dy.shape)}: expected {tuple(plan.shape)}, as x")
    saved = [("x", x, tuple(plan.shape), plan.dtype), ("rstd", rstd.reshape(-1), (plan.rows,), None)]
    if plan.weight_dtype is not None:
        saved.append(("weight", weight, (plan.hidden,), plan.weight_dtype))  # type: ignore[arg-type]
    for name, tensor, shape, dtype in saved:
        if (
            not isinstance(tensor, Tensor)
            or tuple(tensor.shape) != shape
            or (dtype is not None and tensor.dtype != dtype)
            or tensor.device != dy.device
            or tensor.layout != torch.strided
        ):
            text = shown(tensor) if isinstance(tensor, Tensor) else repr(tensor)
            raise ValueError(
                f"{name} was saved with shape {shape} on {dy.device}, and hooks of saved tensors gave back {text}"
            )
