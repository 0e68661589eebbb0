"""Faults of an operator's declaration, found when it is registered.

In: a spec. Out: one line a fault; none for a sound one. Imports neither the kernels nor the reference.
"""

import re
from collections.abc import Iterator

from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec
from normtune.kernels.problem import BUFFER_ITEMSIZE, IN_OUT, ITEMSIZE, OUTPUT, ROLES, Buffer, Problem, with_sizes

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
    names = [name for flag in spec.flags for name in flag]
    for name in [*names, *spec.scalars, *spec.sizes]:
        if not _NAME.fullmatch(name):
            yield f"{name!r} names a flag, scalar or integer: expected letters, digits and _"
    if len(set(names)) < len(names):
        yield f"two flags have one name: {', '.join(names)}"
    for name, values in spec.sizes.items():
        if not values or any(type(value) is not int or value < 1 for value in values):
            yield f"sizes of {name} are {values!r}: expected one positive integer or more"
    for name, value in spec.scalars.items():
        if not isinstance(value, int | float):
            yield f"scalar {name} is {value!r}: expected a number"
    yield from _of_buffers(spec)


def _of_buffers(spec: OperatorSpec) -> Iterator[str]:
    sizes = {name: values[0] for name, values in spec.sizes.items() if values}
    dtype = next((dtype for dtype in spec.dtypes if dtype in ITEMSIZE), "float32")
    problem = Problem(with_sizes(spec.name, sizes), 1, min(8, max(1, spec.max_hidden)), dtype)
    try:
        buffers = spec.buffers(problem)
    # Whatever an operator's code throws is its fault.
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
