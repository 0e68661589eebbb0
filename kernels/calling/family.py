"""Operations that options distinguish, as one function and one operator of torch's dispatcher.

In: a function from options to an `Operation`. Out: an `OpFamily`. Eager calls take the paths of an `Op` (`op`).
Compilers see the operator, which reads the batch-invariant mode at each call where none is named.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from normtune.kernels.calling.arguments import number
from normtune.kernels.calling.autograd import UNGRADED, gradients_through
from normtune.kernels.calling.op import Op, is_compiling
from normtune.kernels.calling.operation import Operation, picking
from normtune.kernels.calling.torch_ops import MODE, Named, TorchOp, launched, shapes


class OpFamily:
    """Operations without a spec of a backward that integers and strings distinguish, such as those of `qk_norm`.

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
        differentiable: number of inputs, the first ones, that have gradients, unless one is written; calls detach the
            others.
        gradients: as in `TorchOp`; None for those of the formula.

    Attributes:
        operator: takes inputs, scalars, options, and batch_invariant or None. Returns all `outputs`, with empty tensors
            for those that the operation lacks; without `outputs` the list of the operation's own.
        outputs_of: returns the names of the outputs, given the options.
        gradients: the argument, or its default.
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
        differentiable: int = 0,
        gradients: Callable[[Named, Named, Named, Named], Named] | None = None,
    ) -> None:
        self.inputs, self.scalars, self.options, self.operation_of = inputs, scalars, options, operation_of
        self.differentiable, self.gradients = differentiable, gradients or self._gradients_of_formula
        self._detached = {*inputs[differentiable:]} - {written}
        self._outputs = outputs
        self._ops: dict[tuple[Any, ...], Op] = {}
        types = {inputs[0]: "Tensor"} | {written: "Tensor(a!)"}
        self.operator = TorchOp(
            name=name,
            tensors={each: types.get(each, "Tensor?") for each in inputs},
            others=dict.fromkeys(scalars, "float") | dict(options) | MODE,
            outputs=dict.fromkeys(outputs, "Tensor") if outputs or written else None,
            call=lambda tensors, others: launched(self._operation(others), tensors, others),
            shapes=lambda tensors, others: shapes(self._operation(others), tensors, others),
            gradients=self.gradients if differentiable and not written else None,
        ).operator

        def outputs_of(*options: Any) -> tuple[str, ...]:
            return self._op_of(options).operation.outputs

        # Compilers call it instead of tracing it, since the result depends on the options only.
        outputs_of._dynamo_marked_constant = True  # type: ignore[attr-defined]
        self.outputs_of = outputs_of

    def call(
        self, options: tuple[Any, ...], inputs: Named, scalars: Named, batch_invariant: bool | None
    ) -> Sequence[Tensor]:
        """Call the operation of these options; returns its outputs.

        `inputs` and `scalars` have a value for each name in the attributes, of which the operation reads its own.

        Raises:
            TypeError, ValueError: as `arguments.check`, or the batch-invariant mode is not available.
        """
        if is_compiling():
            return self.dispatched(options, inputs, scalars, batch_invariant)
        op = self._op_of(options)
        tensors = tuple([inputs[name] for name in op.operation.inputs])
        numbers = tuple([scalars[name] for name in op.operation.defaults])
        return op.call(tensors, numbers, batch_invariant)  # type: ignore[no-any-return]

    def dispatched(
        self, options: tuple[Any, ...], inputs: Named, scalars: Named, batch_invariant: bool | None
    ) -> Sequence[Tensor]:
        """The outputs of a call through torch's dispatcher; missing inputs and scalars are those it does not read."""
        tensors = [
            tensor.detach() if tensor is not None and name in self._detached else tensor
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
        return op or self._ops.setdefault(options, _Member(self, options))

    def _operation(self, others: Named) -> Operation:
        """The operation that the arguments of the operator name."""
        options = [others[name] for name in self.options]
        # Compilers may pass symbols, which they guard as integers.
        return self._op_of(tuple([one if isinstance(one, str) else int(one) for one in options])).operation

    def _gradients_of_formula(self, incoming: Named, saved: Named, others: Named, _: Named) -> Named:
        operation = self._operation(others)
        inputs = {name: saved[name] for name in operation.inputs}
        names, scalars = self.inputs[: self.differentiable], [others[name] for name in operation.defaults]

        def formula(leaves: Sequence[Any]) -> Sequence[Tensor]:
            every = inputs | dict(zip(names, leaves, strict=True))
            return operation.formula.forward(*every.values(), *scalars)  # type: ignore[no-any-return]

        gradients = [incoming[name] for name in operation.outputs]
        return dict(zip(names, gradients_through(formula, [inputs[name] for name in names], gradients), strict=True))


class _Member(Op):
    """The calls of one operation of a family."""

    def __init__(self, family: OpFamily, options: tuple[Any, ...]) -> None:
        super().__init__(family.operation_of(*options), family.differentiable)
        self._family, self._options = family, options
        self.saved = picking(range(len(self.operation.inputs)))

    def dispatched(
        self, tensors: tuple[Any, ...], scalars: tuple[Any, ...], batch_invariant: bool | None
    ) -> Sequence[Tensor]:
        inputs = dict(zip(self.operation.inputs, tensors, strict=True))
        numbers = dict(zip(self.operation.defaults, scalars, strict=True))
        return self._family.dispatched(self._options, inputs, numbers, batch_invariant)

    def gradients(self, ctx: Any, incoming: tuple[Any, ...]) -> Sequence[Tensor | None]:
        operation, family, (_, plan, _) = self.operation, self._family, ctx.call
        names = (*operation.defaults, *family.options, *MODE)
        gradients = family.gradients(
            dict(zip(operation.outputs, incoming, strict=True)),
            dict(zip(operation.inputs, ctx.saved_tensors, strict=True)),
            dict(zip(names, (*plan.scalars, *self._options, plan.batch_invariant), strict=True)),
            dict(zip(operation.inputs, ctx.needs_input_grad[UNGRADED:], strict=True)),
        )
        return [gradients.get(name) for name in operation.inputs]
