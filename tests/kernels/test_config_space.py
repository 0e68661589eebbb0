"""Sequences of configs that make one when it is asked for."""

from itertools import product
from typing import Annotated

import pytest

from normtune.kernels.config import Config
from normtune.kernels.config_space import KnobProduct, Listed, spread


class Tile(Config):
    order: Annotated[str, "order."]
    width: Annotated[int, "columns."]
    height: Annotated[int, "rows."] = 2


VALUES = {"height": (4, 1, 2), "order": ("row", "column"), "width": (8, 2, 2)}
WHOLE = sorted({Tile(order, width, height) for height, order, width in product(*VALUES.values())})


def test_a_product_has_each_config_once_in_order_and_knows_its_own() -> None:
    space = KnobProduct(Tile, VALUES)
    assert [*space] == [space[place] for place in range(len(space))] == WHOLE and len(space) == 12
    assert space[-1] == WHOLE[-1] and space[2:5] == WHOLE[2:5]
    with pytest.raises(IndexError, match="config 12 of 12"):
        space[12]
    assert all(config in space for config in WHOLE)
    assert Tile("row", 3, 1) not in space and tuple(WHOLE[0]) not in space


@pytest.mark.parametrize("space", [KnobProduct(Tile, VALUES), Listed(reversed([*WHOLE, *WHOLE]))])
def test_configs_with_some_values_are_found_without_the_others(space) -> None:
    assert [*space] == WHOLE
    assert [*space.having({"height": 2, "order": "row"})] == [Tile("row", 2, 2), Tile("row", 8, 2)]
    assert not [*space.having({"height": 3})]


def test_a_product_of_more_configs_than_memory_holds_is_a_sequence_like_others() -> None:
    huge = KnobProduct(Tile, {"order": ("row",), "width": range(1, 10**5), "height": range(1, 10**5)})
    assert len(huge) == (10**5 - 1) ** 2
    assert spread(huge, 3) == [Tile("row", 1, 1), Tile("row", 50_000, 50_000), Tile("row", 99_999, 99_999)]
