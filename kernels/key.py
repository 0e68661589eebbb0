"""The key of a function of a table: which operator at which named integers, in which modes and dtype.

In: names; or the text that stands for them in files, columns and arguments. Out: `Key`, which alone knows that text:
`FAMILY.NAME=INTEGER...:MODE+MODE...`, such as `rms_norm_forward:no_rstd` or `qk_norm.heads_q=32.heads_k=8`.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple, Self

# An operator's name: words joined by dots, and integers by name.
# A name may come from a stranger's table: Python refuses thousands of digits, and a float hundreds.
_INTEGER = re.compile("0|[1-9][0-9]{0,8}")
_OPERATOR = re.compile(rf"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+(=({_INTEGER.pattern}))?)*")
_VARIANT = re.compile(r"([A-Za-z0-9_]+(\+[A-Za-z0-9_]+)*)?")
_MOST_CHARACTERS = 200
# The word of the functions that give a row the same bits in every batch.
_BATCH_INVARIANT = "batch_invariant"
# Other names of dtypes, of torch, Triton and JAX.
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "f16": "float16"}
_DTYPES |= {"fp32": "float32", "float": "float32", "f32": "float32"}


def dtype_of(dtype: Any) -> str:
    """The name of a dtype: `bfloat16` of `torch.bfloat16` and of `bf16`."""
    name = str(dtype).removeprefix("torch.").removeprefix("tl.")
    return _DTYPES.get(name, name)


class Key(NamedTuple):
    """Key of a function, and of all problems that differ in rows and hidden alone. Ordered by text, then dtype.

    Attributes:
        family: the operator's name without its named integers.
        sizes: named integers besides rows and hidden, in the operator's order.
        modes: words of the modes that are not the default (`mode.Mode`), in the operator's order.
        dtype: name of the dtype of the inputs.
        is_batch_invariant: whether of the function that gives a row the same bits in every batch.
    """

    family: str
    sizes: tuple[tuple[str, int], ...]
    modes: tuple[str, ...]
    dtype: str
    is_batch_invariant: bool = False

    @classmethod
    def parse(cls, text: str, dtype: str) -> Self:
        """The key of a text in a dtype, the inverse of `text` for any text."""
        operator, colon, variant = text.partition(":")
        words = tuple(variant.split("+")) if colon else ()
        if words[-1:] == (_BATCH_INVARIANT,):
            return cls(*_operator(operator), words[:-1], dtype, True)
        return cls(*_operator(operator), words, dtype)

    @staticmethod
    def of(operator: str, variant: str, dtype: str) -> "Key":
        """The key of these columns; the inverse of `columns` for a key that is not batch-invariant."""
        return _of_columns(operator, variant, dtype)

    @property
    def operator(self) -> str:
        """The name by which the operator is registered, with its named integers: `norm_gated.group_size=128`."""
        return with_sizes(self.family, dict(self.sizes)) if self.sizes else self.family

    @property
    def variant(self) -> str:
        """The words of the text behind the operator, joined by `+`; empty for the plain function."""
        return "+".join((*self.modes, _BATCH_INVARIANT) if self.is_batch_invariant else self.modes)

    @property
    def text(self) -> str:
        """The name of the function in tables, beside the dtype: `a`, `a:b`, `a:b+batch_invariant`."""
        return f"{self.operator}:{self.variant}" if self.modes or self.is_batch_invariant else self.operator

    @property
    def columns(self) -> tuple[str, str, str]:
        """Operator, variant and dtype, as stores and data frames have them."""
        return self.operator, self.variant, self.dtype

    @property
    def without_modes(self) -> Self:
        """The key without modes."""
        return self._replace(modes=())

    @property
    def usual(self) -> Self:
        """The key of the function for launches outside of the batch-invariant mode."""
        return self._replace(is_batch_invariant=False)

    @property
    def batch_invariant(self) -> Self:
        """The key of the function for the batch-invariant mode."""
        return self._replace(is_batch_invariant=True)

    @property
    def names(self) -> tuple[Self, ...]:
        """The keys by which a table looks a function up, in this order: without one in these modes, the plain one."""
        return (self, self.without_modes) if self.modes else (self,)

    def with_sizes(self, sizes: Iterable[tuple[str, int]]) -> Self:
        """The key at further named integers."""
        return self._replace(sizes=(*self.sizes, *sizes))

    def without(self, names: Collection[str]) -> Self:
        """The key without these named integers."""
        return self._replace(sizes=tuple((name, value) for name, value in self.sizes if name not in names))

    def nearest(self, others: Iterable["Key"]) -> Self:
        """This key at the nearest named integers of the other keys of its family and dtype, as emitted tables choose.

        These have the least product of ratios, which is the least sum of |log ratio|, then the smaller integers. At its
        own where no other key has the same names.
        """
        own_sizes = dict(self.sizes)
        alike = [
            other.sizes
            for other in others
            if (other.family, other.dtype) == (self.family, self.dtype)
            and {name for name, _ in other.sizes} == {*own_sizes}
            and all(value for _, value in other.sizes)
        ]
        if not alike or not own_sizes or not all(own_sizes.values()):
            return self

        def distance(sizes: tuple[tuple[str, int], ...]) -> tuple[Fraction, ...]:
            ratios = (Fraction(max(value, own_sizes[name]), min(value, own_sizes[name])) for name, value in sizes)
            return math.prod(ratios, start=Fraction(1)), *(Fraction(value) for _, value in sizes)

        return self._replace(sizes=min(alike, key=distance))

    def __lt__(self, other: tuple[Any, ...]) -> bool:
        return (self.text, self.dtype) < (other.text, other.dtype) if isinstance(other, Key) else NotImplemented

    def __gt__(self, other: tuple[Any, ...]) -> bool:
        return (self.text, self.dtype) > (other.text, other.dtype) if isinstance(other, Key) else NotImplemented

    def __str__(self) -> str:
        return f"{self.text} {self.dtype}"


@lru_cache(4096)  # torch.compile traces cached functions, but no cached methods
def _of_columns(operator: str, variant: str, dtype: str) -> Key:
    return Key(*_operator(operator), tuple(variant.split("+")) if variant else (), dtype)


def with_sizes(family: str, sizes: Mapping[str, int]) -> str:
    """The name of a family's operator at these named integers."""
    return ".".join((family, *(f"{name}={value}" for name, value in sizes.items())))


def is_operator(text: str) -> bool:
    """Whether a text can be the name of an operator, with its named integers."""
    return len(text) <= _MOST_CHARACTERS and bool(_OPERATOR.fullmatch(text))


def is_variant(text: str) -> bool:
    """Whether a text can be the name of a variant, words joined by `+`, or none."""
    return len(text) <= _MOST_CHARACTERS and bool(_VARIANT.fullmatch(text))


def family_of(operator: str) -> str:
    """The name of an operator without its named integers."""
    return _operator(operator)[0]


@lru_cache(4096)
def _operator(text: str) -> tuple[str, tuple[tuple[str, int], ...]]:
    """An operator's name as family and named integers; all of it is the family where it has another form."""
    family, *parts = text.split(".")
    sizes = []
    for part in parts:
        name, _, value = part.partition("=")
        if not _INTEGER.fullmatch(value):
            return text, ()
        sizes.append((name, int(value)))
    return family, tuple(sizes)
