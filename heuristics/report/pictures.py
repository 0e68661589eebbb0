"""One chart of a function, or of a comparison, as a specification with its data, which `images` draws."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from normtune.errors import UsageError
from normtune.heuristics.comparing.difference import Difference
from normtune.heuristics.regret.fixed_log import MILLION
from normtune.heuristics.report import charts
from normtune.heuristics.report.charts import Spec
from normtune.heuristics.report.function_data import FunctionData
from normtune.heuristics.report.plane import Plane, short_name

_WIDTH = 760
KINDS = ("map", *charts.MEASURES)


def of_function(function: FunctionData, what: str, against: str | None, at: int | None, device: str) -> Spec:
    """A chart of a function in light colours; arguments as of `Report.plot`.

    Raises:
        UsageError: a value is unknown.
    """
    if what not in KINDS:
        raise UsageError(f"the chart is {what!r}: expected one of {', '.join(KINDS)}")
    rivals = {function.sides[number].name: number for number in function.rivals}
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
                f"--at is {at}: expected one of the measured {plane.axes[2]}, {', '.join(map(str, plane.sizes[2]))}"
            )
        title += f", {plane.axes[2]} {at}"
    elif at is not None:
        raise UsageError(f"--at is {at}, but {function.title} has no third size: leave it out")
    name = {"map": "What is launched"}.get(what) or charts.MEASURES[what][0]
    subject = function.sides[0].name
    told = {"faster": f"{subject} against {function.sides[rival].name}" if rival is not None else "", "fastest": ""}
    return _drawn(
        (charts.config_map if what == "map" else charts.MEASURES[what][1])(plane),
        [title, f"{name}: {told.get(what, subject)}".removesuffix(": ")],
        shapes=_at(function.rows(0, rival), at, "z"),
        regions=_at(function.regions(), at, "z0", "z1"),
        gaps=_at(function.gaps, at, "z"),
    )


def _at(frame: pd.DataFrame, size: int | None, least: str, most: str = "") -> pd.DataFrame:
    """The rows that hold at a third size."""
    if size is None or frame.empty:
        return frame
    return frame[(frame[least] <= size) & (size <= frame[most or least])]


def _drawn(spec: Spec, title: list[str], **frames: pd.DataFrame) -> Spec:
    styled = charts.styled(spec, charts.LIGHT, "white") | {"width": _WIDTH, "padding": 12}
    return charts.with_data(styled | {"title": {"text": title[0], "subtitle": title[1:]}}, **frames)


def of_difference(difference: Difference) -> Spec:
    """How much faster the first of two sides is than the second."""
    matrix, (first, second) = difference.matrix, difference.choices
    plane = Plane.of(matrix.axes, matrix.problems)
    third = plane.sizes[2][len(plane.sizes[2]) // 2] if len(plane.axes) > 2 else None
    losses = [
        [np.nan if answer.loss is None else np.expm1(answer.loss / MILLION) for answer in side]
        for side in (first, second)
    ]
    names = [
        pd.Series([short_name(answer.config) if answer.config else None for answer in side], dtype=object)
        for side in (first, second)
    ]
    shapes = plane.tiles(matrix.problems).assign(
        config=names[0],
        loss=losses[0],
        best_us=difference.best / 1000,
        rival=difference.names[1],
        rival_config=names[1],
        rival_loss=losses[1],
    )
    told = f"{difference.names[0]} against {difference.names[1]}"
    frames = {"shapes": _at(shapes, third, "z"), "gaps": _at(plane.gaps(matrix.problems), third, "z")}
    at = "" if third is None else f", {plane.axes[2]} {third}"
    return _drawn(charts.faster(plane), [f"{matrix.key}{at}", f"Speed-up: {told}"], **frames, regions=pd.DataFrame())


def of_phases(seconds: Mapping[str, float]) -> Spec:
    """What one run did with its time."""
    rows = [("", phase, order, spent, "") for order, (phase, spent) in enumerate(seconds.items())]
    runs = pd.DataFrame(rows, columns=["run", "phase", "order", "seconds", "about"])
    return _drawn(charts.seconds(), ["What the sweep did with its time"], runs=runs)
