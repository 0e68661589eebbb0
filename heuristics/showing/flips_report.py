"""Text of the flips between two cache modes: both directions, a map, and the worst shapes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from normtune.heuristics.regret.fixed_log import percent
from normtune.heuristics.showing.config_map import NONE, has_gaps, plane_lines
from normtune.heuristics.showing.flips import LEVEL, Direction
from normtune.kernels.problem import Shape

if TYPE_CHECKING:
    from rich.text import Text

WORST = 5
BOTH, NEITHER, UNKNOWN = "B", "=", "?"


def flip_lines(name: str, directions: Sequence[Direction], columns: int) -> "list[Text | str]":
    """The lines of one operator and dtype, for both directions, with a map of at most `columns`."""
    first, second = directions[0].one, directions[0].other
    shapes = {*directions[0].flips.compared, *directions[0].flips.unknown}
    lines: list[Text | str] = [f"{name}: {len(shapes)} shapes measured {first} and {second}"]
    for direction in directions:
        lines += _direction_lines(direction)
    losing = {direction.one: {flip.shape for flip in direction.flips.losing} for direction in directions}
    unknown = set.intersection(*(set(direction.flips.unknown) for direction in directions))
    if any(losing.values()):
        lines += plane_lines(shapes, columns, lambda shape: _cell(shape, losing, unknown))
        lines += _legend(first, second, shapes, losing, unknown)
    for direction in directions:
        for flip in direction.flips.losing[:WORST]:
            rows, hidden = flip.shape
            kept = "" if flip.reconcilable else "; no config is within 1 % of the best of both"
            lines.append(
                f"  {percent(flip.loss, 1):>7} {direction.other} at {rows} rows of {hidden}: best {direction.one} is "
                f"{flip.config}, best {direction.other} {flip.best}{kept}"
            )
    return lines


def _direction_lines(direction: Direction) -> list[str]:
    one, other, flips = direction.one, direction.other, direction.flips
    if not flips.compared:
        return [f"  the best configs of {one} have no times {other}"]
    count, losing = len(flips.compared), len(flips.losing)
    line = (
        f"  the best config {one} loses over 1 % {other} at {losing} of {count} shapes ({100 * losing / count:.0f} %), "
        f"at most {100 * LEVEL:.0f} % of them by chance"
    )
    lines = [line]
    if flips.losing:
        apart = sum(not flip.reconcilable for flip in flips.losing)
        lines.append(f"    at {apart} of these no config is within 1 % of the best of both")
    if direction.table and direction.own:
        lines.append(
            f"    the table fitted {one} loses {percent(direction.table.mean)} {other}, "
            f"{percent(direction.table.worst, 1)} at worst; the one fitted {other} "
            f"{percent(direction.own.mean)}, {percent(direction.own.worst, 1)}"
        )
    if flips.unknown:
        lines.append(f"    at {len(flips.unknown)} more shapes the best config of {one} has too few times {other}")
    return lines


def _letters(first: str, second: str) -> tuple[str, str]:
    """The letters of shapes at which the best config of one cache mode loses in the other."""
    return first[0].upper(), second[0].upper()


def _cell(shape: Shape, losing: Mapping[str, set[Shape]], unknown: set[Shape]) -> tuple[str, str]:
    """Two characters and their style."""
    first, second = losing
    lost = shape in losing[first], shape in losing[second]
    if not any(lost):
        return (f" {UNKNOWN}", "not bold") if shape in unknown else (f" {NEITHER}", "not bold dim")
    return f" {BOTH if all(lost) else _letters(first, second)[lost.index(True)]}", "bold reverse"


def _legend(
    first: str, second: str, shapes: set[Shape], losing: Mapping[str, set[Shape]], unknown: set[Shape]
) -> list[str]:
    letters = _letters(first, second)
    both = losing[first] & losing[second]
    marks = (
        (letters[0], f"the best config {first} loses over 1 % {second}", losing[first] - both),
        (letters[1], f"the best config {second} loses over 1 % {first}", losing[second] - both),
        (BOTH, "both", both),
        (NEITHER, "neither", shapes - losing[first] - losing[second] - unknown),
        (UNKNOWN, "not known", unknown - losing[first] - losing[second]),
        (NONE, "not measured in both", has_gaps(shapes)),
    )
    return [f" {mark} {meaning}" for mark, meaning, shown in marks if shown]
