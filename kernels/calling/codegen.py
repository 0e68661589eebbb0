"""The fast path of a call: Python functions generated from templates, with the names of an operation's tensors.

In: an `Operation`. Out: its call, forward and backward, as Python functions that launch what is cached for tensors like
theirs. They leave tensor subclasses, modes and compilers to `op`, and calls without a cached launch to `eager`.

They are generated because loops over the tensors are slow: a call of `rms_norm` written as closures with loops takes
24 % more instructions and time (435 instead of 351; 6.8 instead of 5.5 us without the launch), and with `map` 6 % more
instructions and 45 % more time.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.overrides import has_torch_function_variadic

from normtune.kernels.calling import eager
from normtune.kernels.calling.arguments import check_flag, number
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.in_place import claim, is_reusable, reused
from normtune.kernels.calling.layout import PLAIN, POINTER_MASK
from normtune.kernels.calling.operation import Operation
from normtune.kernels.problem import HIDDEN, ROWS, ROWS_HIDDEN

_CALL = """
def {name}({signature}, batch_invariant=None):
    if (
        is_compiling()
        or {is_special}
        or has_torch_function_variadic({inputs})
        or modes()
        or transforms()
        or forward_ad._current_level >= 0
        or is_traced()
    ):
        return special(({inputs},), {scalars}, batch_invariant)
{derive}
{convert}    if batch_invariant is None:
        batch_invariant = is_batch_invariant()
    elif batch_invariant is not True and batch_invariant is not False:
        check_flag("batch_invariant", batch_invariant, is_optional=True)
{differentiate}    return forward({arguments}, batch_invariant, False)[{results}]
"""

_CONVERT = """    if {is_number_missing}:
        {names}, = map(number, {scalar_names}, {scalars})
"""

_DIFFERENTIATE = """    if is_grad_enabled() and ({requires_grad}):
        return differentiable({inputs}, ({scalars}batch_invariant,))
"""

# Makes the key of a forward and looks its plan up.
_PLAN = """    key = plan = None
    if {is_present}:
        try:
            {pointers}, = {data_ptrs},
            if {is_plain}:
                # Everything on which checks, config and binary depend.
                key = ({key}, batch_invariant, is_saving{is_in_place})
                plan = plans.get(key)
        except RuntimeError:  # a tensor without memory: sparse, nested, or left over from a mode
            key = None
    if plan is None:
"""

# Checks that tensors may be written, and increments their versions.
_CLAIM = """    {sizes_of}, = plan.spans
    if {overlap} or (({is_inference}) and not is_inference_mode_enabled()):
        claim(*operation.divided(dict(zip(operation.inputs, ({inputs},)))))
    else:
        increment_version([{written}])
"""

_FORWARD = f"""
def forward({{arguments}}, batch_invariant, is_saving):
{_PLAN}        return new_forward(operation, key, ({{inputs}},), {{scalars}}, batch_invariant, is_saving)
{{claim}}{{make}}
    plan.launch.at(({{pointers}}, {{made_pointers}}), {{inputs}}, {{outputs}})
    return {{outputs}}, plan
"""

_IN_PLACE = f"""
def in_place({{arguments}}, batch_invariant, is_saving=False):
{_PLAN}        new_forward(operation, key, ({{inputs}},), {{scalars}}, batch_invariant, is_saving, True)
        return
{{claim}}    plan.launch.at(({{pointers}}, {{target_pointers}}), {{inputs}}, {{targets}})
"""

_BACKWARD = """
def backward({inputs}, plan, needs_rows, needs_columns):
    key = None
    if {is_present}:
        try:
            {pointers}, = {data_ptrs},
            if {is_of_plain_type} and {is_plain} and (not plan.batch_invariant or {is_marked}):
                key = ({sizes})
        except RuntimeError:  # batched gradients have no memory
            key = None
    kept, launch = plan.backward[needs_columns]
    if key is None or key != kept or not needs_rows:
        return new_backward(key, ({inputs},), plan, needs_rows, needs_columns)
{make}
    launch.at(({pointers}, {made_pointers}), {inputs}, {outputs})
    return {outputs},
"""

_SAVING = """
def saving(ctx, {inputs}, options):
    {outputs}, ctx.plan = forward({inputs}, *options, True)
    ctx.save_for_backward({saved})
    return {results}
"""

_GRADIENTS = """
def gradients(ctx, {incoming}):
    if is_grad_enabled():  # a graph is recorded: gradients of gradients are wanted
        return recorded(ctx, {incoming})
    {saved}, = ctx.saved_tensors
    needs = ctx.needs_input_grad
    {made}, = backward({incoming}, {saved}, ctx.plan, {needs_rows}, {needs_columns})
    return {ordered}, None
"""


def forward_of(operation: Operation) -> Callable[..., tuple[Any, ...]]:
    """The forward: (inputs, scalars, batch_invariant, is_saving) to the outputs and the `eager.CallPlan`."""
    x = operation.inputs[0]
    makers = {
        name: f"new_factors({x}, plan){' if is_saving else None' * bool(operation.backward)}"
        if name in operation.factors
        else f"new_of({x}, *plan.made[{name!r}])"
        if not operation.backward
        else f"empty_like({operation.like_of(name)})"
        for name in operation.outputs
    }
    scope = {"plans": operation.plans, "new_forward": eager.new_forward, "new_factors": eager.new_factors}
    scope |= {"new_of": eager.new_of, **_CLAIMING}
    return _function(
        *("forward", _FORWARD, operation, scope, operation.inputs, makers),
        scalars=_tuple(operation.defaults),
        is_in_place="",
        claim=_claim(operation, operation.written) if operation.written else "",
    )


def in_place_of(operation: Operation) -> Callable[..., None]:
    """The forward that writes into its inputs; its launches have keys of their own."""
    scope = {"plans": operation.plans, "new_forward": eager.new_forward, **_CLAIMING}
    targets = [operation.in_place.get(name) for name in operation.outputs]
    return _function(
        *("in_place", _IN_PLACE, operation, scope, operation.inputs, {}),
        scalars=_tuple(operation.defaults),
        is_in_place=", True",
        targets=", ".join(map(str, targets)),
        target_pointers=", ".join("None" if name is None else f"p_{name}" for name in targets),
        claim=_claim(operation, tuple(operation.in_place.values())) if operation.in_place else "",
    )


_CLAIMING = {
    "claim": claim,
    "increment_version": increment_version,
    "is_inference_mode_enabled": torch.is_inference_mode_enabled,
}


def _claim(operation: Operation, written: tuple[str, ...]) -> str:
    """The code of `_CLAIM` for a call that writes these inputs."""
    overlapping = [
        f"p_{one} < p_{other} + n_{other} and p_{other} < p_{one} + n_{one}"
        for one, other in combinations(operation.inputs, 2)
        if one in written or other in written
    ]
    return _CLAIM.format(
        inputs=", ".join(operation.inputs),
        sizes_of=", ".join(f"n_{name}" for name in operation.inputs),
        overlap=" or ".join(overlapping),
        written=", ".join(written),
        is_inference=" or ".join(f"{name}.is_inference()" for name in written),
    )


def backward_of(operation: Operation, reuses_dy: bool = False) -> Callable[..., tuple[Any, ...]]:
    """The backward: (gradients, saved tensors, plan, needs_rows, needs_columns) to the gradients of the inputs.

    With `reuses_dy` it writes its first gradient into the memory of the first one that it reads, where that is safe.
    """
    makers = {
        name: f"empty_like({name[1:]}) if needs_columns else None"
        if operation.axes[name] == HIDDEN
        else f"empty_like({operation.like_of(name)})"
        for name in operation.gradients
    }
    inputs = (*operation.incoming, *operation.saved)
    factors = operation.with_axes(operation.saved, ROWS)
    scope: dict[str, Any] = {"new_backward": eager.new_backward, "is_marked": eager.is_marked}
    if reuses_dy:
        first, (dy, *others) = operation.gradients[0], inputs
        may = f"launch.reuses_dy and is_reusable({dy}, {operation.like_of(first)}, {_tuple(others)})"
        makers[first] = f"reused({dy}) if {may} else {makers[first]}"
        scope |= {"is_reusable": is_reusable, "reused": reused}
        scope["new_backward"] = partial(eager.new_backward, reuses_dy=True)
    return _function(
        *("backward", _BACKWARD, operation, scope, inputs, makers),
        is_of_plain_type=" and ".join(f"type({name}) in PLAIN" for name in inputs),
        is_marked=" and ".join(f"is_marked({name})" for name in factors) or "True",
    )


def saving_of(operation: Operation, forward: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """The forward of the autograd function, around the result of `forward_of`."""
    outputs = operation.outputs
    return _defined(
        "saving",
        _SAVING,
        operation,
        {"forward": forward},
        inputs=", ".join(operation.inputs),
        outputs=", ".join(outputs),
        saved=", ".join(operation.saved),
        results=", ".join(outputs[: operation.results]),
    )


def gradients_of(
    operation: Operation, backward: Callable[..., tuple[Any, ...]], recorded: Callable[..., Any]
) -> Callable[..., Any]:
    """The backward of the autograd function, around the result of `backward_of`.

    `recorded` takes ctx and the gradients of the results; it is called instead while grad mode is on.
    """

    def needs(axes: str) -> str:
        indices = [number for number, name in enumerate(operation.inputs) if operation.axes[name] == axes]
        return " or ".join(f"needs[{number}]" for number in indices) or "False"

    return _defined(
        "gradients",
        _GRADIENTS,
        operation,
        {"backward": backward, "recorded": recorded, "is_grad_enabled": torch.is_grad_enabled},
        incoming=", ".join(operation.incoming),
        saved=", ".join(operation.saved),
        made=", ".join(operation.gradients),
        needs_rows=needs(ROWS_HIDDEN),
        needs_columns=needs(HIDDEN),
        ordered=", ".join(operation.gradients[index] for index in operation.gradient_of),
    )


def call_of(
    operation: Operation,
    special: Callable[..., Any],
    forward: Callable[..., tuple[Any, ...]],
    differentiable: Callable[..., Any] | None,
) -> Callable[..., Any]:
    """The public call.

    Args:
        operation: the declaration.
        special: takes (inputs, scalars, batch_invariant); called for tensor subclasses, modes and compilers.
        forward: from `forward_of`.
        differentiable: takes the inputs and the tuple (*scalars, batch_invariant), and records a graph; None for an
            operation without a backward.
    """
    inputs, scalars = operation.inputs, operation.defaults
    defaults = [f"{name}={value!r}" for name, value in scalars.items()]
    signature = [
        f"{name}=None" if set(inputs[number:]) <= set(operation.optional) else name
        for number, name in enumerate(inputs)
    ]
    requires_grad = " or ".join(_if_there(operation, name, f"{name}.requires_grad") for name in inputs)
    differentiate = _DIFFERENTIATE.format(
        inputs=", ".join(inputs), scalars="".join(f"{name}, " for name in scalars), requires_grad=requires_grad
    )
    convert = _CONVERT.format(
        is_number_missing=" or ".join(f"type({name}) is not float" for name in scalars),
        names=", ".join(scalars),
        scalar_names=tuple(scalars),
        scalars=_tuple(scalars),
    )
    derive = [f"    if {name} is None:\n        {name} = derived[{name!r}]({inputs[0]})" for name in operation.derived]
    scope = {
        **{"special": special, "forward": forward, "differentiable": differentiable, "derived": operation.derived},
        **{
            "number": number,
            "check_flag": check_flag,
            "is_batch_invariant": is_batch_invariant,
            "forward_ad": forward_ad,
        },
        "has_torch_function_variadic": has_torch_function_variadic,
        "is_compiling": torch.compiler.is_compiling,
        "is_grad_enabled": torch.is_grad_enabled,
        "modes": torch._C._len_torch_dispatch_stack,
        "transforms": torch._C._are_functorch_transforms_active,
        "is_traced": torch._C._get_tracing_state,
    }
    return _function(
        *(operation.name, _CALL, operation, scope, inputs, {}),
        name=operation.name,
        signature=", ".join((*signature, *defaults)),
        scalars=_tuple(scalars),
        convert=convert if scalars else "",
        derive="\n".join(derive),
        is_special=" or ".join(_if_there(operation, name, f"type({name}) not in PLAIN") for name in inputs),
        differentiate=differentiate if differentiable else "",
        results=0 if operation.results == 1 and operation.backward else f":{operation.results}",
    )


def _tuple(names: Iterable[str]) -> str:
    """Code of the tuple of these names."""
    return f"({', '.join(names)},)" if names else "()"


def _if_there(operation: Operation, name: str, condition: str) -> str:
    return f"({name} is not None and {condition})" if name in operation.optional else condition


def _function(
    function: str,
    template: str,
    operation: Operation,
    scope: dict[str, Any],
    inputs: tuple[str, ...],
    makers: dict[str, str],
    **texts: Any,
) -> Callable[..., Any]:
    """Fill in a template that defines a function, and return the function.

    Args:
        function: its name.
        template: its code, with fields in braces.
        operation: the declaration.
        scope: the global names that the code uses.
        inputs: names of the tensors that it takes.
        makers: for each tensor that it makes, an expression.
        texts: the fields that are not filled in here.
    """
    missing = [name for name in inputs if name in operation.optional]
    pointers = [f"p_{name}" for name in inputs]
    source = template.format(
        inputs=", ".join(inputs),
        outputs=", ".join(makers),
        is_present=" and ".join(f"{name} is not None" for name in missing) or "True",
        pointers=", ".join(pointers),
        made_pointers=", ".join(
            f"None if {name} is None else {name}.data_ptr()" if maker.endswith(" else None") else f"{name}.data_ptr()"
            for name, maker in makers.items()
        ),
        data_ptrs=", ".join(f"{name}.data_ptr()" for name in inputs),
        # Binaries are specialised on pointers that are multiples of 16 bytes.
        is_plain=" and ".join(
            [*pointers, f"not ({' | '.join(pointers)}) & {POINTER_MASK}"]
            + [f"{name}.is_contiguous()" for name in inputs]
            + [f"not {name}.is_neg()" for name in inputs]
        ),
        arguments=", ".join((*inputs, *operation.defaults)),
        key=", ".join(
            [f"{name}.shape, {name}.dtype, {name}.get_device()" for name in inputs] + list(operation.defaults)
        ),
        # The plan has the shapes; `new_backward` compared the tensors with them.
        sizes=", ".join(f"{name}.numel(), {name}.dtype, {name}.get_device()" for name in inputs),
        make="\n".join(f"    {name} = {maker}" for name, maker in makers.items()),
        **texts,
    )
    return _defined(function, source, operation, {**scope, "PLAIN": PLAIN, "empty_like": torch.empty_like})


def _defined(
    function: str, template: str, operation: Operation, scope: dict[str, Any], **texts: str
) -> Callable[..., Any]:
    """The function of this name in the code; its globals are `scope` and the operation."""
    source = template.format(**texts) if texts else template
    namespace = {**scope, "operation": operation}
    exec(compile(source, f"<{operation.name}.{function}>", "exec"), namespace)
    made: Callable[..., Any] = namespace[function]
    return made
