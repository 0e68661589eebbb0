"""The declaration of a decorated operator: function, tensors, space, reference, and the faults in them.

In: the arguments of `kernel_operator`. Out: the buffers of a problem, the arguments and outputs of a call, and a line
for each fault.
"""

import ast
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from normtune.kernels.config import Config
from normtune.kernels.custom_op.sources import names_decorated_kernels
from normtune.kernels.custom_op.spaces import DeclaredSpace
from normtune.kernels.key import with_sizes
from normtune.kernels.problem import BUFFER_ITEMSIZE, IN_OUT, INPUT, INTEGERS, OUTPUT, ROLES, WEIGHT, Buffer, Problem
from normtune.kernels.sizes import names_of, parsed, value_of
from normtune.kernels.spec_faults import of_axes
from normtune.kernels.target import Target

# Parameters of a function besides tensors and scalars.
OTHERS = ("config", "problem", "target")
# Parameters of a reference besides the tensors that are read and scalars.
OF_REFERENCE = ("problem", "dtype")
_USUAL = 1024
READ = (INPUT, WEIGHT, IN_OUT)
# The declaration of a tensor: a text, or a function from the problem to one.
Declared = str | Callable[[Problem], str]


class TensorText(NamedTuple):
    """The parsed declaration of a tensor.

    Attributes:
        role: one of `ROLES`.
        extents: of each dimension an expression in names of sizes.
        dtype: a key of `BUFFER_ITEMSIZE`; empty for that of the problem.
    """

    role: str
    extents: tuple[str, ...]
    dtype: str


@lru_cache(256)
def tensor_of(text: str, axes: tuple[str, ...], sizes: tuple[str, ...]) -> TensorText:
    """Parse the declaration of a tensor: `input`, `output rows float32`, `input rows,2*hidden`.

    Args:
        text: the declaration.
        axes: the names of rows and hidden.
        sizes: the names of the named integers.

    Raises:
        ValueError: the text has another form.
    """
    role, *words = text.split() or [""]
    dtype = words.pop() if words and words[-1] in BUFFER_ITEMSIZE else ""
    shape = "".join(words)
    extents = tuple(shape.split(",")) if shape else axes[1:] if role == WEIGHT else axes
    for extent in extents:
        if not _is_of(extent, {*axes, *sizes}):
            names = ", ".join((*axes, *sizes))
            raise ValueError(f"{shape!r} is neither a shape (of {names}) nor a dtype ({', '.join(BUFFER_ITEMSIZE)})")
    if role not in ROLES:
        raise ValueError(f"role {role!r}: expected one of {', '.join(ROLES)}")
    return TensorText(role, extents, dtype)


def _is_of(extent: str, names: set[str]) -> bool:
    """Whether an extent is an expression of these names."""
    try:
        return names_of(extent) <= names
    except (ValueError, RecursionError):
        return False


def _solved(extent: str, value: int) -> dict[str, int]:
    """The size that follows from an extent and its value; empty unless the extent is a size or a multiple of one."""
    tree: ast.expr | None = parsed(extent)
    factor = 1
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult):
        pair = (tree.left, tree.right)
        tree = next((node for node in pair if isinstance(node, ast.Name)), None)
        factor = next((int(node.value) for node in pair if isinstance(node, ast.Constant)), 0)  # type: ignore[arg-type]
    return {tree.id: value // factor} if isinstance(tree, ast.Name) and factor else {}


class Knobs(NamedTuple):
    """The values of a config by name, and whether they replace the launch's arguments (`triton_inside.undecorated`)."""

    values: Mapping[str, int | str]
    replaces: bool


@dataclass(frozen=True)
class Declaration:
    """The arguments of `kernel_operator` that determine how its function is called."""

    function: Callable[..., object]
    config: type[Config]
    space: DeclaredSpace
    buffers: Mapping[str, Declared]
    scalars: Mapping[str, float]
    axes: Mapping[str, Sequence[int]]
    sizes: Mapping[str, Sequence[int]]
    reference: Callable[..., Any]
    inputs: Callable[..., Any] | None
    tolerance: Mapping[str, float]

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The function's parameters."""
        return _parameters(self.function) or {}

    @cached_property
    def takes(self) -> Mapping[str, inspect.Parameter]:
        """The function's parameters that are tensors and scalars."""
        ours = {*OTHERS} - self.buffers.keys() - self.scalars.keys()
        return {name: one for name, one in self.parameters.items() if name not in ours}

    def usual(self, name: str, dtypes: Sequence[str], max_hidden: int) -> Problem:
        """The problem at which the decorator checks a space that is a function."""
        first = {name: values[0] for name, values in self.sizes.items() if values}
        size = min(_USUAL, max(1, max_hidden))
        return Problem.of(with_sizes(name, first), size, size, next(iter(dtypes), "float32"))

    def tensors(self, problem: Problem) -> tuple[Buffer, ...]:
        """The tensors of a problem; an extent that is not a positive integer (`unfit`) is rounded."""
        buffers = []
        for name, text in self._texts(problem):
            shape = tuple(max(1, int(value_of(extent, problem.sizes))) for extent in text.extents)
            axes = ",".join(text.extents) if {*text.extents} <= problem.sizes.keys() else ""
            buffers.append(Buffer(name, shape, text.dtype or problem.dtype, text.role, axes))
        return tuple(buffers)

    def unfit(self, problem: Problem) -> str:
        """Why a problem is impossible, as an extent is not a positive integer; empty if it is possible."""
        for name, text in self._texts(problem):
            for extent in text.extents:
                value = Fraction(value_of(extent, problem.sizes))
                if value.denominator != 1 or value < 1:
                    return f"{extent} of {name} is {value}: expected a positive integer"
        return ""

    @property
    def plane(self) -> tuple[str, ...]:
        """The names of rows and hidden."""
        return (*self.axes,)[:2]

    def _texts(self, problem: Problem) -> Iterator[tuple[str, TensorText]]:
        for name, declared in self.buffers.items():
            text = declared if isinstance(declared, str) else declared(problem)
            yield name, tensor_of(text, self.plane, tuple(self.sizes))

    @cached_property
    def needed(self) -> frozenset[str]:
        """The tensors and scalars without a default."""
        return frozenset(name for name, one in self.takes.items() if one.default is one.empty)

    @cached_property
    def read(self) -> Mapping[str, TensorText]:
        """The tensors that are read and declared by a text; the sizes of a call follow from their shapes."""
        texts = {
            name: tensor_of(text, self.plane, tuple(self.sizes))
            for name, text in self.buffers.items()
            if isinstance(text, str)
        }
        return {name: text for name, text in texts.items() if text.role in READ}

    @cached_property
    def first(self) -> str:
        """The name of the first input; its dtype and GPU are those of a call."""
        return next(name for name, text in self.read.items() if text.role != WEIGHT)

    def solve(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """The sizes of a call by name, from the shapes of `read` in order.

        Raises:
            ValueError: a shape has another number of dimensions than declared.
        """
        sizes: dict[str, int] = {}
        for (name, (_, extents, _)), shape in zip(self.read.items(), shapes, strict=True):
            # A declared matrix may have any number of dimensions: all but the last are rows.
            if len(shape) > len(extents) == 2 and extents[0] == self.plane[0]:
                shape = (math.prod(shape[:-1]), shape[-1])
            if len(shape) != len(extents):
                raise ValueError(f"{name} has the shape {tuple(shape)}: expected {','.join(extents)}")
            for extent, value in zip(extents, shape, strict=True):
                sizes |= _solved(extent, value)
        return sizes

    def knobs(self, config: Config) -> Knobs:
        """The arguments that a config adds to the launches of the function, or replaces there."""
        return Knobs(dict(zip(config._fields, config, strict=True)), replaces="config" not in self.parameters)

    @cached_property
    def passes_knobs(self) -> bool:
        """Whether the function passes all knobs to its kernels: it takes a config, and no kernel is decorated."""
        return "config" in self.parameters and not names_decorated_kernels(self.function)

    def call(self, values: Mapping[str, Any], config: Config, problem: Problem, target: Target) -> object:
        """Call the function with tensors, scalars and a config, and return its result."""
        available = {"config": config, "problem": problem, "target": target, **values}
        return self.function(**{name: available[name] for name in self.parameters if name in available})

    @property
    def launched(self) -> tuple[object, ...]:
        """The function, and what it is called with."""
        return self.function, self.config, self.buffers, self.scalars, self.inputs

    @cached_property
    def returned(self) -> tuple[str, ...]:
        """The outputs that the function allocates and returns: those that are not parameters."""
        names = [name for name, text in self.buffers.items() if isinstance(text, str) and text.split()[:1] == [OUTPUT]]
        return tuple(name for name in names if name not in self.parameters)

    @cached_property
    def reference_wants(self) -> tuple[str, ...]:
        """The parameters of the reference that are in `OF_REFERENCE`."""
        return tuple(name for name in OF_REFERENCE if name in (_parameters(self.reference) or {}))

    def faults(self) -> list[str]:
        """Faults that are not visible in the operator's spec; `register` reports the others."""
        if not (isinstance(self.config, type) and issubclass(self.config, Config) and self.config.knobs):
            return [f"config is {self.config!r}: expected a subclass of normtune.Config with a knob or more"]
        if of_names := [*of_axes(self.axes, self.sizes)]:
            return of_names
        of_tensors = [*self._of_tensors()]
        of_reference = [] if of_tensors else self._of_reference()
        return [*self.space.faults(), *of_tensors, *self._of_function(), *of_reference]

    def _of_tensors(self) -> Iterator[str]:
        texts, faults = {}, []
        for buffer, text in self.buffers.items():
            try:
                if isinstance(text, str):
                    texts[buffer] = tensor_of(text, self.plane, tuple(self.sizes))
            except ValueError as error:
                faults.append(f"buffer {buffer!r} is {text!r}: {error}")
        yield from faults
        reads = [text for text in texts.values() if text.role in (INPUT, IN_OUT)]
        if not faults and not reads:
            yield "no buffer is an input"
        for name, one in texts.items():
            if one.role in READ and one.dtype in INTEGERS and not self.inputs:
                yield f"buffer {name!r} is {one.dtype}: expected inputs=, which gives its values"
        if faults or not reads:
            return
        input_axes = {
            name for text in texts.values() if text.role in READ for one in text.extents for name in _solved(one, 1)
        }
        yield from (
            f"no input has the axis {axis!r}: expected it in a shape, alone or times an integer"
            for axis in (*self.plane, *self.sizes)
            if axis not in input_axes
        )
        outputs = [name for name, text in texts.items() if text.role in (OUTPUT, IN_OUT)]
        for name, units in self.tolerance.items():
            if name not in outputs:
                yield f"tolerance names {name!r}: expected one of {', '.join(outputs)}"
            if not (isinstance(units, int | float) and 0 < units < 1 << 20):
                yield f"tolerance of {name} is {units!r}: expected units in the last place, a positive number"

    def _of_function(self) -> Iterator[str]:
        expected = {*self.buffers, *self.scalars}
        for parameter in sorted(expected - {*self.parameters, *self.returned}):
            yield f"the function has no parameter {parameter!r}, which is declared"
        for name in [name for name, one in self.parameters.items() if one.default is one.empty]:
            if name not in expected and name not in OTHERS:
                yield f"the function has a parameter {name!r}: no buffer and no scalar of that name is declared"

    def _of_reference(self) -> Iterator[str]:
        takes = _parameters(self.reference)
        if takes is None:
            return
        declared = {*self.scalars}
        for name, text in self.buffers.items():
            if not isinstance(text, str) or text.split()[:1] in [[role] for role in READ]:
                declared.add(name)
        for parameter in sorted(declared - takes.keys()):
            yield f"the reference has no parameter {parameter!r}: expected the tensors that are read, and the scalars"
        for name in [name for name, one in takes.items() if one.default is one.empty]:
            if name not in declared and name not in OF_REFERENCE:
                yield f"the reference has a parameter {name!r}: no input and no scalar of that name is declared"


def _parameters(function: Callable[..., object]) -> dict[str, inspect.Parameter] | None:
    """The parameters of a function; None if it has no signature, or takes any keyword."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return None
    return {name: one for name, one in parameters.items() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
