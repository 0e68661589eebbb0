"""Where a table answers, and where it hands on to the next one."""

from types import SimpleNamespace
from typing import Any

import pytest

from normtune.kernels.box import Box
from normtune.kernels.key import Key
from normtune.kernels.problem import MAX_ROWS
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.tablefile import locate
from normtune.kernels.tablefile.loaded import LoadedTable
from normtune.kernels.tablefile.selection import TableSelection, row_bounds
from normtune.kernels.tablefile.tree import Leaf, Split, Tree

BF16, HALF = (Key.parse("norm", dtype) for dtype in ("bfloat16", "float16"))
FEW, ALL = Box.of(rows=(2, 8), hidden=(1024, 4096)), Box.of(rows=(1, 262144), hidden=(64, 32768))


def table(
    name: str, measured: dict[Key, Box], served: tuple[Key, ...] = (), tree: Tree | None = None, **more: Any
) -> LoadedTable:
    """A table with one function, whose configs have the name for a schedule."""
    tree = tree or Leaf(RMSNormConfig(name, 1, 4))
    axes = next(iter(measured.values())).axes
    keys = served or tuple(measured)
    header: Any = SimpleNamespace()
    return LoadedTable(locate.SHIPPED, header, dict.fromkeys(keys, tree), measured, axes)


def selection(*tables: LoadedTable) -> TableSelection:
    others: TableSelection | None = None
    for one in reversed(tables):
        others = locate.selection_of(one, "", others)
    assert others is not None
    return others


def answers(tables: TableSelection, key: Key, *shapes: tuple[int, ...]) -> list[str | None]:
    configs = [tables.answer(key)(*shape) for shape in shapes]
    return [None if config is None else str(config[0]) for config in configs]


def test_beyond_a_factor_of_two_of_its_rows_the_next_table_answers() -> None:
    tables = selection(table("few", {BF16: FEW}), table("all", {BF16: ALL}))
    shapes = [(rows, 4096) for rows in (1, 16, 17, 524288, 524289, MAX_ROWS)]
    assert answers(tables, BF16, *shapes) == ["few", "few", "all", "all", None, None]


def test_the_same_holds_for_hidden_sizes_and_their_lower_end() -> None:
    tables = selection(table("few", {BF16: FEW}), table("all", {BF16: ALL}))
    shapes = [(4, hidden) for hidden in (31, 32, 511, 512, 8192, 8193, 65536, 65537)]
    assert answers(tables, BF16, *shapes) == [None, "all", "all", "few", "few", "all", "all", None]
    high = selection(table("high", {BF16: Box.of(rows=(65, 128), hidden=(64, 64))}), table("all", {BF16: ALL}))
    assert answers(high, BF16, (32, 64), (33, 64)) == ["all", "high"]


def test_the_function_itself_keeps_its_outermost_answers() -> None:
    few = table("few", {BF16: FEW})
    function = few.function(BF16)
    assert function is not None and function(MAX_ROWS, 1)[0] == "few"


@pytest.mark.parametrize(
    ("heads", "name"), [(3, None), (4, "few"), (16, "few"), (17, None), (32, "many"), (128, "many"), (129, None)]
)
def test_named_integers_are_sizes_too(heads: int, name: str | None) -> None:
    few, many, wanted = (Key.parse(f"qk.heads={count}", "bfloat16") for count in (8, 64, heads))
    tables = selection(table("few", {few: ALL}), table("many", {many: ALL}))
    assert answers(tables, wanted, (1, 64)) == [name]


@pytest.mark.parametrize(("k", "name"), [(255, "all"), (256, "few"), (1024, "few"), (1025, "all"), (1 << 17, None)])
def test_a_third_size_is_one_whether_it_is_given_as_a_size_or_a_named_integer(k: int, name: str | None) -> None:
    few, all_sizes = Box.of(m=(1, 64), n=(64, 64), k=(512, 512)), Box.of(m=(1, 64), n=(64, 64), k=(16, 32768))
    tables = selection(table("few", {BF16: few}), table("all", {BF16: all_sizes}))
    assert answers(tables, BF16.with_sizes([("k", k)]), (1, 64)) == [name]
    assert answers(tables, BF16, (1, 64, k)) == [name]


def test_a_dtype_that_was_not_measured_goes_to_the_next_table_that_measured_it() -> None:
    derived = table("derived", {BF16: ALL}, (BF16, HALF))
    own = selection(derived, table("own", {HALF: FEW}))
    assert answers(own, HALF, (4, 4096), (4096, 4096), (MAX_ROWS, 4096)) == ["own", "derived", None]
    assert answers(own, BF16, (4, 4096)) == ["derived"]
    assert answers(selection(derived), HALF, (4, 4096), (MAX_ROWS, 4096)) == ["derived", None]
    assert answers(own, BF16._replace(dtype="float32"), (4, 4096)) == [None]


def test_a_variant_without_a_function_goes_to_the_table_that_measured_it() -> None:
    variant = BF16._replace(modes=("no_rstd",))
    shared = table("shared", {BF16: ALL, variant: FEW}, (BF16,))
    tables = selection(table("plain", {BF16: ALL}), shared)
    assert answers(tables, variant, (4, 4096), (4096, 4096)) == ["shared", "plain"]
    assert answers(selection(shared), variant, (4096, 4096)) == ["shared"]


def test_in_the_batch_invariant_mode_the_table_of_most_rows_answers_at_rows_that_none_measured() -> None:
    key = BF16.batch_invariant
    tables = selection(table("few", {key: FEW}), table("all", {key: ALL}), table("also", {key: ALL}))
    rows = [(count, 4096) for count in (1, 16, 17, MAX_ROWS)]
    assert answers(tables, key, *rows) == ["few", "few", "all", "all"]
    assert answers(tables, key, (1, 31), (MAX_ROWS, 65537)) == [None, None]
    assert answers(selection(table("few", {key: FEW})), key, *rows) == ["few"] * 4


def test_the_rows_at_which_an_answer_may_change_are_those_of_all_tables_and_their_ends() -> None:
    leaves = Leaf(RMSNormConfig("low", 1, 4)), Leaf(RMSNormConfig("high", 1, 4))
    tables = selection(table("few", {BF16: FEW}), table("all", {BF16: ALL}, tree=Split("rows", 1000, *leaves)))
    bounds = row_bounds(tables.functions(BF16), 4096)
    assert bounds == [1, 17, 1000, 524289]
    for least, beyond in zip(bounds, [*bounds[1:], MAX_ROWS + 1], strict=True):
        assert len({*answers(tables, BF16, (least, 4096), (beyond - 1, 4096))}) == 1
    assert row_bounds(tables.functions(BF16), 64) == [1, 1000, 524289]
    assert row_bounds((), 64) == [1]
