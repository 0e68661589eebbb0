"""Modes of operators: options of a problem beside its shape and dtype.

In: the variant of a problem. Out: a member of a `Mode`. Each combination of modes is another binary and another variant
in tables and stores, whose text has the words of the members that are not the default, joined by `+`.
"""

import re
from collections import namedtuple
from enum import Enum
from functools import cache
from typing import Any, Protocol, Self


class _HasVariant(Protocol):
    @property
    def variant(self) -> str: ...


# Of each mode, as torch.compile of torch 2.11 cannot iterate over an enum on Python 3.11.
_MEMBERS: "dict[type[Mode], tuple[Mode, ...]]" = {}


class Mode(Enum):
    """A mode: a subclass has a member for each choice.

    The value of a member is its words in a variant, joined by `+`: of the default none, "". Members that share a word
    differ in the number of words.
    """

    def __init_subclass__(cls) -> None:
        _MEMBERS[cls] = tuple(cls)

    @classmethod
    def of(cls, problem: _HasVariant) -> Self:
        """The member that a problem selects: of those whose words its variant has, that of most words, then the first.

        Without any of the words that is the default, of an operator that has no such mode, too.
        """
        member: Self = _member(cls, problem.variant)
        return member

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the member in a variant."""
        return tuple(self.value.split("+")) if self.value else ()


class Rstd(Mode):
    """Whether a forward stores the factors 1 / sqrt(mean(x^2) + eps) of rows, which its backward reads."""

    STORED = ""
    NONE = "no_rstd"


class Dweight(Mode):
    """Whether a backward computes gradients (hidden,)."""

    COMPUTED = ""
    NONE = "no_dweight"


class Sum(Mode):
    """The sum x + residual, before it is normalized."""

    FLOAT32 = ""
    ROUNDED = "rounded_sum"


class Product(Mode):
    """The product x * rstd, before the weight multiplies it; of a backward that in the terms of the weight gradient."""

    FLOAT32 = ""
    ROUNDED = "rounded_product"


class Statistics(Mode):
    """The squares of x, eps, weight + offset, and the rstd that is stored."""

    FLOAT32 = ""
    ROUNDED = "rounded_statistics"


@cache
def names_of(modes: tuple[type[Mode], ...], variant: str, **others: Any) -> Any:
    """The names of the members that a variant selects, as plain text: a constexpr of kernels.

    Returns:
        A named tuple with a field for each mode, named as the mode in snake case (`ScaleLayout` is `scale_layout`), and
        with `others`.
    """
    fields = [re.sub(r"\B(?=[A-Z])", "_", mode.__name__).lower() for mode in modes]
    return namedtuple("Modes", [*fields, *others])(*(_member(mode, variant).name for mode in modes), **others)


@cache
def words_of(modes: tuple[type[Mode], ...]) -> tuple[str, ...]:
    """The words of all members, in the order of a variant's text."""
    return tuple(dict.fromkeys(word for mode in modes for member in _MEMBERS[mode] for word in member.words))


@cache
def _member(mode: type[Mode], variant: str) -> Any:
    words, best = set(variant.split("+")), mode("")
    for member in _MEMBERS[mode]:  # torch.compile traces no `max` with a key
        if len(member.words) > len(best.words) and words.issuperset(member.words):
            best = member
    return best
