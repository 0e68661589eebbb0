"""One shape of one operator: the unit of measuring, fitting and lookup.

In: names and sizes. Out: `Problem`, `Buffer` and the sizes of dtypes. Knows no operator by name.
"""

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

# Bytes of an element, of the dtypes that a problem may have, and of those that its tensors may have.
ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}
_FP8_ITEMSIZE = dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1)
INDEX_ITEMSIZE = {"int32": 4, "int64": 8}
BUFFER_ITEMSIZE = ITEMSIZE | _FP8_ITEMSIZE | INDEX_ITEMSIZE
# A grid has at most 2**31 - 1 programs. The kernels count rows in int32 and look beyond the last one, by a block and by
# as many programs as the grid has per stage of a pipeline: half of the range is left for that.
MAX_ROWS = 2**30
# Of a named integer of an operator.
_MOST_DIGITS = 9
# Suffix of the name of a table's function that gives a row the same bits in every batch.
BATCH_INVARIANT = "batch_invariant"


class Problem(NamedTuple):
    """Operator, shape, dtype and variant.

    Attributes:
        operator: the plain name of the operator, `rms_norm_forward`.
        rows: number of rows, 1 to `MAX_ROWS`.
        hidden: length of a row, at least 1.
        dtype: name of the dtype of the inputs, a key of `ITEMSIZE`.
        variant: suffixes of the flags that are off, joined by `+`; empty for the plain operator.
    """

    operator: str
    rows: int
    hidden: int
    dtype: str
    variant: str = ""

    @property
    def key(self) -> str:
        """The operator's name in tables: `rms_norm_forward` or `rms_norm_forward:no_rstd`."""
        return join_key(self.operator, self.variant)

    def lacks(self, off: str) -> bool:
        """Whether the flag with the suffix `off` is off."""
        return off in self.variant.split("+")

    @property
    def sizes(self) -> dict[str, int]:
        """The named integers of the operator besides rows and hidden: {"group_size": 128}."""
        return split_sizes(self.operator)[1]

    def buffer(self, name: str, axes: str, role: str, dtype: str = "") -> "Buffer":
        """A tensor of the problem, of its dtype unless another is given.

        Args:
            name: as in `Buffer`.
            axes: the names of its extents, `rows,hidden`: these two and named integers.
            role: as in `Buffer`.
            dtype: a key of `BUFFER_ITEMSIZE`.
        """
        extents = {"rows": self.rows, "hidden": self.hidden, **self.sizes}
        return Buffer(name, tuple(extents[axis] for axis in axes.split(",")), dtype or self.dtype, role, axes)

    def __str__(self) -> str:
        return f"{self.key} {self.dtype} {self.rows} x {self.hidden}"


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
        axes: what its extents are, as in `Problem.buffer`; empty if they are something else.
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


def with_sizes(family: str, sizes: Mapping[str, int]) -> str:
    """The name of a family's operator at these named integers: `norm_gated.group_size=128`."""
    return ".".join((family, *(f"{name}={value}" for name, value in sizes.items())))


@lru_cache(4096)
def split_sizes(operator: str) -> tuple[str, dict[str, int]]:
    """An operator's name as (family, named integers): `a.n=1` is ("a", {"n": 1}), `a` is ("a", {})."""
    family, *parts = operator.split(".")
    sizes = {}
    for part in parts:
        name, _, value = part.partition("=")
        # A name may come from a stranger's table: Python refuses thousands of digits, and a float hundreds.
        if not (value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS):
            return operator, {}
        sizes[name] = int(value)
    return family, sizes


def nearest_sizes(operator: str, others: Iterable[str]) -> str | None:
    """Of the operators of the same family the one whose named integers are nearest; None of none.

    These have the least product of ratios, then the smaller integers, as in the modules of tables with such operators.
    """
    family, sizes = split_sizes(operator)

    def distance(other: str) -> tuple[Fraction, ...]:
        pairs = [(value, sizes[name]) for name, value in split_sizes(other)[1].items()]
        ratio = math.prod((Fraction(max(pair), min(pair)) for pair in pairs), start=Fraction(1))
        return ratio, *(Fraction(value) for value, _ in pairs)

    def is_alike(other: str) -> bool:
        of, others_sizes = split_sizes(other)
        return of == family and set(others_sizes) == set(sizes) and all(others_sizes.values())

    return min(filter(is_alike, others), key=distance, default=None) if sizes and all(sizes.values()) else None


def join_key(operator: str, variant: str) -> str:
    """The name in tables of an operator and variant, the inverse of `split_key`."""
    return f"{operator}:{variant}" if variant else operator


def split_key(key: str) -> tuple[str, str]:
    """A name in tables as (operator, variant): `a:b` is ("a", "b"), `a` is ("a", "")."""
    operator, _, variant = key.partition(":")
    return operator, variant


def batch_invariant_key(key: str) -> str:
    """The name of an operator's function without rows: `a:batch_invariant`, `a:b+batch_invariant`."""
    return f"{key}{'+' if split_key(key)[1] else ':'}{BATCH_INVARIANT}"


def split_batch_invariant(key: str) -> tuple[str, bool]:
    """A name in tables without the suffix of `batch_invariant_key`, and whether it had that."""
    plain = key.removesuffix(BATCH_INVARIANT)
    return (plain[:-1], True) if plain != key and plain[-1:] in (":", "+") else (key, False)
