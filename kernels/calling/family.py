"""Operations without a backward that options distinguish, as one function and one operator of torch's dispatcher.

In: a function from options to an `Operation`. Out: an `OpFamily`. Eager calls take the paths of an `Op` (`op`).
Compilers see the operator, which reads the batch-invariant mode at each call where none is named.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from normtune.kernels.calling import cached
from normtune.kernels.calling.arguments import check, number
from normtune.kernels.calling.autograd import gradients_through
from normtune.kernels.calling.batch_invariant import is_batch_invariant
from normtune.kernels.calling.eager import new_of
from normtune.kernels.calling.op import Op, is_compiling, is_traced, modes
from normtune.kernels.calling.operation import Operation
from normtune.kernels.calling.torch_ops import define, or_nothing


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
        outputs: names of all outputs, of which each operation has some, or the only one. Needed for an operator that
            writes an input, unless it returns nothing, and where there are gradients: autograd is slow with lists.
        differentiable: names of the inputs that have gradients, unless one is written; calls detach the others.
        gradients: takes the gradients of the outputs, the arguments of the operator and, for each input, whether its
            gradient is needed; returns those of the differentiable inputs. None for those of the formula.

    Attributes:
        operator: takes inputs, scalars, options, and batch_invariant or None. Returns all `outputs`, with empty tensors
            for those that the operation lacks; without `outputs` the list of the operation's own.
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
        results = f"({', '.join('Tensor' for _ in outputs)})" if outputs or written else "Tensor[]"
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
        outputs = self.operator(*tensors, *numbers, *options, batch_invariant)
        if len(self._outputs) == 1:
            return (outputs,)
        if not self._outputs:
            return outputs or ()
        named = dict(zip(self._outputs, outputs, strict=True))
        return [named[name] for name in self.outputs_of(*options)]

    def _op_of(self, options: tuple[Any, ...]) -> Op:
        op = self._ops.get(options)
        if op:
            return op
        dispatched = partial(self._dispatched_op, options)
        return self._ops.setdefault(options, Op(self.operation_of(*options), dispatched, bool(self._differentiable)))

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
        if not self._outputs:
            return None if self._written else outputs
        named = dict(zip(operation.outputs, outputs, strict=True))
        every = tuple([or_nothing(named.get(name), x) for name in self._outputs])
        return every if len(every) > 1 else every[0]

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        count = len(self.inputs)
        ctx.save_for_backward(*inputs[:count])
        ctx.others = inputs[count:]

    def _backward(self, ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        arguments, needs = (*ctx.saved_tensors, *ctx.others), ctx.needs_input_grad[: len(self.inputs)]
        gradients = dict(zip(self._differentiable, self._gradients(incoming, arguments, needs), strict=True))
        return (*map(gradients.get, self.inputs), *(None,) * len(ctx.others))

    def _gradients_of_formula(
        self, incoming: Sequence[Tensor | None], arguments: Sequence[Any], _: Sequence[bool]
    ) -> list[Tensor | None]:
        operation, inputs, scalars, _mode = self._parsed(arguments)

        def formula(leaves: Sequence[Tensor]) -> Sequence[Tensor]:
            every = inputs | dict(zip(self._differentiable, leaves, strict=True))
            return operation.formula.forward(*every.values(), *scalars)  # type: ignore[no-any-return]

        leaves = [inputs[name] for name in self._differentiable]
        return gradients_through(formula, leaves, incoming[: len(operation.outputs)])
