"""The fast path of a call: launches what is cached for tensors like these, of any operation.

In: an `Operation` and plain tensors in its order. Out: outputs or gradients. Calls without a cached launch go to
`eager`. A cached launch takes strided tensors as they are, or copies of them. The forwards of two and of three tensors,
as of `rms_norm` and `fused_add_rms_norm`, are written out by hand, as the loops of `forward` take 1.5 us more.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, empty_like, is_inference_mode_enabled
from torch.autograd.graph import increment_version

from normtune.kernels.calling.eager import CallPlan, is_marked, new_backward, new_factors, new_forward, new_output
from normtune.kernels.calling.in_place import check_written, is_reusable, reused
from normtune.kernels.calling.layout import PLAIN_TYPES, POINTER_MASK, new_like
from normtune.kernels.calling.operation import Operation


def forward(
    operation: Operation,
    tensors: tuple[Any, ...],
    scalars: tuple[float, ...],
    batch_invariant: bool,
    is_saving: bool,
    is_in_place: bool = False,
) -> tuple[Any, ...]:
    """The outputs, None for those that are not stored, and the `eager.CallPlan`.

    Args, errors: as `eager.new_forward`.
    """
    plan = None
    pointers, key = _pointers_and_key(tensors)
    if key:
        key += scalars, batch_invariant, is_saving, is_in_place
        plan = operation.plans.get(key)
    if plan is None:
        return new_forward(operation, key, tensors, scalars, batch_invariant, is_saving, is_in_place)
    if plan.copies:
        tensors = _copied(plan.copies, tensors, pointers)
    if plan.spans:
        _claim(plan, tensors, pointers)
    outputs: list[Any] = []
    for like in plan.likes:
        if type(like) is int:
            output = tensors[like] if is_in_place else new_like(tensors[like])
        else:
            output = new_output(plan, like, tensors[0])
        outputs.append(output)
        pointers.append(None if output is None else output.data_ptr())
    plan.launch.at(pointers, *tensors, *outputs)
    return (*outputs, plan)


def forward_of_two(
    operation: Operation, tensors: tuple[Any, Any], scalars: tuple[float, ...], batch_invariant: bool, is_saving: bool
) -> tuple[Any, ...]:
    """`forward` of x and a weight, as of `rms_norm`, written out by hand."""
    x, weight = tensors
    key = plan = None
    if weight is not None:
        try:
            p_x, p_weight = x.data_ptr(), weight.data_ptr()
            if (
                p_x
                and p_weight
                and not (p_x | p_weight) & POINTER_MASK
                and x.is_contiguous()
                and weight.is_contiguous()
                and not x.is_neg()
                and not weight.is_neg()
            ):
                key = (
                    x.shape,
                    x.dtype,
                    x.get_device(),
                    weight.shape,
                    weight.dtype,
                    weight.get_device(),
                    scalars,
                    batch_invariant,
                    is_saving,
                )
                plan = operation.plans.get(key)
        except (RuntimeError, AttributeError):  # without memory, or None
            key = None
    if key is None:
        return forward(operation, tensors, scalars, batch_invariant, is_saving)
    if plan is None:
        return new_forward(operation, key, tensors, scalars, batch_invariant, is_saving)
    y = empty_like(x)
    rstd = new_factors(x, plan) if is_saving else None
    plan.launch.at((p_x, p_weight, y.data_ptr(), None if rstd is None else rstd.data_ptr()), x, weight, y, rstd)
    return y, rstd, plan


def forward_of_three(
    operation: Operation,
    tensors: tuple[Any, Any, Any],
    scalars: tuple[float, ...],
    batch_invariant: bool,
    is_saving: bool,
) -> tuple[Any, ...]:
    """`forward` of x, another tensor of its shape, and a weight, as of `fused_add_rms_norm`, written out by hand.

    Its outputs are like x, then, if there are two, like the other tensor.
    """
    x, other, weight = tensors
    key = plan = None
    if weight is not None:
        try:
            p_x, p_other, p_weight = x.data_ptr(), other.data_ptr(), weight.data_ptr()
            if (
                p_x
                and p_other
                and p_weight
                and not (p_x | p_other | p_weight) & POINTER_MASK
                and x.is_contiguous()
                and other.is_contiguous()
                and weight.is_contiguous()
                and not x.is_neg()
                and not other.is_neg()
                and not weight.is_neg()
            ):
                key = (
                    x.shape,
                    x.dtype,
                    x.get_device(),
                    other.shape,
                    other.dtype,
                    other.get_device(),
                    weight.shape,
                    weight.dtype,
                    weight.get_device(),
                    scalars,
                    batch_invariant,
                    is_saving,
                )
                plan = operation.plans.get(key)
        except (RuntimeError, AttributeError):  # without memory, or None
            key = None
    if key is None:
        return forward(operation, tensors, scalars, batch_invariant, is_saving)
    if plan is None:
        return new_forward(operation, key, tensors, scalars, batch_invariant, is_saving)
    y = empty_like(x)
    rstd = new_factors(x, plan) if is_saving else None
    p_rstd = None if rstd is None else rstd.data_ptr()
    if operation.results == 1:
        plan.launch.at((p_x, p_other, p_weight, y.data_ptr(), p_rstd), x, other, weight, y, rstd)
        return y, rstd, plan
    s = empty_like(other)
    plan.launch.at((p_x, p_other, p_weight, y.data_ptr(), s.data_ptr(), p_rstd), x, other, weight, y, s, rstd)
    return y, s, rstd, plan


def backward(
    tensors: tuple[Any, ...], plan: CallPlan, needs_rows: bool, needs_columns: bool, reuses_dy: bool = False
) -> tuple[Tensor | None, ...]:
    """The gradients, None for those that are not needed.

    Args, errors: as `eager.new_backward`.
    """
    operation = plan.operation
    pointers, key = _pointers_and_key(tensors)
    if plan.batch_invariant and not all(map(is_marked, tensors[operation.first_factor :])):
        key = None
    bound_key, launch, copies = plan.backward[needs_columns]
    if key is None or key != bound_key or launch is None or not needs_rows:
        return new_backward(key, tensors, plan, needs_rows, needs_columns, reuses_dy)
    if copies:
        tensors = _copied(copies, tensors, pointers)
    likes = operation.gradient_likes
    is_reused = reuses_dy and launch.reuses_dy and is_reusable(tensors[0], tensors[likes[0][0]], tensors[1:])
    gradients: list[Tensor | None] = [reused(tensors[0])] if is_reused else []
    for like, is_column in likes[is_reused:]:
        gradients.append(new_like(tensors[like]) if needs_columns or not is_column else None)
    for gradient in gradients:
        pointers.append(None if gradient is None else gradient.data_ptr())
    launch.at(pointers, *tensors, *gradients)
    return tuple(gradients)


def _pointers_and_key(tensors: Sequence[Any]) -> tuple[list[int | None], tuple[Any, ...] | None]:
    """The pointers of tensors, and their properties on which checks, config and binary depend.

    The key is None if a tensor is missing, negated or without memory.
    """
    pointers: list[int | None] = []
    key: tuple[Any, ...] = ()
    try:
        for tensor in tensors:
            pointer = tensor.data_ptr()
            if not pointer or type(tensor) not in PLAIN_TYPES or tensor.is_neg():
                return pointers, None
            pointers.append(pointer)
            if not tensor.is_contiguous():
                key += (tensor.stride(),)
            key += tensor.shape, tensor.dtype, tensor.get_device(), pointer & POINTER_MASK
    except (RuntimeError, AttributeError):  # without memory: sparse, nested, batched; or None
        return pointers, None
    return pointers, key


def _copied(indices: tuple[int, ...], tensors: tuple[Any, ...], pointers: list[int | None]) -> tuple[Any, ...]:
    """The tensors with contiguous copies of those at `indices`, whose pointers are replaced."""
    every = list(tensors)
    for index in indices:
        every[index] = copy = tensors[index].contiguous()
        pointers[index] = copy.data_ptr()
    return tuple(every)


def _claim(plan: CallPlan, tensors: tuple[Any, ...], pointers: Sequence[Any]) -> None:
    """Check and increment the version of what is written; where all is apart, only inference tensors are checked."""
    operation = plan.operation
    end = end_of_written = 0
    for start, (size, is_written) in sorted(zip(pointers, plan.spans)):  # noqa: B905  (strict takes 0.1 us)
        is_apart = start >= (end if is_written else end_of_written)
        if not is_apart:
            break
        if start + size > end:
            end = start + size
        if is_written:
            end_of_written = end
    written = operation.written_of(tensors)
    if not is_apart or (not is_inference_mode_enabled() and any(map(Tensor.is_inference, written))):
        check_written(*operation.divided(dict(zip(operation.inputs, tensors, strict=True))))
    increment_version(written)
