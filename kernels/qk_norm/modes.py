"""The operators that normalize and rotate heads: their named integers and modes. No torch, no triton.

The rows of a problem are tokens, hidden is the length of a head. Its named integers are the heads of a token, `heads_q`
query heads, then `heads_k` key heads, of `heads` in all, the rest of which are value heads; and `rotary_dim`, the
number of elements of a head that are rotated. Each mode has its own binary. Part of the kernels' fingerprint.
"""

from typing import NamedTuple

from normtune.kernels.mode import Mode
from normtune.kernels.problem import Problem

FAMILY, BACKWARD = "qk_norm", "qk_norm_backward"
# Values that a sweep takes: the heads of Llama 3 8B and Qwen3 8B, all of them rotated whole.
SIZES = {"heads_q": (32,), "heads_k": (8,), "heads": (48,), "rotary_dim": (128,)}


class Place(Mode):
    """Whether heads are written in place, or to a new tensor, which then also has the value heads."""

    IN_PLACE = ""
    NEW = "out_of_place"


class Rotary(Mode):
    """The pairs of a rotation: elements i and i + rotary_dim / 2, none, or neighbours."""

    NEOX = ""
    NONE = "no_rotary"
    GPTJ = "gptj"


class Positions(Mode):
    """Whether positions select the rows of the tables, or token i has row i."""

    GIVEN = ""
    IN_ORDER = "in_order"


class Tables(Mode):
    """Whether tables have a column for each pair of rotated elements, or for each element."""

    PAIRS = ""
    ELEMENTS = "whole_tables"


class RotationProducts(Mode):
    """Whether the products of a rotation are rounded to the dtype."""

    FLOAT32 = ""
    ROUNDED = "rounded_rotation"


class Heads(NamedTuple):
    """The heads of a token and what is rotated of them.

    Attributes:
        heads_q: query heads of a token.
        heads_k: key heads, behind them.
        written: heads that the kernel writes: query and key heads; unless in place also the value heads behind them.
        rotary: elements of a head that are rotated, its first ones: even, 0 for none, at most as many as a head has.
        table_columns: columns of each table.
    """

    heads_q: int
    heads_k: int
    written: int
    rotary: int
    table_columns: int


def heads_of(problem: Problem) -> Heads:
    """The heads of a problem of either operator."""
    key, sizes = problem.key, dict(problem.key.sizes)
    heads_qk = sizes["heads_q"] + sizes["heads_k"]
    is_in_place = key.family == FAMILY and Place.of(key) is Place.IN_PLACE
    rotary = 0 if Rotary.of(key) is Rotary.NONE else min(sizes["rotary_dim"], problem.hidden) // 2 * 2
    return Heads(
        sizes["heads_q"],
        sizes["heads_k"],
        heads_qk if is_in_place else max(sizes["heads"], heads_qk),
        rotary,
        rotary if Tables.of(key) is Tables.ELEMENTS else rotary // 2,
    )
