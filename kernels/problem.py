"""One shape of one operator: the unit of measuring, fitting and lookup.

In: names and sizes. Out: `Problem`, `Buffer` and the sizes of dtypes. Knows no operator by name.
"""

import re
from typing import NamedTuple, Self

from normtune.kernels.key import Key

# Bytes of an element, of the dtypes that a problem may have, and of those that its tensors may have.
ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}
_FP8_ITEMSIZE = dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1)
INTEGERS = {"int32": 4, "int64": 8, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}
BUFFER_ITEMSIZE = ITEMSIZE | _FP8_ITEMSIZE | INTEGERS
# A grid has at most 2**31 - 1 programs. The kernels count rows in int32 and look beyond the last one, by a block and by
# as many programs as the grid has per stage of a pipeline: half of the range is left for that.
MAX_ROWS = 2**30


# The sizes of a shape, in their order, and of operators that name their own: by family, in the same order. A third one
# is a named integer of the operator, `matmul.k=4096`: its problems are planned, timed and stored as those of another
# operator each, and a table's function cuts it as it cuts the first two.
AXES = ("rows", "hidden")
AXIS = re.compile(r"[a-z][a-z0-9_]*")
_AXES_OF: dict[str, tuple[str, ...]] = {}
Shape = tuple[int, ...]


def name_axes(family: str, axes: tuple[str, ...]) -> None:
    """Let problems of an operator name their sizes so."""
    _AXES_OF[family] = axes


def axes_of(family: str) -> tuple[str, ...]:
    """The names of the sizes that functions of an operator take, in their order."""
    return _AXES_OF.get(family, AXES)


def named_axes() -> list[tuple[str, ...]]:
    """Rows and hidden, and then those of operators that name their own."""
    return list(dict.fromkeys((AXES, *sorted({*_AXES_OF.values()}))))


def function_key(key: Key) -> Key:
    """The key of the function that answers for problems of a key: without the named integer that is a third size."""
    return key.without(axes_of(key.family)[2:])


def function_operator(operator: str) -> str:
    """The operator of the functions that answer for problems of an operator, as `function_key`."""
    return function_key(Key.of(operator, "", "")).operator


def axes_at(key: Key) -> tuple[str, ...]:
    """The names of the sizes by which problems of a key differ; a third one may be among its named integers."""
    axes = axes_of(key.family)
    return axes if function_key(key) == key else axes[:2]


class Problem(NamedTuple):
    """One shape of a function's key.

    Attributes:
        key: operator, modes and dtype, a key of `ITEMSIZE`.
        rows: number of rows, 1 to `MAX_ROWS`.
        hidden: length of a row, at least 1.
    """

    key: Key
    rows: int
    hidden: int

    @classmethod
    def at(cls, key: Key, shape: Shape) -> Self:
        """The problem of a key at a shape of `axes_at`: a third size becomes a named integer of the operator."""
        rows, hidden, *third = shape
        return cls(key.with_sizes(zip(axes_at(key)[2:], third, strict=True)), rows, hidden)

    @classmethod
    def of(cls, operator: str, rows: int, hidden: int, dtype: str, variant: str = "") -> Self:
        """The problem of these columns, as stores and data frames have them; the inverse of `columns`."""
        return cls(Key.of(operator, variant, dtype), rows, hidden)

    @property
    def columns(self) -> tuple[str, int, int, str, str]:
        """The arguments of `of`."""
        return self.operator, self.rows, self.hidden, self.dtype, self.variant

    @property
    def operator(self) -> str:
        """The name of the operator, with its named integers."""
        return self.key.operator

    @property
    def dtype(self) -> str:
        """Name of the dtype of the inputs."""
        return self.key.dtype

    @property
    def variant(self) -> str:
        """The words of its modes (`mode.Mode`), joined by `+`; empty for the plain operator."""
        return self.key.variant

    @property
    def shape(self) -> Shape:
        """Its size along each of `AXES`."""
        return self.rows, self.hidden

    @property
    def function_shape(self) -> Shape:
        """Its size along each axis of the function that answers for it."""
        return tuple(self.sizes[axis] for axis in axes_of(self.key.family))

    @property
    def sizes(self) -> dict[str, int]:
        """Rows, hidden and the operator's named integers, by name: {"rows": 8, "hidden": 64, "group_size": 128}."""
        rows, hidden, *_ = axes_of(self.key.family)
        return {rows: self.rows, hidden: self.hidden, **dict(self.key.sizes)}

    def buffer(self, name: str, axes: str, role: str, dtype: str = "") -> "Buffer":
        """A tensor of the problem; its dtype is that of the problem unless given.

        Args:
            name: as in `Buffer`.
            axes: the names of its extents, keys of `sizes`: `rows,hidden`.
            role: as in `Buffer`.
            dtype: a key of `BUFFER_ITEMSIZE`.
        """
        sizes = self.sizes
        return Buffer(name, tuple(sizes[axis] for axis in axes.split(",")), dtype or self.dtype, role, axes)

    def __str__(self) -> str:
        return f"{self.key} {self.rows} x {self.hidden}"


INPUT, WEIGHT, OUTPUT, IN_OUT, SCRATCH = ROLES = ("input", "weight", "output", "in-out", "scratch")
# Axes of most tensors.
ROWS_HIDDEN, HIDDEN, ROWS, HIDDEN_ROWS = "rows,hidden", "hidden", "rows", "hidden,rows"


class Buffer(NamedTuple):
    """One tensor of a problem.

    Attributes:
        name: the argument's name in the operator's launch.
        shape: its extents.
        dtype: name of its dtype, a key of `BUFFER_ITEMSIZE`.
        role: `input` (cold, a fresh slice each launch), `weight` (one buffer, warm), `output`, `in-out` (read and
            written, restored between launches by gate and timing) or `scratch` (neither read before nor after).
        axes: what its extents are, as in `Problem.buffer`; empty if they are something else. A row may have several
            heads of `hidden` elements each.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    axes: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor, contiguous."""
        size = BUFFER_ITEMSIZE[self.dtype]
        for extent in self.shape:
            size *= extent
        return size
