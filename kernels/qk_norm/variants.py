"""What a problem of these operators asks for, by its variant and its named integers.

In: a problem. Out: `Work`; the flags and the named integers. No torch, no triton.

A problem has a row a token and `hidden` elements a head. Its named integers are the heads of a token: `heads_q` query
heads, then `heads_k` key heads, of `heads` in all, the rest of which are value heads; and `rotary_dim`, the elements of
a head that are rotated. Each mode is a flag, as it is another binary.
"""

from functools import cache
from typing import NamedTuple

from normtune.kernels.key import Key, with_sizes
from normtune.kernels.operator import Flag
from normtune.kernels.problem import Problem

FAMILY, BACKWARD = "qk_norm", "qk_norm_backward"
NO_DWEIGHT = "no_dweight"
OUT_OF_PLACE, NO_ROTARY, GPTJ, IN_ORDER, WHOLE_TABLES, ROUNDED_PRODUCT, ROUNDED_ROTATION = (
    *("out_of_place", "no_rotary", "gptj", "in_order"),
    *("whole_tables", "rounded_product", "rounded_rotation"),
)
FLAGS = (
    Flag("is_in_place", OUT_OF_PLACE),
    Flag("has_rotary", NO_ROTARY),
    Flag("is_neox", GPTJ),
    Flag("has_positions", IN_ORDER),
    Flag("has_half_tables", WHOLE_TABLES),
    Flag("product_in_float32", ROUNDED_PRODUCT),
    Flag("rotation_in_float32", ROUNDED_ROTATION),
)
# The backward is that of the function without roundings, and never in place.
BACKWARD_FLAGS = (Flag("needs_dweight", NO_DWEIGHT), *FLAGS[1:5])
# Values that a sweep takes: the heads of Llama 3 8B and Qwen3 8B, all of them rotated whole.
SIZES = {"heads_q": (32,), "heads_k": (8,), "heads": (48,), "rotary_dim": (128,)}


class Work(NamedTuple):
    """What a problem asks for.

    Attributes:
        heads_q: query heads of a token.
        heads_k: key heads, behind them.
        heads: heads that the kernel writes: query and key heads; unless in place also the value heads behind them.
        rotary: elements of a head that are rotated, its first ones: even, 0 for none.
        is_in_place: whether the heads are written where they were read.
        is_neox: whether an element is rotated with that half of `rotary` further on, else with its neighbour.
        has_positions: whether positions select rows of the tables; else a token has the row of its own number.
        has_whole_tables: whether tables have a column for each rotated element; else for each pair.
        rounds_product: whether x * rstd is rounded to the dtype before the weight multiplies it.
        rounds_rotation: whether the products of a rotation are rounded to the dtype.
    """

    heads_q: int
    heads_k: int
    heads: int
    rotary: int
    is_in_place: bool
    is_neox: bool
    has_positions: bool
    has_whole_tables: bool
    rounds_product: bool
    rounds_rotation: bool

    @property
    def table_columns(self) -> int:
        """Columns of each table."""
        return self.rotary if self.has_whole_tables else self.rotary // 2


def work_of(problem: Problem) -> Work:
    """What a problem asks for; of a rotary_dim beyond the head as much as a head has."""
    return _work(problem.key, problem.hidden)


@cache
def _work(key: Key, hidden: int) -> Work:
    sizes, off = dict(key.sizes), key.modes
    has_rotary, in_place = NO_ROTARY not in off, key.family == FAMILY and OUT_OF_PLACE not in off
    return Work(
        sizes["heads_q"],
        sizes["heads_k"],
        sizes["heads_q"] + sizes["heads_k"] if in_place else max(sizes["heads"], sizes["heads_q"] + sizes["heads_k"]),
        min(sizes["rotary_dim"], hidden) // 2 * 2 if has_rotary else 0,
        in_place,
        GPTJ not in off,
        has_rotary and IN_ORDER not in off,
        has_rotary and WHOLE_TABLES in off,
        ROUNDED_PRODUCT in off,
        has_rotary and ROUNDED_ROTATION in off,
    )


def operator_name(heads_q: int, heads_k: int, heads: int, rotary_dim: int, family: str = FAMILY) -> str:
    """The name of the operator at these named integers."""
    return with_sizes(family, {"heads_q": heads_q, "heads_k": heads_k, "heads": heads, "rotary_dim": rotary_dim})
