"""Pictures of a function: specifications with their data, which `images` renders."""

from pathlib import Path

import pandas as pd

from normtune.errors import UsageError
from normtune.heuristics.report import charts, theme
from normtune.heuristics.report.function_data import FunctionData
from normtune.heuristics.report.theme import Spec

_WIDTH = 760
# Average width of a character in the list of letters, pixels.
_NARROW = 5.6
KINDS = ("map", *charts.MEASURES)


def check_kind(what: str) -> None:
    """Raise `UsageError` unless there is such a chart."""
    if what not in KINDS:
        raise UsageError(f"the chart is {what!r}: expected one of {', '.join(KINDS)}")


def of_function(function: FunctionData, what: str, against: str | None, at: int | None, device: str) -> Spec:
    """A chart of a function in light colours; arguments as in `Report.plot`.

    Raises:
        UsageError: a value is unknown.
    """
    check_kind(what)
    rivals = {side.name: number for number, side in enumerate(function.sides) if number}
    if against is not None and against not in rivals:
        against = Path(against).name
    if against is not None and against not in rivals:
        raise UsageError(
            f"nothing is known of {against!r} at {function.title}: expected one of {', '.join(rivals) or 'none'}"
        )
    rival = rivals[against] if against is not None else next(iter(rivals.values()), None)
    if what == "faster" and rival is None:
        raise UsageError(f"{function.title} has no table or rule to be compared with: name one behind the table")
    plane, title = function.plane, f"{function.title}, {device}".removesuffix(", ")
    if len(plane.axes) > 2:
        at = plane.sizes[2][len(plane.sizes[2]) // 2] if at is None else at
        if at not in plane.sizes[2]:
            raise UsageError(
                f"at is {at}: expected one of the measured {plane.axes[2]}, {', '.join(map(str, plane.sizes[2]))}"
            )
        title += f", {plane.axes[2]} {at}"
    elif at is not None:
        raise UsageError(f"at is {at}, but {function.title} has no third size: leave it out")
    subject, regions = function.sides[0].name, _at(function.regions(), at, "z0", "z1")
    frames = {
        "shapes": _at(function.rows(rival=rival), at, "z"),
        "regions": regions,
        "gaps": _at(function.gaps, at, "z"),
    }
    if what == "map":
        groups = function.groups()
        subtitle = ["What is launched", subject]
        spec, frames = charts.config_map(plane, groups), frames | {"groups": groups, "key": _key(regions)}
    else:
        name, make = charts.MEASURES[what]
        others = {
            "faster": [f"{subject} against {function.sides[rival].name}"] if rival is not None else [],
            "fastest": [],
        }
        subtitle, spec = [name, *others.get(what, [subject])], make(plane)
    return _picture(spec, [title, ": ".join(subtitle)], **frames)


def _key(regions: pd.DataFrame) -> pd.DataFrame:
    """The configs of regions that have a letter in place of a name, placed in columns below the axis."""
    if regions.empty:
        return regions
    lettered = charts.LETTERED.format(width=_WIDTH, height=charts.HEIGHT)
    key = regions.query(lettered.replace("datum.", "").replace("!", "not ").replace("&&", "and"))
    key = key[["letter", "name", "colour", "ink"]].drop_duplicates("letter").sort_values("letter")
    key = key[key["letter"] != ""].reset_index(drop=True)
    across = max(1, _WIDTH // int(key["name"].str.len().max() * _NARROW + 36)) if len(key) else 1
    down = -(-len(key) // across)
    return key.assign(
        left=[10 + number // down * (_WIDTH // across) for number in key.index],
        under=[charts.HEIGHT + 76 + number % down * 19 for number in key.index],
    )


def _at(frame: pd.DataFrame, size: int | None, least: str, most: str = "") -> pd.DataFrame:
    """The rows of a frame that are valid at a third size."""
    if size is None or frame.empty:
        return frame
    return frame[(frame[least] <= size) & (size <= frame[most or least])]


def _picture(spec: Spec, title: list[str], **frames: pd.DataFrame) -> Spec:
    # A picture has no tooltips, and their layers would make an SVG large.
    if "layer" in spec:
        spec |= {"layer": [layer for layer in spec["layer"] if "tooltip" not in layer["encoding"]]}
    styled = theme.styled(spec, theme.LIGHT, "white") | {"width": _WIDTH, "padding": 12}
    styled["config"] |= {"aria": False}
    return theme.with_data(styled | {"title": {"text": title[0], "subtitle": title[1:]}}, **frames)
