"""Map of one operator and dtype: the best config, or a table's, at each measured shape, in bands that fit a width.

Configs are letters, so the map needs no colour. Equally fast configs would make it noisy: by the least regret alone,
the H200's backward in bfloat16 has 59 best configs on 418 shapes, most of them within 1 % of their neighbours' best. So
of the configs within `NEAR` of a shape's best, the map shows the config that is within `NEAR` on the most shapes,
chosen greedily: 43 configs, of which the first 26 have letters.
"""

import string
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.fitting.figures import Loss, of_configs
from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.kernels.config import Config
from normtune.kernels.problem import AXES, Shape

if TYPE_CHECKING:
    from rich.text import Text

# log_ppm: 1 %. The order of configs within 1 % changes from sweep to sweep.
NEAR = 9_950
# log_ppm: 3 %.
LOSING = 29_559
LETTERS = string.ascii_uppercase
OTHER, NONE, UNTIMED, LOSES, UNKNOWN = "+", ".", "x", "!", "?"
# One for each of the first letters; bold ones follow.
_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")


@dataclass(frozen=True)
class BestMap:
    """Content of a map.

    Attributes:
        config_at: the config of each shape (rows, hidden) with times.
        counts: these configs, the most frequent first, each with the number of its shapes.
        best: the fastest config of each of these shapes.
        untimed: measured shapes without a config with times.
        losses: loss of a table's config at each shape, log_ppm, None if it has no time there; empty for a map of the
            best configs.
        loss: of the table; None for a map of the best configs, and without a time.
    """

    config_at: dict[Shape, Config]
    counts: tuple[tuple[Config, int], ...]
    best: dict[Shape, Config]
    untimed: frozenset[Shape]
    losses: dict[Shape, int | None]
    loss: Loss | None = None

    @property
    def wins(self) -> Counter[Config]:
        """Number of shapes at which each config is the fastest."""
        return Counter(self.best.values())

    @property
    def letters(self) -> dict[Config, str]:
        """The letter of each config; rare configs share `OTHER`."""
        names = enumerate(config for config, _ in self.counts)
        return {config: LETTERS[index] if index < len(LETTERS) else OTHER for index, config in names}

    @property
    def ending(self) -> str:
        """The common last word of all configs with letters, which is printed once to save width; empty without one."""
        endings = {str(config).rpartition(" ")[2] for config, letter in self.letters.items() if letter != OTHER}
        return endings.pop() if len(endings) == 1 and len(self.counts) > 1 else ""

    def worst(self, count: int) -> list[tuple[Shape, int]]:
        """The shapes at which the table loses over `LOSING`, the worst first, at most `count`."""
        losing = [(shape, loss) for shape, loss in self.losses.items() if loss is not None and loss > LOSING]
        return sorted(losing, key=lambda pair: (-pair[1], pair[0]))[:count]


def best_map(matrix: TimingMatrix, measured: Collection[Shape]) -> BestMap:
    """The map of the best configs; `measured`: all shapes of the sweep, also those without times."""
    regret = _regret(matrix)
    chosen = _cover(regret <= regret.min(axis=1, keepdims=True) + NEAR)
    config_at = {shape: matrix.configs[chosen[index]] for index, shape in enumerate(matrix.problems)}
    return _map(matrix, measured, config_at, {})


def table_map(matrix: TimingMatrix, measured: Collection[Shape], answer: Callable[[int, int], Config]) -> BestMap:
    """The map of a table's configs and their losses; `measured`: all shapes of the sweep, also those without times."""
    config_at = {shape: answer(*shape) for shape in matrix.problems}
    losses = {shape: matrix.loss(index, config_at[shape]) for index, shape in enumerate(matrix.problems)}
    return replace(_map(matrix, measured, config_at, losses), loss=of_configs(matrix, [*config_at.values()]))


def _regret(matrix: TimingMatrix) -> NDArray[np.int64]:
    """The regret of each config; of unusable configs larger than any."""
    return np.where(matrix.usable, matrix.regret, np.iinfo(np.int64).max // 2)


def _map(
    matrix: TimingMatrix, measured: Collection[Shape], config_at: dict[Shape, Config], losses: dict[Shape, int | None]
) -> BestMap:
    best = {
        shape: matrix.configs[column]
        for shape, column in zip(matrix.problems, _regret(matrix).argmin(axis=1), strict=True)
    }
    return BestMap(config_at, _counted(config_at), best, frozenset(measured) - set(matrix.problems), losses)


def _cover(near: NDArray[np.bool_]) -> list[int]:
    """The column that each row shows: greedily, the column that is near on the most remaining rows."""
    chosen = np.full(len(near), -1)
    while (chosen < 0).any():
        column = int(near[chosen < 0].sum(axis=0).argmax())
        chosen[(chosen < 0) & near[:, column]] = column
    return [int(column) for column in chosen]


def _counted(config_at: dict[Shape, Config]) -> tuple[tuple[Config, int], ...]:
    return tuple(sorted(Counter(config_at.values()).items(), key=lambda pair: (-pair[1], pair[0])))


def short_name(config: Config | str) -> str:
    """The name of a config, or a part of it, on maps and in lists."""
    return str(config).replace("programs_per_sm=", "per_sm=").replace("finish=", "")


def size_label(size: int) -> str:
    """A size as a label of the map: `768`, `4k`, `1M`, with k and M the powers of 1024."""
    for unit, name in ((1 << 20, "M"), (1 << 10, "k")):
        if size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def map_lines(content: BestMap, columns: int, axes: Sequence[str] = AXES) -> "list[Text]":
    """The map as lines of at most `columns`, at least 20: hidden down and rows across, in as many bands as needed."""
    letters = content.letters
    return plane_lines(
        {*content.config_at, *content.untimed}, columns, lambda shape: _cell(content, letters, shape), axes
    )


def has_gaps(shapes: Collection[Shape]) -> bool:
    """Whether a combination of the sizes of shapes is not among them."""
    return len({*shapes}) < prod(len({*sizes}) for sizes in zip(*shapes, strict=True))


def plane_lines(
    shapes: Collection[Shape], columns: int, cell: Callable[[Shape], tuple[str, str]], axes: Sequence[str] = AXES
) -> "list[Text]":
    """The plane of rows and hidden as lines.

    Args:
        shapes: (rows, hidden), whose sizes label the edges.
        columns: width, at least 20.
        cell: a shape's two characters and their style; combinations of sizes that are not among the shapes have `NONE`.
        axes: the names of rows and hidden.
    """
    from rich.text import Text

    present, hidden_sizes = {*shapes}, sorted({hidden for _, hidden in shapes})
    across, down, *_ = axes
    edge = max(len(down), *(len(size_label(hidden)) for hidden in hidden_sizes))
    lines: list[Text] = []
    for band in _bands(sorted({rows for rows, _ in shapes}), columns - edge):
        if lines:
            lines.append(Text())
        widths = [len(size_label(rows)) + 1 for rows in band]
        labels = "".join(f"{size_label(rows):>{width}}" for rows, width in zip(band, widths, strict=True))
        lines.append(Text(f"{'':{edge}} {across}", style="bold"))
        lines.append(Text(f"{down:>{edge}}{labels}", style="bold"))
        for hidden in hidden_sizes:
            line = Text(f"{size_label(hidden):>{edge}}", style="bold")
            for rows, width in zip(band, widths, strict=True):
                mark, style = cell((rows, hidden)) if (rows, hidden) in present else (f" {NONE}", "not bold dim")
                line.append(f"{'':{width - 2}}").append(mark, style=style)
            lines.append(line)
    return lines


def _cell(content: BestMap, letters: dict[Config, str], shape: Shape) -> tuple[str, str]:
    """Two characters, a mark and a letter, and their style."""
    if shape in content.untimed:
        return f" {UNTIMED}", "not bold dim"
    letter = letters[content.config_at[shape]]
    loss = content.losses.get(shape, 0)
    if loss is None:
        return f"{UNKNOWN}{letter}", "not bold"
    if loss > LOSING:
        return f"{LOSES}{letter}", "bold reverse"
    return f" {letter}", letter_style(letter)


def letter_style(letter: str) -> str:
    """The style of a letter on the map and in its legend."""
    index = LETTERS.find(letter)
    if index < 0:
        return "not bold"
    return ("bold " if index // len(_COLOURS) % 2 else "not bold ") + _COLOURS[index % len(_COLOURS)]


def _bands(sizes: Sequence[int], columns: int) -> list[list[int]]:
    """The row counts in order, in the fewest bands for a width, each as narrow as that number allows."""
    bands = _filled(sizes, columns)
    while columns > 1 and len(narrower := _filled(sizes, columns - 1)) == len(bands):
        bands, columns = narrower, columns - 1
    return bands


def _filled(sizes: Sequence[int], columns: int) -> list[list[int]]:
    """Bands whose labels fit into `columns`, each filled before the next."""
    bands: list[list[int]] = []
    room = 0
    for size in sizes:
        width = len(size_label(size)) + 1
        if not bands or width > room:
            bands.append([])
            room = columns
        bands[-1].append(size)
        room -= width
    return bands


def legend_lines(content: BestMap) -> "list[Text]":
    """Legend of the letters and marks: each config in one line, with its shapes and number of wins."""
    from rich.text import Text

    letters = content.letters
    others = [(config, count) for config, count in content.counts if letters[config] == OTHER]
    ending = content.ending
    lines = [Text(f"   shown  best  config{f', each with {ending}' * bool(ending)}", style="bold")]
    for config, count in content.counts[: len(content.counts) - len(others)]:
        letter = letters[config]
        # Unabbreviated, the longest takes 92 columns.
        name = short_name(str(config).removesuffix(f" {ending}"))
        counts = f" {count:>6} {content.wins[config]:>5}  {name}"
        lines.append(Text.assemble(" ", (letter, letter_style(letter)), counts))
    if others:
        total, best = sum(count for _, count in others), sum(content.wins[config] for config, _ in others)
        lines.append(Text(f" {OTHER} {total:>6} {best:>5}  {len(others)} other configs"))
    for mark, meaning, is_shown in (
        (UNTIMED, "measured, but no config has times", content.untimed),
        (NONE, "not measured", has_gaps({*content.config_at, *content.untimed})),
        (LOSES, f"the table loses over {percent(LOSING, 0)}", content.worst(1)),
        (UNKNOWN, "the table's config was not measured there", None in content.losses.values()),
    ):
        if is_shown:
            lines.append(Text(f" {mark} {meaning}"))
    return lines
