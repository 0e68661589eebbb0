"""Calls of `qk_norm` and its gradients on existing tensors, with cached launches.

In: checked tensors. Out: the fused tensor, written in place or new, or gradients: launched on the current stream, or
computed by the formula (`decomposition`) if the kernels do not take the tensors. Launches are cached under a key of
everything on which config and binary depend; no cached object holds a tensor.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from normtune.kernels.calling.batch_invariant import settled
from normtune.kernels.calling.dispatch import Cache, bind_from_table
from normtune.kernels.calling.fallback import keeps_subnormal
from normtune.kernels.calling.in_place import claim, span
from normtune.kernels.calling.launcher import BoundLaunch
from normtune.kernels.calling.layout import (
    check_invariant,
    columns_of,
    has_kernels,
    is_uncopied,
    new_like,
    readable,
    rows_of,
    traits,
)
from normtune.kernels.mode import Dweight
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import MAX_ROWS, Problem
from normtune.kernels.qk_norm.decomposition import Tensors
from normtune.kernels.qk_norm.decomposition import backward as backward_formula
from normtune.kernels.qk_norm.decomposition import forward as formula
from normtune.kernels.qk_norm.modes import Place
from normtune.kernels.qk_norm.spec import MAX_HIDDEN, qk_norm, qk_norm_backward


class CallArguments(NamedTuple):
    """The arguments of a call besides tensors.

    Attributes:
        heads_q, heads_k: query and key heads.
        rotary_dim: elements of a head that are rotated; anything positive without a rotation.
        eps, offset: scalars of the kernel.
        variant: of the problem.
        batch_invariant: the mode.
    """

    heads_q: int
    heads_k: int
    rotary_dim: int
    eps: float
    offset: float
    variant: str
    batch_invariant: bool

    @property
    def is_in_place(self) -> bool:
        """Whether qkv is written."""
        return Place.of(self) is Place.IN_PLACE

    def problem(
        self, tensors: Tensors, family: OperatorSpec = qk_norm, variant: str | None = None
    ) -> tuple[OperatorSpec, Problem]:
        """The operator at the call's named integers, and its problem; by default of the forward."""
        width, hidden = tensors.qkv.shape[-1], tensors.weight_q.shape[0]
        spec = family.at(heads_q=self.heads_q, heads_k=self.heads_k, heads=width // hidden, rotary_dim=self.rotary_dim)
        dtype = str(tensors.qkv.dtype).removeprefix("torch.")
        rows = tensors.qkv.numel() // width
        return spec, Problem(spec.key(dtype, self.variant if variant is None else variant), rows, hidden)


_launches: Cache[BoundLaunch] = Cache()
# Of a launch in place, the bytes that each of its tensors spans.
_spans: Cache[list[int]] = Cache()


def result_of(tensors: Tensors, call: CallArguments) -> Tensor:
    """The fused tensor: qkv itself, or a contiguous one of its shape.

    Raises:
        ValueError: the batch-invariant mode is not available, or qkv cannot be written in place.
    """
    key, qkv, is_in_place = None, tensors.qkv, call.is_in_place
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    if 0 not in pointers and not any(tensor is not None and tensor.is_neg() for tensor in tensors):
        # Everything on which checks, config and binary depend.
        key = (call, *(None if tensor is None else (tensor.shape, traits(tensor)) for tensor in tensors))
        launch = _launches.get(key)
        if launch is not None and is_in_place:
            _claim(tensors, call, pointers, _spans.get(key))
            launch.at((*pointers, None), *tensors, None)
            return qkv
        if launch is not None:
            out = new_like(qkv)
            launch.at((*pointers, out.data_ptr()), *tensors, out)
            return out
    if is_in_place:
        _claim(tensors, call, pointers, None)
    return _of_new(key, tensors, call)


def _claim(tensors: Tensors, call: CallArguments, pointers: Sequence[int | None], spans: Sequence[int] | None) -> None:
    """`in_place.claim` of the written heads; skipped where cached spans show that no other tensor is near them.

    Raises:
        ValueError: as there.
    """
    qkv = tensors.qkv
    is_far = False
    if spans and (not qkv.is_inference() or torch.is_inference_mode_enabled()):
        (start, *others), (size, *sizes) = pointers, spans
        assert start is not None
        end = start + size
        is_far = not any(
            pointer is not None and pointer < end and start < pointer + n
            for pointer, n in zip(others, sizes, strict=True)
        )
    if not is_far:
        read = tensors._asdict()
        del read["qkv"]
        columns = _written_columns(call, tensors)
        claim({f"qkv[..., :{columns}]": qkv[..., :columns]}, read)
    increment_version(qkv)  # below autograd a view has a version of its own


def _of_new(key: object, tensors: Tensors, call: CallArguments) -> Tensor:
    """The result without a cached launch, or of arguments that need copies."""
    qkv, is_in_place = tensors.qkv, call.is_in_place
    spec, problem = call.problem(tensors)
    if not _takes_kernel(tensors, problem):
        if call.batch_invariant:
            dtypes = ", ".join(spec.dtypes)
            check_invariant("qkv", qkv, f"kernels for {dtypes} on a GPU, heads of 1 to {MAX_HIDDEN} elements")
        with torch.no_grad():
            fused = formula(problem, tensors, call.eps, call.offset)
            return _written(qkv, fused, call, tensors) if is_in_place else fused
    if not qkv.numel():
        return qkv if is_in_place else new_like(qkv)
    rows = _rows_in_place(qkv) if is_in_place else rows_of("qkv", qkv, call.batch_invariant)
    # A copy has the alignment that the mode needs.
    settled_rows = settled(rows) if call.batch_invariant else rows
    launched = _of_kernel(tensors._replace(qkv=settled_rows), call)
    out = None if is_in_place else new_like(qkv)
    every = {**launched._asdict(), "out": None if out is None else out.view(rows.shape)}
    generation = _launches.generation
    launch = _bound(spec, problem, every, call)
    if key is not None and is_uncopied(tensors._asdict(), launched._asdict()):
        if is_in_place:
            _spans.keep(key, [0 if tensor is None else span(tensor) for tensor in tensors])
        _launches.keep(key, launch, generation)
    launch(*every.values())
    if out is not None:
        return out
    return qkv if settled_rows is rows else _written(qkv, settled_rows.view(qkv.shape), call, tensors)


def gradients_of(
    dout: Tensor, tensors: Tensors, call: CallArguments, needs_dweight: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of qkv and of both weights; the latter mean nothing without `needs_dweight`."""
    qkv = tensors.qkv
    spec, problem = call.problem(tensors, qk_norm_backward, _backward_variant(call, needs_dweight))
    if not (_takes_kernel(tensors, problem) and dout.dtype == qkv.dtype and qkv.numel()):
        return backward_formula(problem, dout, tensors, call.eps, call.offset)
    rows = rows_of("qkv", qkv, call.batch_invariant)
    launched = _of_kernel(tensors._replace(qkv=rows), call)
    dqkv, dweights = new_like(qkv), qkv.new_empty((2, problem.hidden), dtype=torch.float32)
    every: dict[str, Tensor | None] = {
        "dout": rows_of("dout", dout, call.batch_invariant),
        **launched._asdict(),
        "dqkv": dqkv.view(rows.shape),
        "dweights": dweights if needs_dweight else None,
    }
    key = (problem, call, *map(traits, every.values()))
    generation = _launches.generation
    launch = _launches.get(key) or _launches.keep(key, _bound(spec, problem, every, call), generation)
    launch(*every.values())
    dweight_q, dweight_k = (
        dweight.to(weight.dtype, copy=True)
        for dweight, weight in zip(dweights, (tensors.weight_q, tensors.weight_k), strict=True)
    )
    return dqkv, dweight_q, dweight_k


@lru_cache(1024)
def _backward_variant(call: CallArguments, needs_dweight: bool) -> str:
    shared = (mode.of(call) for mode in qk_norm_backward.modes if mode in qk_norm.modes)
    return qk_norm_backward.variant(Dweight.COMPUTED if needs_dweight else Dweight.NONE, *shared)


def _bound(
    spec: OperatorSpec, problem: Problem, every: Mapping[str, Tensor | None], call: CallArguments
) -> BoundLaunch:
    scalars = {"eps": call.eps, "offset": call.offset}
    return bind_from_table(spec, problem, every, scalars, call.batch_invariant, keeps_subnormal(scalars))


def _of_kernel(tensors: Tensors, call: CallArguments) -> Tensors:
    """The tensors in the layout of the kernels; qkv is (tokens, width) already."""
    qkv = tensors.qkv
    cos, sin = (
        None if table is None else rows_of(name, _narrow(table, qkv), call.batch_invariant)
        for name, table in (("cos", tensors.cos), ("sin", tensors.sin))
    )
    return Tensors(
        qkv,
        columns_of("weight_q", tensors.weight_q, qkv),
        columns_of("weight_k", tensors.weight_k, qkv),
        cos,
        sin,
        None if tensors.positions is None else tensors.positions.reshape(-1).contiguous(),
    )


def _takes_kernel(tensors: Tensors, problem: Problem) -> bool:
    """Whether the kernel runs on the device of qkv and takes its dtype, tokens and heads."""
    return (
        has_kernels(tensors.qkv)
        and problem.dtype in qk_norm.dtypes
        and problem.hidden <= MAX_HIDDEN
        and problem.rows <= MAX_ROWS
    )


def _rows_in_place(qkv: Tensor) -> Tensor:
    """A view of qkv as (tokens, width).

    Raises:
        ValueError: tokens are not one stride apart, or their elements not contiguous.
    """
    try:
        rows = readable("qkv", qkv).view(-1, qkv.shape[-1])
    except RuntimeError:
        rows = None
    if rows is None or rows.stride(1) != 1:
        expected = "expected tokens one stride apart, elements in order, or in_place=False"
        raise ValueError(f"qkv has shape {tuple(qkv.shape)} and strides {qkv.stride()}: {expected}")
    return rows


def _written(qkv: Tensor, out: Tensor, call: CallArguments, tensors: Tensors) -> Tensor:
    """qkv, into which the query and key heads of another tensor are copied."""
    end = _written_columns(call, tensors)
    qkv[..., :end].copy_(out[..., :end])
    return qkv


def _written_columns(call: CallArguments, tensors: Tensors) -> int:
    """Number of the first columns of qkv, which hold the query and key heads."""
    return (call.heads_q + call.heads_k) * tensors.weight_q.shape[0]


def _narrow(table: Tensor, qkv: Tensor) -> Tensor:
    """A table in a dtype that the kernels take."""
    return table if table.dtype in (qkv.dtype, torch.float32) else table.float()
