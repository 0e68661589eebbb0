"""The function that users call, made from an operation.

In: an `Operation`. Out: an `Op`, or an `OpFamily` for operations that options distinguish. Each call takes one of three
paths: a cached launch for plain tensors (`cached`), torch's dispatcher for modes, exporters and tensor subclasses
(`torch_ops`), the formula for function transforms. Compilers see the second or the third (`compiled`).
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function, has_torch_function_variadic

from normtune.kernels.calling import cached, compiled
from normtune.kernels.calling.arguments import check, check_flag, check_kind, number
from normtune.kernels.calling.autograd import apply, gradients_through
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.eager import new_of
from normtune.kernels.calling.layout import PLAIN_TYPES
from normtune.kernels.calling.operation import Operation, picking
from normtune.kernels.calling.torch_ops import TorchOps, define, registration_of

# What intercepts calls of plain tensors.
is_compiling = torch.compiler.is_compiling
modes = torch._C._len_torch_dispatch_stack
transforms = torch._C._are_functorch_transforms_active
is_traced = torch._C._get_tracing_state
_PLAIN_OR_NONE = PLAIN_TYPES | {type(None)}


class Op:
    """The calls of one operation.

    Args:
        operation: the declaration.
        dispatched: for an operation of a family, a function of (inputs, scalars, batch_invariant) that goes through
            torch's dispatcher.
        has_gradients: whether calls have gradients, those of the backward or of the family.
        forward: of `cached`, for the operation's number of inputs.

    Attributes:
        operation, forward: the arguments.
        picked: the index, or slice, of what a call returns of the outputs.
        saved: picks from inputs and outputs what a backward reads.
        of_inputs: picks from the gradients one for each input.
        ops: the operators of torch's dispatcher; only for an operation with a backward.
        public: the function that `__torch_function__` of a tensor subclass receives, where no caller sees to that.
    """

    public: Callable[..., Any]

    def __init__(
        self,
        operation: Operation,
        dispatched: Callable[..., Any] | None = None,
        has_gradients: bool = True,
        forward: Callable[..., tuple[Any, ...]] = cached.forward,
    ) -> None:
        self.operation, self.forward, self._dispatched = operation, forward, dispatched
        self._has_gradients = has_gradients
        self.picked: Any = slice(operation.results)
        if operation.backward:
            names = (*operation.inputs, *operation.outputs)
            self.saved = picking(tuple(map(names.index, operation.saved)))
            self.of_inputs = picking(operation.gradient_of)
            if operation.results == 1:
                self.picked = 0
            operation.needed(())  # compilers cannot trace a cached property before it has its value
            self.ops = TorchOps(operation, forward)
            self._register = registration_of(operation, self.ops)

    def call(
        self, tensors: tuple[Any, ...], scalars: tuple[Any, ...], batch_invariant: Any, reuse_dy: Any = False
    ) -> Any:
        """The results, which have gradients of any order.

        Args:
            tensors: inputs; None for missing ones.
            scalars: of the operation, finite numbers; None for one that is derived.
            batch_invariant: True, False, or None for the setting.
            reuse_dy: let the backward write dx into the memory of dy where that is safe.

        Raises:
            TypeError, ValueError: as `arguments.check`, or a flag is no bool.
        """
        if reuse_dy is not False:
            check_flag("reuse_dy", reuse_dy)
        if (
            is_compiling()
            or not _PLAIN_OR_NONE.issuperset(map(type, tensors))
            or tensors[0] is None
            or has_torch_function_variadic(*tensors)
            or modes()
            or transforms()
            or forward_ad._current_level >= 0
            or is_traced()
        ):
            return self.special(tensors, scalars, batch_invariant)
        operation = self.operation
        for scalar in scalars:
            if type(scalar) is not float:
                scalars = tuple(map(number, operation.defaults, self._derived(tensors, scalars)))
                break
        if batch_invariant is None:
            batch_invariant = is_batch_invariant()
        elif batch_invariant is not True and batch_invariant is not False:
            check_flag("batch_invariant", batch_invariant, is_optional=True)
        if self._has_gradients and is_grad_enabled():
            for tensor in tensors:
                if tensor is not None and tensor.requires_grad:
                    if self._dispatched:
                        return self._dispatched(tensors, scalars, batch_invariant)
                    return apply(self, scalars, batch_invariant, reuse_dy, *tensors)
        return self.forward(operation, tensors, scalars, batch_invariant, False)[self.picked]

    def call_backward(self, *arguments: Any) -> Any:
        """`ops.backward`, also for DTensors."""
        if any(map(_is_sharded, arguments)):
            self._register()
        return self.ops.backward(*arguments)

    def call_in_place(
        self, tensors: Sequence[Any], scalars: Sequence[float | None], batch_invariant: bool | None
    ) -> None:
        """Write the results into the inputs that `Operation.in_place` names; there are no gradients.

        Raises:
            TypeError, ValueError: as `call` and `in_place.check_written`; or an input needs a gradient.
        """
        operation = self.operation
        if is_grad_enabled() and any([getattr(tensor, "requires_grad", False) for tensor in tensors]):
            raise ValueError(f"{operation.name} in place has no gradients: expected inputs that need none")
        is_plain = _PLAIN_OR_NONE.issuperset(map(type, tensors))
        if is_plain and not (is_compiling() or modes() or transforms() or is_traced()):
            mode = is_batch_invariant() if batch_invariant is None else batch_invariant
            cached.forward(operation, tuple(tensors), self._derived(tensors, scalars), mode, False, is_in_place=True)
            return
        for name, tensor in zip(operation.inputs, tensors, strict=True):
            if tensor is not None or name not in operation.optional:
                check_kind(name, tensor)
        first, *others = (tensors[operation.inputs.index(name)] for name in operation.in_place.values())
        if any(first is other for other in others):  # compilers would give each its own memory
            names = " and ".join(operation.in_place.values())
            raise ValueError(f"{names} share memory: expected tensors apart, as results are written into both")
        numbers = self._derived(tensors, scalars)
        check(operation, tensors, numbers)
        if compiled.way_of(operation, tensors[0], False, batch_invariant) == "kernel":
            self.ops.in_place(*tensors, *numbers, batch_invariant)
            return
        outputs = dict(zip(operation.outputs, operation.formula.forward(*tensors, *numbers), strict=True))
        for name, source in operation.in_place.items():
            tensors[operation.inputs.index(source)].copy_(outputs[name])

    def _derived(self, tensors: Sequence[Any], scalars: Sequence[Any]) -> tuple[Any, ...]:
        """The scalars; None is replaced by the value that `Operation.derived` computes from the first input."""
        for value in scalars:
            if value is None:
                break
        else:
            return tuple(scalars)
        derived = self.operation.derived
        return tuple(
            derived[name](tensors[0]) if value is None and name in derived else value
            for name, value in zip(self.operation.defaults, scalars, strict=True)
        )

    def special(self, tensors: tuple[Any, ...], scalars: tuple[Any, ...], batch_invariant: bool | None) -> Any:
        """Calls with anything but plain tensors, and calls under compilers, modes or function transforms."""
        operation = self.operation
        for name, tensor in zip(operation.inputs, tensors, strict=True):
            if not is_proxy(tensor) and (tensor is not None or name not in operation.optional):
                check_kind(name, tensor)
        if has_torch_function_variadic(*tensors):
            named = dict(zip(operation.defaults, scalars, strict=True)) | {"batch_invariant": batch_invariant}
            return handle_torch_function(self.public, tensors, *tensors, **named)
        scalars = self._derived(tensors, scalars)
        if not is_traced():  # traced sizes are tensors; the operator checks them
            check(operation, tensors, scalars)
        if self._has_gradients and (transforms() or forward_ad._current_level >= 0):
            return self._transformed(tensors, scalars, batch_invariant)
        if self._dispatched:
            return self._dispatched(tensors, scalars, batch_invariant)
        if not (is_compiling() or modes() or is_traced() or any(map(_intercepts, tensors))):
            # A subclass that does not intercept operations.
            base_tensors = tuple(None if tensor is None else tensor.as_subclass(Tensor) for tensor in tensors)
            return self.call(base_tensors, scalars, batch_invariant)
        if any(map(_is_sharded, tensors)):
            self._register()
        if batch_invariant is None and not (is_compiling() or modes() or is_traced()):
            batch_invariant = is_batch_invariant()  # the graph keeps it; saved tensors may be copied
        # torch.jit.trace compares its recordings with and without gradients.
        is_saving = (is_traced() or is_grad_enabled()) and any(
            tensor is not None and tensor.requires_grad for tensor in tensors
        )
        way = compiled.way_of(operation, tensors[0], is_saving, batch_invariant)
        if way == "backward":
            return compiled.FusedForward.apply(self, scalars, *tensors)  # type: ignore[no-untyped-call]
        if way == "formula":
            return operation.formula.forward(*tensors, *scalars)[self.picked]
        return self.ops.forward(*tensors, *scalars, batch_invariant, is_saving)[self.picked]

    def _transformed(self, tensors: tuple[Any, ...], scalars: tuple[float, ...], batch_invariant: bool | None) -> Any:
        if batch_invariant is None and not is_compiling():
            batch_invariant = is_batch_invariant()
        if batch_invariant or self.operation.written:
            switch = "batch_invariant" if batch_invariant else "in_place"
            inside = "inside of a transform of torch.func or a forward-mode derivative"
            raise ValueError(f"{switch} is on {inside}: expected it off")
        return self.operation.formula.forward(*tensors, *scalars)[self.picked]


class OpFamily:
    """Operations without a backward that integers and strings distinguish, such as those of `rms_norm_quantize_fp8`.

    torch's dispatcher knows all of them as one operator.

    Args:
        name: of this operator.
        inputs: names of all inputs that any operation has; the one with rows comes first.
        scalars: the same for scalars, each with a valid value.
        options: names of what distinguishes the operations, each with its kind, `int` or `str`.
        operation_of: returns the operation, given the options.
        written: name of the input that all operations write; None if they write none.
        outputs: names of all outputs of operations that write an input.
        differentiable: names of the inputs that have gradients, unless one is written; calls detach the others.
        gradients: takes the gradients of the outputs, the arguments of the operator and, for each input, whether its
            gradient is needed; returns those of the differentiable inputs. None for those of the formula.

    Attributes:
        operator: takes inputs, scalars, options, and batch_invariant or None; returns the list of the outputs. One
            that writes an input returns all `outputs`, with empty tensors for those that the operation lacks, as
            compilers accept no list there.
        outputs_of: returns the names of the outputs, given the options.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[str],
        scalars: Mapping[str, float],
        options: Mapping[str, str],
        operation_of: Callable[..., Operation],
        written: str | None = None,
        outputs: Sequence[str] = (),
        differentiable: Sequence[str] = (),
        gradients: Callable[..., Sequence[Tensor | None]] | None = None,
    ) -> None:
        self.inputs, self.scalars, self.operation_of = inputs, scalars, operation_of
        self._written, self._outputs, self._differentiable = written, outputs, differentiable
        self._gradients = gradients or self._gradients_of_formula
        self._ops: dict[tuple[Any, ...], Op] = {}
        marks = {inputs[0]: "", written: "(a!)"}
        tensors = [f"Tensor{marks.get(name, '?')} {name}" for name in inputs]
        others = [*(f"float {name}" for name in scalars), *(f"{kind} {name}" for name, kind in options.items())]
        results = f"({', '.join('Tensor' for _ in outputs)})" if written else "Tensor[]"
        self.operator = define(
            name,
            f"({', '.join((*tensors, *others, 'bool? batch_invariant'))}) -> {results}",
            self._launch,
            self._shapes,
            self._backward if differentiable and not written else None,
            self._save,
        )

        def outputs_of(*options: Any) -> tuple[str, ...]:
            return self._op_of(options).operation.outputs

        # Compilers call it instead of tracing it, since the result depends on the options only.
        outputs_of._dynamo_marked_constant = True  # type: ignore[attr-defined]
        self.outputs_of = outputs_of

    def call(
        self,
        options: tuple[Any, ...],
        inputs: Mapping[str, Any],
        scalars: Mapping[str, float],
        batch_invariant: bool | None,
    ) -> Sequence[Tensor]:
        """Call the operation of these options; returns its outputs.

        `inputs` and `scalars` have a value for each name in the attributes, of which the operation reads its own.

        Raises:
            TypeError, ValueError: as `arguments.check`, or the batch-invariant mode is not available.
        """
        if is_compiling():
            return self._dispatched(options, inputs, scalars, batch_invariant)
        op = self._op_of(options)
        tensors = tuple([inputs[name] for name in op.operation.inputs])
        numbers = tuple([scalars[name] for name in op.operation.defaults])
        return op.call(tensors, numbers, batch_invariant)  # type: ignore[no-any-return]

    def _dispatched(
        self,
        options: tuple[Any, ...],
        inputs: Mapping[str, Any],
        scalars: Mapping[str, float],
        batch_invariant: bool | None,
    ) -> Sequence[Tensor]:
        """The outputs of a call through torch's dispatcher; missing inputs and scalars are those it does not read."""
        tensors = [
            tensor if tensor is None or name in self._differentiable or name == self._written else tensor.detach()
            for name, tensor in [(name, inputs.get(name)) for name in self.inputs]
        ]
        numbers = [number(name, scalars.get(name, value)) for name, value in self.scalars.items()]
        outputs: Sequence[Tensor] = self.operator(*tensors, *numbers, *options, batch_invariant) or ()
        if not self._outputs:
            return outputs
        named = dict(zip(self._outputs, outputs, strict=True))
        return [named[name] for name in self.outputs_of(*options)]

    def _op_of(self, options: tuple[Any, ...]) -> Op:
        op = self._ops.get(options)
        if op is None:
            dispatched = partial(self._dispatched_op, options)
            op = Op(self.operation_of(*options), dispatched, bool(self._differentiable))
        return self._ops.setdefault(options, op)

    def _dispatched_op(
        self,
        options: tuple[Any, ...],
        tensors: Sequence[Any],
        scalars: Sequence[Any],
        batch_invariant: bool | None,
    ) -> Sequence[Tensor]:
        """`_dispatched` of the inputs and scalars of one operation."""
        operation = self._op_of(options).operation
        if batch_invariant is None and not (modes() or is_traced()):
            batch_invariant = is_batch_invariant()  # a backward runs in another thread
        inputs, numbers = zip(operation.inputs, tensors, strict=True), zip(operation.defaults, scalars, strict=True)
        return self._dispatched(options, dict(inputs), dict(numbers), batch_invariant)

    def _parsed(self, arguments: Sequence[Any]) -> tuple[Operation, dict[str, Any], tuple[float, ...], bool]:
        """The operation that the arguments of the operator name, its inputs, its scalars, and batch_invariant."""
        names = (*self.inputs, *self.scalars)
        *options, mode = arguments[len(names) :]
        named = dict(zip(names, arguments, strict=False))
        # Compilers may pass symbols, which they guard as integers.
        operation = self._op_of(tuple([one if isinstance(one, str) else int(one) for one in options])).operation
        inputs = {name: named[name] for name in operation.inputs}
        scalars = tuple(named[name] for name in operation.defaults)
        return operation, inputs, scalars, is_batch_invariant() if mode is None else mode

    def _launch(self, *arguments: Any) -> Any:
        operation, inputs, scalars, mode = self._parsed(arguments)
        *outputs, _ = cached.forward(operation, tuple(inputs.values()), scalars, mode, False)
        return self._returned(operation, outputs, arguments[0])

    def _shapes(self, *arguments: Any) -> Any:
        operation, inputs, scalars, _ = self._parsed(arguments)
        x, *others = inputs.values()
        check(operation, (x, *others), scalars)
        outputs = [new_of(x, shape, dtype) for shape, dtype in operation.outputs_at(x).values()]
        return self._returned(operation, outputs, x)

    def _returned(self, operation: Operation, outputs: list[Tensor], x: Tensor) -> Any:
        if not self._written:
            return outputs
        named = dict(zip(operation.outputs, outputs, strict=True))
        # Without results an operator returns None.
        return tuple(named.get(name, x.new_empty(0)) for name in self._outputs) or None

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        count = len(self.inputs)
        ctx.save_for_backward(*inputs[:count])
        ctx.others = inputs[count:]

    def _backward(self, ctx: Any, incoming: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        arguments, needs = (*ctx.saved_tensors, *ctx.others), ctx.needs_input_grad[: len(self.inputs)]
        gradients = dict(zip(self._differentiable, self._gradients(incoming, arguments, needs), strict=True))
        return (*map(gradients.get, self.inputs), *(None,) * len(ctx.others))

    def _gradients_of_formula(
        self, incoming: Sequence[Tensor], arguments: Sequence[Any], _: Sequence[bool]
    ) -> list[Tensor | None]:
        operation, inputs, scalars, _mode = self._parsed(arguments)

        def formula(leaves: Sequence[Tensor]) -> Sequence[Tensor]:
            every = inputs | dict(zip(self._differentiable, leaves, strict=True))
            return operation.formula.forward(*every.values(), *scalars)  # type: ignore[no-any-return]

        return gradients_through(formula, [inputs[name] for name in self._differentiable], incoming)


def is_proxy(value: object) -> bool:
    """Whether a value stands for a tensor, as the proxies with which `torch.fx` records calls do."""
    return not isinstance(value, Tensor) and has_torch_function((value,))


def _intercepts(tensor: Tensor | None) -> bool:
    """Whether a tensor is of a subclass with a `__torch_dispatch__` of its own."""
    return type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__ if tensor is not None else False


def _is_sharded(tensor: object) -> bool:
    """Whether a value is a DTensor; does not import that class."""
    tensors = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(tensor, tensors.DTensor)
