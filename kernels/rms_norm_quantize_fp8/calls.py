"""Calls on existing tensors: kept launches, and the operator of torch's dispatcher.

In: checked tensors. Out: the outputs, in a list, launched on the current stream; computed with torch's operations
where the kernels take no such tensor (`composed`). As in `kernels.calling.eager`, everything on which config and binary
depend makes a key, under which a launch is kept; no kept object holds a tensor. There is no backward: FP8 values have
no gradient, and no output has a graph.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.dispatch import Cache, prepared, target_of
from normtune.kernels.calling.launcher import Prepared
from normtune.kernels.calling.layout import INTERPRETED, columns_of, rows_of, shown, traits
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.rms_norm_quantize_fp8 import composed
from normtune.kernels.rms_norm_quantize_fp8.launch import check_target
from normtune.kernels.rms_norm_quantize_fp8.spec import MAX_HIDDEN, SPECS
from normtune.kernels.rms_norm_quantize_fp8.variants import FAMILY, Work, blocks_of, padded_rows, work_of

OUTPUTS = ("sum", "q", "scale", "amax", "y")


class Asked(NamedTuple):
    """The arguments of a call besides tensors.

    Attributes:
        scaling: of the operator.
        variant: of the problem.
        eps, offset, least_amax: scalars of the kernels.
        batch_invariant: the mode.
    """

    scaling: str
    variant: str
    eps: float
    offset: float
    least_amax: float
    batch_invariant: bool

    @property
    def work(self) -> Work:
        """What is asked for."""
        return work_of(Problem(SPECS[self.scaling].name, 1, 1, "float32", self.variant))


_launches: Cache[Prepared] = Cache()


def outputs_of(tensors: Sequence[Tensor | None], asked: Asked) -> list[Tensor]:
    """The outputs that are asked for, in the order of `OUTPUTS`: matrices of x's shape, scales in one dimension.

    Args:
        tensors: x (..., hidden), weight, residual and, for a static scaling, scale, as `function` checks them.
        asked: all else.

    Raises:
        ValueError: the batch-invariant mode is not available.
    """
    key = None
    present = [tensor for tensor in tensors if tensor is not None]
    if all(tensor.data_ptr() and not tensor.is_neg() for tensor in present):
        # Everything on which checks, config and binary depend.
        key = (asked, *((tensor.shape, traits(tensor)) if tensor is not None else None for tensor in tensors))
        launch = _launches.get(key)
        if launch is not None:
            x, weight, *others = tensors
            assert x is not None
            made = _new_outputs(x, asked.work)
            ones = x.new_ones(x.shape[-1]) if weight is None else weight
            launch(*_in_order((x, ones, *others), made).values())
            return list(made.values())
    return _new(key, tensors, asked)


def _new(key: object, tensors: Sequence[Tensor | None], asked: Asked) -> list[Tensor]:
    """The outputs of new arguments, or of those that need copies."""
    x, weight, residual, scale = tensors
    assert x is not None
    work, hidden = asked.work, x.shape[-1]
    if not _takes_kernels(x, work):
        if asked.batch_invariant:
            dtypes = ", ".join(SPECS[work.scaling].dtypes)
            expected = f"kernels for {dtypes} on a GPU with {work.q_dtype}, rows of 1 to {MAX_HIDDEN} elements"
            raise ValueError(f"x is {shown(x)}: the batch-invariant mode has {expected}")
        flat = None if residual is None else residual.reshape(-1, hidden)
        found = composed.outputs(
            work, x.reshape(-1, hidden), weight, flat, scale, asked.eps, asked.offset, asked.least_amax
        )
        return [_shaped(name, found[name], x) for name in OUTPUTS if name in found]
    made = _new_outputs(x, work)
    if not x.numel():
        return [tensor.zero_() if name == "amax" else tensor for name, tensor in made.items()]
    read = [
        rows_of("x", x, asked.batch_invariant),
        x.new_ones(hidden) if weight is None else columns_of("weight", weight, x),
        None if residual is None else rows_of("residual", residual, asked.batch_invariant),
        scale,
    ]
    is_uncopied = all(
        given is None or (own is not None and given.data_ptr() == own.data_ptr())
        for given, own in zip(tensors, read, strict=True)
    )
    offset = 0.0 if weight is None else asked.offset
    scalars = {"eps": asked.eps, "offset": offset, "least_amax": asked.least_amax}
    spec = SPECS[work.scaling]
    problem = Problem(spec.name, x.numel() // hidden, hidden, str(x.dtype).removeprefix("torch."), asked.variant)
    views = {name: tensor.view(-1, hidden) if tensor.dim() > 1 else tensor for name, tensor in made.items()}
    every = _in_order(read, views)
    generation = _launches.generation
    scalars = {name: scalars[name] for name in spec.scalars}
    launch = prepared(spec, problem, every, scalars, asked.batch_invariant)
    if key is not None and is_uncopied:
        _launches.keep(key, launch, generation)
    launch(*every.values())
    return list(made.values())


def _takes_kernels(x: Tensor, work: Work) -> bool:
    """Whether the kernels run on the device of x, and take its rows and the FP8 dtype."""
    hidden = x.shape[-1]
    if not (x.is_cuda or (INTERPRETED and x.device.type == "cpu")):
        return False
    try:
        check_target(work, target_of(x))
    except IllegalConfigError:
        return False
    return hidden <= MAX_HIDDEN and x.numel() // hidden <= MAX_ROWS


def _new_outputs(x: Tensor, work: Work) -> dict[str, Tensor]:
    """Memory of the outputs, by name, in the order of `OUTPUTS`."""
    made = {}
    if work.has_residual:
        made["sum"] = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    made["q"] = torch.empty(x.shape, dtype=getattr(torch, work.q_dtype), device=x.device)
    if work.scaling != "static":
        made["scale"] = x.new_empty(_scales(x, work), dtype=torch.float32)
    if work.has_amax:
        made["amax"] = x.new_empty(1, dtype=torch.float32)
    if work.has_y:
        made["y"] = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return made


def _scales(x: Tensor, work: Work) -> int:
    rows = x.shape[:-1].numel()
    if work.scaling == "row":
        return rows
    return (padded_rows(rows) if work.is_column_major else rows) * blocks_of(x.shape[-1])


def _in_order(read: Sequence[Tensor | None], made: dict[str, Tensor]) -> dict[str, Tensor | None]:
    """Inputs and outputs by name, None for those that are missing."""
    x, weight, residual, scale = read
    return {
        "x": x,
        "weight": weight,
        "residual": residual,
        "scale": made.get("scale", scale),
        **{name: made.get(name) for name in ("sum", "q", "amax", "y")},
    }


def _shaped(name: str, tensor: Tensor, x: Tensor) -> Tensor:
    return tensor.view(x.shape) if name in ("sum", "q", "y") else tensor


_library = torch.library.Library("normtune", "FRAGMENT")
_SCHEMA = (
    "(Tensor x, Tensor? weight, Tensor? residual, Tensor? scale, float eps, float offset, float least_amax, "
    "str scaling, str variant, bool? batch_invariant) -> Tensor[]"
)


def _asked(arguments: Sequence[object]) -> Asked:
    eps, offset, least_amax, scaling, variant, mode = arguments
    settled = is_batch_invariant() if mode is None else mode
    return Asked(scaling, variant, eps, offset, least_amax, settled)  # type: ignore[arg-type]


def _of_dispatcher(
    x: Tensor, weight: Tensor | None, residual: Tensor | None, scale: Tensor | None, *arguments: object
) -> list[Tensor]:
    return outputs_of((x, weight, residual, scale), _asked(arguments))


def _shapes(
    x: Tensor, weight: Tensor | None, residual: Tensor | None, scale: Tensor | None, *arguments: object
) -> list[Tensor]:
    return list(_new_outputs(x, _asked((*arguments[:5], False)).work).values())


_library.define(FAMILY + _SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
for _backend in ("CPU", "CUDA"):
    _library.impl(FAMILY, _of_dispatcher, _backend)
torch.library.register_fake(f"normtune::{FAMILY}", _shapes, lib=_library)
operation = getattr(torch.ops.normtune, FAMILY)
