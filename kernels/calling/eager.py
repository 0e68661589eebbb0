"""The slow path of a call: calls without a cached launch, and those that need copies or torch's operations.

In: tensors with readable memory. Out: outputs or gradients, launched on the current stream, or computed by the formula
(`fallback`) from inputs that the kernels do not take. Launches are cached for the fast path (`cached`) under a key of
everything on which checks, config and binary depend; no cached object holds a tensor. Saved tensors may come back to
the backward with other strides, at another address, or recomputed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from normtune.kernels.calling import fallback
from normtune.kernels.calling.arguments import check, check_saved
from normtune.kernels.calling.dispatch import Cache, LaunchRequest, bind_from_table
from normtune.kernels.calling.in_place import check_written, is_reusable, reused, span
from normtune.kernels.calling.launcher import BoundLaunch
from normtune.kernels.calling.layout import (
    as_rows,
    check_invariant,
    copies_of,
    has_memory,
    is_uncopied,
    laid_out,
    new_like,
    takes_kernels,
    traits,
)
from normtune.kernels.calling.operation import Operation
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import HIDDEN, ROWS, ROWS_HIDDEN, Problem

# In the batch-invariant mode factors begin this many elements into their memory. By that a backward recognises factors
# that were recomputed outside of the mode, as activation checkpointing may do.
_MARK = 4
# In `CallPlan.likes`.
_FACTORS = "factors"

_launches: Cache[BoundLaunch] = Cache()


class CallPlan:
    """The cached launches of a forward and its backward, for tensors of the same shapes, strides and dtypes.

    Attributes:
        operation, scalars, batch_invariant: of the call.
        launch: of the forward; None if nothing is launched.
        shape: of the first input.
        rows: number of rows.
        saved: shape and dtype of each input, None for a missing one.
        copies: indices of the inputs that are made contiguous before each cached launch.
        backward: two triples of key (`cached`), cached launch and its `copies`, without and with gradients (hidden,).
        likes: for each output, the index of the input that it is like, or is written into; or its shape and dtype; or
            `_FACTORS`; None for one that is not stored.
        spans: for a call that writes inputs, the bytes that each input spans, and whether it is written.
    """

    __slots__ = (
        "backward",
        "batch_invariant",
        "copies",
        "launch",
        "likes",
        "operation",
        "rows",
        "saved",
        "scalars",
        "shape",
        "spans",
    )

    def __init__(
        self,
        operation: Operation,
        tensors: Mapping[str, Tensor | None],
        scalars: tuple[float, ...],
        batch_invariant: bool,
        is_saving: bool = False,
        is_in_place: bool = False,
    ) -> None:
        x = next(tensor for tensor in tensors.values() if tensor is not None)
        self.operation, self.batch_invariant, self.scalars = operation, batch_invariant, scalars
        self.launch: BoundLaunch | None = None
        self.copies: tuple[int, ...] = ()
        self.shape = x.shape
        self.rows = x.shape[:-1].numel()
        self.saved = {
            name: None if tensor is None else (tensor.shape, tensor.dtype) for name, tensor in tensors.items()
        }
        self.backward: list[tuple[Any, BoundLaunch | None, tuple[int, ...]]] = [(None, None, ()), (None, None, ())]
        sizes = {} if operation.backward else operation.outputs_at(tensors)
        like_of = operation.in_place.get if is_in_place else operation.like_of
        self.likes: list[Any] = [
            None
            if operation.backward and not is_saving and number >= operation.results
            else _FACTORS
            if name in operation.factors
            else sizes.get(name) or operation.inputs.index(like_of(name))
            for number, name in enumerate(operation.outputs)
        ]
        self.spans = (
            [
                (
                    0 if tensor is None else span(tensor),
                    name in operation.written or name in operation.in_place.values(),
                )
                for name, tensor in tensors.items()
            ]
            if is_in_place or operation.written
            else []
        )


def new_forward(
    operation: Operation,
    key: tuple[Any, ...] | None,
    tensors: tuple[Tensor | None, ...],
    scalars: tuple[float, ...],
    batch_invariant: bool,
    is_saving: bool,
    is_in_place: bool = False,
) -> tuple[Any, ...]:
    """A forward without a cached launch.

    Args:
        operation: the called operation.
        key: under which the launch is cached if it needs no copies; None not to cache it.
        tensors: inputs; None for missing ones.
        scalars: of the operation.
        batch_invariant: use the batch-invariant mode.
        is_saving: also store the outputs that only the backward reads.
        is_in_place: write outputs into the inputs that `Operation.in_place` names.

    Returns:
        The outputs, None for those that are not stored, and the `CallPlan`. New outputs are contiguous.

    Raises:
        TypeError, ValueError: as `check` and `check_written`, or the batch-invariant mode is not available.
    """
    check(operation, tensors, scalars)
    inputs = dict(zip(operation.inputs, tensors, strict=True))
    if is_in_place or operation.written:
        check_written(*operation.divided(inputs))
        increment_version(operation.written_of(tensors))  # torch does not for writes below autograd
    scalars = operation.scalars_of(tensors, tuple(map(float, scalars)))
    plan = CallPlan(operation, inputs, scalars, batch_invariant, is_saving, is_in_place)
    x = inputs[operation.inputs[0]]
    assert x is not None
    is_taken = takes_kernels(operation, x)
    if not is_taken or not (operation.backward or x.numel()):
        if batch_invariant and not is_taken:
            check_invariant(operation.inputs[0], x, operation.kernels_take)
        computed = fallback.forward(operation, tensors, scalars, batch_invariant)
        outputs: dict[str, Tensor | None] = dict(zip(operation.outputs, computed, strict=True))
        for name in operation.factors if batch_invariant else ():
            factors = outputs[name]
            assert factors is not None
            outputs[name] = new_factors(factors, plan, factors.dtype).copy_(factors)
        return (*_written_back(operation, inputs, outputs, {}, is_in_place), plan)
    launched: Mapping[str, Tensor | None] = {}
    outputs = {
        name: new_like(tensors[like]) if type(like) is int else new_output(plan, like, x)
        for name, like in zip(operation.outputs, plan.likes, strict=True)
    }
    if x.numel():
        launched = laid_out(operation, inputs, x, batch_invariant)
        views = {name: as_rows(tensor) for name, tensor in outputs.items()}
        for name, source in operation.in_place.items() if is_in_place else ():
            if is_uncopied(inputs[source], launched[source]):
                outputs[name], views[name] = inputs[source], launched[source]
        copies = None if key is None else copies_of(operation, inputs, launched, batch_invariant or bool(plan.spans))
        generation = operation.plans.generation
        launch = _launch(plan, operation.forward, {**launched, **views}, is_saving, is_in_place, copies is None)
        if copies is not None:
            plan.launch, plan.copies = launch, copies
            operation.plans.keep(key, plan, generation)
        launch(*launched.values(), *views.values())
    return (*_written_back(operation, inputs, outputs, launched, is_in_place), plan)


def new_backward(
    key: tuple[Any, ...] | None,
    tensors: tuple[Tensor | None, ...],
    plan: CallPlan,
    needs_rows: bool,
    needs_columns: bool,
    reuses_dy: bool = False,
) -> tuple[Tensor | None, ...]:
    """A backward without a cached launch.

    Args:
        key: as in `new_forward`.
        tensors: the gradients of outputs, of their shapes and any strides; then saved tensors, or copies of them.
        plan: of the forward.
        needs_rows: whether gradients (..., hidden) are needed; kernels compute them in any case.
        needs_columns: whether gradients (hidden,) are needed.
        reuses_dy: write the first gradient into the memory of the first tensor if that is safe (`is_reusable`).

    Returns:
        The gradients, contiguous, in the dtypes of the inputs; None for those that are not needed.

    Raises:
        ValueError: a saved tensor came back with other properties.
    """
    operation = plan.operation
    by_name = dict(zip((*operation.incoming, *operation.saved), tensors, strict=True))
    check_saved(plan, by_name)
    x = by_name[operation.incoming[0]]
    assert x is not None
    is_wanted = operation.are_needed(needs_rows, needs_columns)
    is_batched = not all(map(has_memory, tensors[: operation.results]))  # type: ignore[arg-type]
    if plan.batch_invariant:
        if is_batched:
            raise ValueError("the batch-invariant mode has no batched gradients: ask for one at a time")
        by_name |= _invariant_factors(by_name, plan)
    if is_batched or not takes_kernels(operation, x):
        computed = _backward_by_formula(by_name, plan)
        return tuple(computed[name] if is_wanted[name] else None for name in operation.gradients)
    launched = laid_out(operation, by_name, x, plan.batch_invariant) if x.numel() else by_name
    likes = {
        name: by_name[operation.like_of(name)] if operation.axes[name] == ROWS_HIDDEN else launched[name[1:]]
        for name in operation.gradients
    }
    first = operation.gradients[0]
    is_reused = reuses_dy and is_wanted[first] and is_reusable(x, likes[first], tensors[1:])  # type: ignore[arg-type]
    gradients = {
        name: None
        if operation.axes[name] == HIDDEN and not needs_columns
        else x
        if is_reused and name == first
        else new_like(like)
        for name, like in likes.items()
    }
    if x.numel():
        every = {**launched, **{name: as_rows(gradient) for name, gradient in gradients.items()}}
        assert operation.backward
        launch = _launch(plan, operation.backward, every, needs_columns)
        if is_reused and not launch.reuses_dy:
            gradients[first] = new_like(likes[first])
            every[first] = as_rows(gradients[first])
        if key is not None and plan.launch is not None and needs_rows:
            copies = copies_of(operation, by_name, launched, plan.batch_invariant)
            if copies is not None:
                plan.backward[needs_columns] = key, launch, copies
        launch(*every.values())
        if gradients[first] is x:
            reused(x)
    for name, gradient in gradients.items():
        if operation.axes[name] == HIDDEN and gradient is not None:
            gradient = gradient if x.numel() else gradient.zero_()
            gradients[name] = gradient.to(by_name[name[1:]].dtype)  # type: ignore[union-attr]
    return tuple(gradient if is_wanted[name] else None for name, gradient in gradients.items())


def _written_back(
    operation: Operation,
    inputs: Mapping[str, Tensor | None],
    outputs: dict[str, Tensor | None],
    launched: Mapping[str, Tensor | None],
    is_in_place: bool,
) -> Sequence[Tensor | None]:
    """The outputs, after copies of what was launched were copied into the inputs that the call writes."""
    written = {name: launched[name] for name in operation.written if launched}
    for name, source in operation.in_place.items() if is_in_place else ():
        written[source], outputs[name] = outputs[name], inputs[source]
    for name, result in written.items():
        target = inputs[name]
        if target is not None and result is not None and not is_uncopied(target, result):
            target.copy_(result.view(target.shape))
    return tuple(outputs.values())


def new_output(plan: CallPlan, like: Any, x: Tensor) -> Tensor | None:
    """A new output that is not like an input, given its element of `CallPlan.likes` and the first input."""
    if like is None:
        return None
    return new_factors(x, plan) if like is _FACTORS else new_of(x, *like)


def new_of(x: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An empty tensor on the device of x."""
    # Sizes as separate arguments cost 0.7 us less than as a tuple, which a tensor without dimensions needs.
    return torch.empty(*(shape or ((),)), dtype=dtype, device=x.device)


def new_factors(x: Tensor, plan: CallPlan, dtype: torch.dtype = torch.float32) -> Tensor:
    """An empty tensor (rows,); in the batch-invariant mode with the storage offset that marks it."""
    if plan.batch_invariant:
        return x.new_empty(plan.rows + _MARK, dtype=dtype)[_MARK:]
    return x.new_empty(plan.rows, dtype=dtype)


def is_marked(factors: Tensor) -> bool:
    """Whether a forward in the batch-invariant mode made these factors; copies of them lack the mark."""
    return factors.storage_offset() == _MARK


def _launch(
    plan: CallPlan,
    spec: OperatorSpec,
    tensors: Mapping[str, Tensor | None],
    is_whole: bool,
    is_in_place: bool = False,
    is_shared: bool = True,
) -> BoundLaunch:
    """The launch for tensors like these, from the cache that all plans share if `is_shared`."""
    operation = plan.operation
    scalars = dict(zip(operation.defaults, plan.scalars, strict=True))
    problem = problem_of(operation, spec, tensors, is_whole)
    key = (problem, plan.scalars, plan.batch_invariant, is_in_place, *map(traits, tensors.values()))
    if operation.is_grouped:  # strides do not determine the extents
        key += tuple(None if tensor is None else tensor.shape for tensor in tensors.values())
    generation = _launches.generation
    if is_shared and (launch := _launches.get(key)):
        return launch
    options = operation.compiler_options(scalars) if spec is operation.forward else None
    launch = bind_from_table(LaunchRequest(spec, problem, tensors, scalars, plan.batch_invariant, options, is_in_place))
    return _launches.keep(key, launch, generation) if is_shared else launch


def problem_of(
    operation: Operation, spec: OperatorSpec, tensors: Mapping[str, Tensor | None], is_whole: bool
) -> Problem:
    """The problem of a launch, in the widest dtype of its rows, so that its config is legal for all of them."""
    rows = [tensors[name] for name in operation.with_axes(tuple(tensors), ROWS_HIDDEN)]
    x = max(
        (tensor for tensor in rows if tensor is not None and tensor.dtype in operation.dtypes), key=Tensor.element_size
    )
    key = spec.key(operation.dtypes[x.dtype], operation.variants[spec.name][is_whole])
    return Problem(key, x.shape[:-1].numel(), x.shape[-1] // operation.heads)


def _backward_by_formula(tensors: Mapping[str, Tensor | None], plan: CallPlan) -> dict[str, Tensor | None]:
    """The gradients of tensors that the kernels do not take, and of those under vmap."""
    operation = plan.operation
    incoming: list[Any] = [tensors[name] for name in operation.incoming]
    saved = [tensors[name] for name in operation.saved]
    gradients: Sequence[Tensor | None]
    if all(has_memory(gradient) for gradient in incoming if gradient is not None):
        gradients = fallback.backward(operation, incoming, saved, plan.scalars, plan.batch_invariant)
    else:
        factors = operation.with_axes(operation.saved, ROWS)
        shaped = [
            tensor.view(plan.shape[:-1]) if name in factors and tensor is not None else tensor
            for name, tensor in zip(operation.saved, saved, strict=True)
        ]
        gradients = operation.formula.backward(*incoming, *shaped, *plan.scalars)
    return dict(zip(operation.gradients, gradients, strict=True))


def _invariant_factors(tensors: Mapping[str, Tensor | None], plan: CallPlan) -> dict[str, Tensor | None]:
    """Factors that lack the mark of the batch-invariant mode, computed again in it from the saved inputs."""
    operation = plan.operation
    names = [name for name in operation.saved if operation.axes[name] == ROWS]
    if all(tensor is not None and is_marked(tensor) for tensor in map(tensors.get, names)):
        return {}
    if not set(operation.inputs) <= set(operation.saved):
        return {}
    inputs = tuple(tensors[name] for name in operation.inputs)
    *outputs, _ = new_forward(operation, None, inputs, plan.scalars, True, True)
    by_name = dict(zip(operation.outputs, outputs, strict=True))
    return {name: by_name[name] for name in names}
