"""The map's config at each shape, its width, and its readability without colour."""

import io

import numpy as np
import pytest
from rich.console import Console

from normtune.heuristics.fitting.figures import Loss
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.heuristics.showing import config_map as maps
from normtune.heuristics.showing.config_map import best_map, legend_lines, map_lines, size_label, table_map
from normtune.kernels.key import Key
from normtune.kernels.rms_norm.operator import RMSNormConfig

A, B, C = (RMSNormConfig("row", 1, warps) for warps in (1, 2, 4))


def matrix(regret: list[list[int | None]], shapes: list[tuple[int, int]], configs=(A, B, C)) -> TimingMatrix:
    """A matrix of these regrets in thousandths; None is unusable."""
    usable = np.array([[one is not None for one in row] for row in regret])
    values = np.array([[1000 * (one or 0) for one in row] for row in regret], np.int64)
    return TimingMatrix(Key.of("toy", "", "bfloat16"), tuple(shapes), configs, values, usable)


SHAPES = [(1, 64), (4, 64), (1, 128), (4, 128)]


def printed(lines: list, columns: int = 80) -> list[str]:
    """The lines as a terminal without colours shows them, without spaces at their ends."""
    file = io.StringIO()
    console = Console(file=file, width=columns, color_system=None, force_terminal=True)
    for line in lines:
        console.print(line)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_shape_shows_the_config_within_a_percent_that_most_shapes_show() -> None:
    # B is best at the first shape by half a percent, and A is nearly as good there; at the last only C is near.
    found = best_map(matrix([[5, 0, 99], [0, 50, 99], [0, 11, 99], [99, 99, 0]], SHAPES), SHAPES)
    assert found.config_at == {(1, 64): A, (4, 64): A, (1, 128): A, (4, 128): C}
    assert found.counts == ((A, 3), (C, 1))
    assert found.wins == {A: 2, B: 1, C: 1}
    assert found.losses == {}


def test_what_has_no_time_is_never_shown() -> None:
    found = best_map(matrix([[None, 0, 3]], [(1, 64)]), [(1, 64), (8, 64)])
    assert found.config_at == {(1, 64): B}
    assert found.untimed == {(8, 64)}


def test_the_map_has_hidden_down_rows_across_and_marks_for_holes() -> None:
    found = best_map(matrix([[0, 50, 50], [50, 0, 50]], [(1, 64), (2048, 768)]), [(1, 64), (2048, 768), (2048, 64)])
    assert printed(map_lines(found, 80)) == [
        "       rows",
        "hidden 1 2k",
        "    64 A  x",
        "   768 .  B",
    ]
    assert printed(legend_lines(found)) == [
        "   shown  best  config",
        " A      1     1  row warps=1",
        " B      1     1  row warps=2",
        " x measured, but no config has times",
        " . not measured",
    ]


def test_a_table_is_marked_where_it_loses_over_three_percent_and_where_nothing_is_known() -> None:
    answers = {(1, 64): A, (4, 64): B, (1, 128): B, (4, 128): RMSNormConfig("row", 1, 32)}
    found = table_map(
        matrix([[0, 9, 9], [0, 29, 9], [0, 30, 9], [0, 9, 9]], SHAPES), SHAPES, lambda *shape: answers[shape]
    )
    assert found.losses == {(1, 64): 0, (4, 64): 29_000, (1, 128): 30_000, (4, 128): None}
    assert found.worst(5) == [((1, 128), 30_000)]
    # The fourth answer is measured nowhere: the slowest time of its shape, at least 5 %, bounds it.
    assert found.loss == Loss(19_666, 19_666, 30_000, 30_000, 3, untimed=1, bound=(59_000 + 48_790) // 4)
    lines = printed(map_lines(found, 80))
    assert lines[2:] == ["    64 B A", "   128!A?C"]
    told = printed(legend_lines(found))
    assert " A      2     0  row warps=2" in told
    assert told[-2:] == [" ! the table loses over 3 %", " ? the table's config was not measured there"]


def test_the_worst_are_the_worst_first() -> None:
    found = table_map(matrix([[0, 40, 9], [0, 90, 9], [0, 60, 9], [0, 9, 9]], SHAPES), SHAPES, lambda *_: B)
    assert found.worst(2) == [((4, 64), 90_000), ((1, 128), 60_000)]


def test_rare_configs_share_a_mark() -> None:
    configs = tuple(RMSNormConfig("row", 1 + number) for number in range(30))
    shapes = [(1 + number, 64) for number in range(30)]
    regret = [[0 if place == number else 99 for place in range(30)] for number in range(30)]
    found = best_map(matrix(regret, shapes, configs), shapes)
    assert sorted(found.letters.values()) == ["+"] * 4 + [*maps.LETTERS]
    assert printed(legend_lines(found))[-1] == " +      4     4  4 other configs"


def test_what_all_configs_have_in_common_is_said_once() -> None:
    one, two = (RMSNormConfig("persistent", 1, warps, 1, 1, "reduce") for warps in (4, 8))
    regret = [[0, 99], [99, 0], [0, 99]]
    found = best_map(matrix(regret, SHAPES[:3], (one, two)), SHAPES)
    assert printed(legend_lines(found))[:3] == [
        "   shown  best  config, each with finish=reduce",
        " A      2     2  persistent warps=4 per_sm=1",
        " B      1     1  persistent warps=8 per_sm=1",
    ]
    alone = best_map(matrix([[0]], [(1, 64)], (one,)), [(1, 64)])
    assert printed(legend_lines(alone))[1] == " A      1     1  persistent warps=4 per_sm=1 reduce"


@pytest.mark.parametrize("columns", [24, 40, 80])
def test_a_map_that_is_too_wide_comes_in_bands(columns: int) -> None:
    sizes = [3**power for power in range(19)]
    shapes = [(rows, hidden) for rows in sizes for hidden in (64, 65535)]
    found = best_map(matrix([[0, 50, 50]] * len(shapes), shapes), shapes)
    lines = printed(map_lines(found, columns), columns)
    assert max(map(len, lines)) <= columns
    heads = [line.split()[1:] for line in lines if line.startswith("hidden")]
    assert [label for head in heads for label in head] == [size_label(size) for size in sizes]
    assert sum(line.count("A") for line in lines) == len(shapes)


@pytest.mark.parametrize(
    ("size", "label"), [(1, "1"), (1000, "1000"), (1024, "1k"), (1536, "1536"), (262144, "256k"), (3 << 20, "3M")]
)
def test_sizes_are_named_exactly(size: int, label: str) -> None:
    assert size_label(size) == label


def test_colours_add_nothing_that_letters_do_not_say() -> None:
    found = best_map(matrix([[0, 50, 50], [50, 0, 50]], [(1, 64), (4, 64)]), SHAPES[:2])
    file = io.StringIO()
    console = Console(file=file, width=80, color_system="standard", force_terminal=True)
    for line in map_lines(found, 80):
        console.print(line)
    assert "\x1b[" in file.getvalue()
    assert len({maps.letter_style(letter) for letter in maps.LETTERS[:12]}) == 12
