"""Faults of an operator: of its declaration, found when it is registered, and of its functions, when they are called.

In: a spec, or what a function raised or returned. Out: one line a fault. Imports neither the kernels nor the reference.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from keyword import iskeyword
from pathlib import Path
from traceback import FrameSummary, extract_tb
from typing import Any, NoReturn

from normtune.errors import NormtuneError
from normtune.kernels.config import Config
from normtune.kernels.key import with_sizes
from normtune.kernels.mode import words_of
from normtune.kernels.operator import IllegalConfigError, OperatorSpec
from normtune.kernels.problem import AXIS, BUFFER_ITEMSIZE, IN_OUT, ITEMSIZE, OUTPUT, ROLES, Buffer, Problem
from normtune.kernels.sizes import normal_form

# Names of an axis become arguments of a table's functions, beside its own.
_RESERVED = {"operator", "dtype", "table", "known", "sms", "l2_bytes"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# Files of normtune that call an operator's functions, and libraries that these call: no line of an operator.
_BETWEEN = (Path(__file__), Path(__file__).with_name("operator.py"), Path(__file__).with_name("custom_op"))
_BELOW = {"torch", "triton", "numpy"}


class OperatorError(NormtuneError):
    """A function of an operator raised or returned something wrong: a fault of the operator, not of a config."""

    exit_code = 2


class ReturnedError(ValueError):
    """A function returned a value that differs from its declaration; the text begins with `returns`."""


def reraise(name: str, function: str, error: Exception, at: object) -> NoReturn:
    """Raise an error of a function of the operator `name` again, with operator, function, line of code and problem.

    Errors of normtune, illegal configs and a lack of device memory are raised unchanged.

    Raises:
        OperatorError: any other error, in one line.
    """
    if isinstance(error, NormtuneError | IllegalConfigError) or type(error).__name__ == "OutOfMemoryError":
        raise error
    if isinstance(error, ReturnedError):
        raise OperatorError(f"operator {name!r}: its {function} {error}, for {at}") from error
    lines = str(error).strip().splitlines()
    message = f"{type(error).__name__}{f': {lines[0][:200]}' if lines else ''}"
    locations = [
        f" ({Path(frame.filename).name}, line {frame.lineno})"
        for frame in extract_tb(error.__traceback__)
        if _is_of_operator(frame)
    ]
    message += "".join(locations[-1:])
    raise OperatorError(f"operator {name!r}: its {function} raises {message}, for {at}") from error


def _is_of_operator(frame: FrameSummary) -> bool:
    """Whether a frame is in the operator's files: neither normtune's nor a library's."""
    path = Path(frame.filename)
    return not _BELOW & {*path.parts} and not any(folder in (path, path.parent) for folder in _BETWEEN)


def check_returned(tensors: Mapping[str, Any], buffers: Sequence[Buffer]) -> None:
    """Refuse a result without a tensor of the right shape for each buffer, and of its dtype unless that is empty.

    Raises:
        ReturnedError: it is not.
    """
    if tensors.keys() != {buffer.name for buffer in buffers}:
        expected = ", ".join(buffer.name for buffer in buffers)
        raise ReturnedError(f"returns the tensors {', '.join(tensors) or 'none'}: expected {expected}")
    for buffer in buffers:
        shape, dtype = tuple(tensors[buffer.name].shape), str(tensors[buffer.name].dtype).rpartition(".")[2]
        if (shape, dtype) != (buffer.shape, buffer.dtype or dtype):
            expected = f"expected {buffer.dtype or dtype} {buffer.shape}"
            raise ReturnedError(f"returns {buffer.name} of {dtype} {shape}: {expected}")


def faults(spec: OperatorSpec) -> Iterator[str]:
    """Each fault of a spec in a line."""
    if not _NAME.fullmatch(spec.name):
        yield f"its name is {spec.name!r}: expected letters, digits and _"
    if not (isinstance(spec.config, type) and issubclass(spec.config, Config) and spec.config.knobs):
        yield f"config is {spec.config!r}: expected a subclass of normtune.Config with a knob or more"
    for dtype in spec.dtypes:
        if dtype not in ITEMSIZE:
            yield f"dtype {dtype!r}: expected some of {', '.join(ITEMSIZE)}"
    if not spec.dtypes:
        yield f"it has no dtype: expected some of {', '.join(ITEMSIZE)}"
    if spec.max_hidden < 1:
        yield f"max_hidden is {spec.max_hidden}: expected a positive integer"
    yield from of_axes(spec.axes, spec.sizes)
    try:
        if spec.derived:
            normal_form(spec.derived, (*spec.axes,))
    except ValueError as error:
        yield str(error)
    words = [word for mode in spec.modes for word in words_of((mode,))]
    for name in [*words, *spec.scalars, *spec.sizes]:
        if not _NAME.fullmatch(name):
            yield f"{name!r} names a mode, scalar or integer: expected letters, digits and _"
    if len(set(words)) < len(words):
        yield f"two modes have one word: {', '.join(words)}"
    for mode in spec.modes:
        if "" not in [member.value for member in mode]:
            yield f"{mode.__name__} has no default: expected a member of the value ''"
    for name, values in spec.sizes.items():
        if not values or any(type(value) is not int or value < 1 for value in values):
            yield f"sizes of {name} are {values!r}: expected one positive integer or more"
    for name, value in spec.scalars.items():
        if not isinstance(value, int | float):
            yield f"scalar {name} is {value!r}: expected a number"
    yield from _of_buffers(spec)


def of_axes(axes: Mapping[str, Sequence[int]], sizes: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Each fault of the axes and the named integers of an operator in a line."""
    names = [*axes]
    if len(names) not in (2, 3):
        yield f"it has the axes {', '.join(names) or 'none'}: expected two or three"
    for name in names:
        if not AXIS.fullmatch(name) or name in _RESERVED or iskeyword(name):
            yield f"axis {name!r}: expected small letters, digits and _, and none of {', '.join(sorted(_RESERVED))}"
        if any(type(size) is not int or size < 1 for size in axes[name]):
            yield f"axis {name} has {axes[name]!r}: expected positive integers"
    if names[2:] != [*sizes][len(sizes) - len(names[2:]) :]:
        yield f"the third axis {names[2]!r} is not the last of its sizes {', '.join(sizes) or 'none'}"
    if "rows" in names[1:] or "hidden" in (*names[:1], *names[2:]):
        yield f"its axes are {', '.join(names)}: expected rows first and hidden second, where they are named so"
    if {*names[:2]} & {*sizes}:
        yield f"an axis and a named integer have one name: {', '.join([*names, *sizes])}"


def _of_buffers(spec: OperatorSpec) -> Iterator[str]:
    sizes = {name: values[0] for name, values in spec.sizes.items() if values}
    dtype = next((dtype for dtype in spec.dtypes if dtype in ITEMSIZE), "float32")
    problem = Problem.of(with_sizes(spec.name, sizes), 1, min(8, max(1, spec.max_hidden)), dtype)
    try:
        buffers = spec.buffers(problem)
    # An operator's code may raise anything.
    except Exception as error:
        yield f"its buffers of a problem of {problem.rows} x {problem.hidden} raise {type(error).__name__}: {error}"
        return
    for buffer in buffers:
        yield from _of_buffer(buffer)
    if not {OUTPUT, IN_OUT} & {buffer.role for buffer in buffers}:
        yield "no buffer is an output"
    if len({buffer.name for buffer in buffers}) < len(buffers):
        yield f"two buffers have one name: {', '.join(buffer.name for buffer in buffers)}"


def _of_buffer(buffer: Buffer) -> Iterator[str]:
    if buffer.role not in ROLES:
        yield f"buffer {buffer.name!r} has the role {buffer.role!r}: expected one of {', '.join(ROLES)}"
    if buffer.dtype not in BUFFER_ITEMSIZE:
        expected = f"expected one of {', '.join(BUFFER_ITEMSIZE)}"
        yield f"buffer {buffer.name!r} has the dtype {buffer.dtype!r}: {expected}"
    if not buffer.shape or any(type(extent) is not int or extent < 1 for extent in buffer.shape):
        yield f"buffer {buffer.name!r} has the shape {buffer.shape}: expected positive integers"
