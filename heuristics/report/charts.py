"""Charts of the page and of pictures, as Vega-Lite specifications made by Altair.

In: the plane of sizes. Out: a specification as JSON values, without data: it names its data frames. `theme.with_data`
adds them for a picture; on the page several charts share a frame. Derived columns, such as the speed-up, are computed
by expressions in the specification.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import altair as alt
import pandas as pd

from normtune.heuristics.regret.fixed_log import MILLION
from normtune.heuristics.report.palette import SHADES
from normtune.heuristics.report.plane import CHARACTER, LINE, SizePlane
from normtune.heuristics.report.theme import Spec
from normtune.heuristics.showing.config_map import NEAR

SHAPES, REGIONS, GAPS, GROUPS, KEY, FASTEST = "shapes", "regions", "gaps", "groups", "key", "fastest"
# A smaller loss than 1 % has no dot: the order of configs so close changes from sweep to sweep.
_LEAST_LOSS = round(math.expm1(NEAR / MILLION), 4)
_GREY = "#9aa1ab"
# The median of the config that the table launches, among the samples of a shape.
_LAUNCHED = "#e66101"
# Colours of the theme.
_INK, _PAPER, _EVEN = map(alt.ExprRef, ("ink", "paper", "even"))
_TICK = (
    "datum.value >= 1048576 ? datum.value / 1048576 + 'M' : datum.value >= 1024 && datum.value % 128 == 0 ? "
    "datum.value / 1024 + 'k' : '' + datum.value"
)
# Vega expressions: whether a region has room for the name of its config, and if not, whether it has for its letter.
ROOM = f"datum.chars * {CHARACTER} + 6 < datum.wide * {{width}} && datum.lines * {LINE} + 6 < datum.high * {{height}}"
LETTERED = f"!({ROOM}) && 13 < datum.wide * {{width}} && {LINE} < datum.high * {{height}}"
HEIGHT = 400


def config_map(plane: SizePlane, groups: pd.DataFrame) -> Spec:
    """The regions of a tree in the colours of their configs; a dot at a shape where another config is faster.

    The area of a dot grows with the loss. `groups` is from `FunctionData.groups`.
    """
    x, y, at, edges = _axes(plane)
    regions, shapes = alt.Chart(alt.NamedData(REGIONS)), alt.Chart(alt.NamedData(SHAPES))
    # Vega places a text by its first line, so it is moved up by half the height of the other lines.
    top = f"datum.cy * pow(datum.ratio, -(datum.lines - 1) * {LINE / 2} / height)"
    centre = regions.transform_calculate(top=top).encode(x=x("cx"), text="text:N")
    room, lettered = (text.format(width="width", height="height") for text in (ROOM, LETTERED))
    names = centre.transform_filter(room).transform_calculate(text="datum.label").encode(y=y("top"))
    letters = centre.transform_filter(lettered).transform_calculate(text="datum.letter").encode(y=y("cy"))
    unknown, losing = "!isValid(datum.loss)", f"datum.differs && datum.loss > {_LEAST_LOSS}"
    return _spec(
        regions.mark_rect().encode(
            **edges, fill=alt.Fill("colour:N", scale=None), stroke=alt.Stroke("colour:N", scale=None)
        ),
        regions.transform_filter("datum.border").mark_rect(fill=None, strokeWidth=1, stroke=_INK).encode(**edges),
        _gaps(edges),
        shapes.mark_square(size=4, opacity=0.35, color="#000").encode(**at),
        shapes.transform_filter(losing)
        .mark_circle(opacity=1, stroke=_INK, strokeWidth=1.2)
        .encode(
            **at,
            fill=alt.Fill("best_colour:N", scale=None),
            size=alt.Size(
                "loss:Q",
                scale=alt.Scale(type="sqrt", domain=[0, 0.2], range=[0, 200], clamp=True),
                legend=alt.Legend(
                    title="slower than the fastest",
                    titleOrient="left",
                    format="%",
                    values=[0.01, 0.05, 0.2],
                    symbolFillColor="#fff",
                ),
            ),
        ),
        shapes.transform_filter(unknown)
        .mark_point(angle=45, filled=True, size=60, color=_GREY, stroke=_INK, strokeWidth=0.5)
        .encode(**at, shape=_legend_of("config not measured", "cross"))
        .transform_calculate(of="'config not measured'")
        .properties(name="missing"),
        *_texts(names, lineBreak="\n", lineHeight=LINE),
        *_texts(letters, fontWeight="bold"),
        *_keys(groups),
        shapes.transform_calculate(**_DERIVED)
        .mark_circle(size=140, opacity=0.001)
        .encode(**at, tooltip=_tooltips(plane)),
    )


def _texts(chart: alt.Chart, **options: Any) -> tuple[alt.Chart, alt.Chart]:
    """Texts on regions, outlined in the colour of the region so that they are legible on dots and gaps."""
    common: dict[str, Any] = {"fontSize": 11, "baseline": "middle", **options}
    return (
        chart.mark_text(strokeWidth=3, strokeJoin="round", **common).encode(
            stroke=alt.Stroke("colour:N", scale=None), color=alt.Color("colour:N", scale=None)
        ),
        chart.mark_text(**common).encode(color=alt.Color("ink:N", scale=None)),
    )


def _keys(groups: pd.DataFrame) -> list[alt.Chart]:
    """The legend of the groups of configs, and below a picture a list of the letters with their configs."""
    key = alt.Chart(alt.NamedData(KEY))
    legend = alt.Legend(
        title=None,
        orient="bottom",
        direction="horizontal",
        columns=6,
        symbolType="square",
        symbolSize=130,
        symbolOpacity=1,
        symbolStrokeWidth=0,
    )
    scale = alt.Scale(domain=groups["group"].tolist(), range=groups["colour"].tolist())
    at = {"x": alt.X("left:Q", scale=None), "y": alt.Y("under:Q", scale=None)}
    return [
        alt.Chart(alt.NamedData(GROUPS))
        .mark_point(size=0, filled=True)
        .encode(fill=alt.Fill("group:N", scale=scale, legend=legend)),
        key.mark_square(size=220, opacity=1).encode(**at, color=alt.Color("colour:N", scale=None)),
        key.mark_text(fontSize=11, fontWeight="bold").encode(
            **at, text="letter:N", color=alt.Color("ink:N", scale=None)
        ),
        key.mark_text(fontSize=11, align="left", dx=13, color=_INK).encode(**at, text="name:N"),
    ]


def samples() -> Spec:
    """Samples, medians and confidence intervals of the fastest configs of a shape."""
    data = alt.Chart(alt.NamedData(FASTEST))
    y = alt.Y(
        "config:N",
        sort=None,
        title=None,
        scale=alt.Scale(paddingOuter=0.45),
        axis=alt.Axis(labels=False, domain=False, ticks=False, grid=True),
    )
    time: dict[str, Any] = {
        "scale": alt.Scale(zero=False, nice=True),
        "title": "microseconds",
        "axis": alt.Axis(tickCount=6),
    }
    tooltip = [
        alt.Tooltip("config:N", title="config"),
        *(
            alt.Tooltip(f"{name}:Q", title=title, format=".2f")
            for name, title in (("us", "median, us"), ("low", "from"), ("high", "to"))
        ),
    ]
    return _spec(
        data.transform_flatten(["samples"])
        .mark_tick(opacity=0.45, thickness=1.5, size=14, color=_INK)
        .encode(x=alt.X("samples:Q", **time), y=y),
        data.mark_rule(strokeWidth=5, color=SHADES[2]).encode(
            x=alt.X("low:Q", **time), x2="high", y=y, tooltip=tooltip
        ),
        data.mark_point(filled=True, size=90, stroke=_INK, strokeWidth=1, opacity=1).encode(
            x=alt.X("us:Q", **time),
            y=y,
            tooltip=tooltip,
            color=alt.condition("datum.by", alt.value(_LAUNCHED), alt.value(SHADES[0])),
        ),
        # The names are above the times: beside them they would take most of the width of a narrow page.
        data.mark_text(align="left", dy=-15, fontSize=11, color=_INK).encode(x=alt.value(4), y=y, text="label:N"),
        height={"step": 42},
    )


def _tiles(plane: SizePlane, value: str, colour: alt.Color) -> Spec:
    """Shapes as coloured tiles, below the thresholds of the table; those without a value are grey and crossed."""
    _, _, at, edges = _axes(plane)
    regions = alt.Chart(alt.NamedData(REGIONS))
    shapes = alt.Chart(alt.NamedData(SHAPES)).transform_calculate(**_DERIVED)
    field, has_value = f"datum.{value}", f"isValid(datum.{value}) && isFinite(datum.{value})"
    layers = [
        shapes.transform_filter(has_value).mark_rect(stroke=None, clip=True).encode(**edges, color=colour),
        shapes.transform_filter(f"!({has_value})").mark_rect(color=_GREY, opacity=0.35, clip=True).encode(**edges),
        shapes.transform_filter(f"!({has_value})")
        .mark_point(angle=45, filled=True, size=30, color=_GREY)
        .encode(**at, shape=_legend_of("not known", "cross"))
        .transform_calculate(of="'not known'")
        .properties(name="missing"),
        *(
            [
                shapes.transform_filter(f"{has_value} && datum.faster < 0.99")
                .mark_point(filled=True, size=22, color=_INK, stroke=_PAPER, strokeWidth=0.4)
                .encode(**at, shape=_legend_of("slower", "triangle-down"))
                .transform_calculate(of="'slower'")
                .properties(name="slower")
            ]
            if value == "faster"
            else []
        ),
        _gaps(edges),
        regions.transform_filter("datum.border")
        .mark_rect(fill=None, strokeWidth=0.7, stroke=_INK, strokeOpacity=0.55)
        .encode(**edges),
        shapes.mark_rect(opacity=0.001).encode(**edges, tooltip=_tooltips(plane)),
    ]
    return _spec(*layers) | {"description": f"{field} over {' and '.join(plane.axes[:2])}"}


_DERIVED = {
    "us": "datum.best_us * (1 + datum.loss)",
    "faster": "isValid(datum.rival_loss) && isValid(datum.loss) ? (1 + datum.rival_loss) / (1 + datum.loss) : null",
    "of_copy": "isValid(datum.copy_us) && isValid(datum.loss) ? datum.us / datum.copy_us : null",
    "alike": "datum.ties > 8 ? 'more' : datum.ties > 4 ? '5 to 8' : datum.ties > 2 ? '3, 4' : '' + datum.ties",
    "share": "datum.timed / datum.legal",
}


def _tooltips(plane: SizePlane) -> list[alt.Tooltip]:
    return [
        *(alt.Tooltip(f"{of}:Q", title=axis, format="d") for of, axis in zip("xyz", plane.axes, strict=False)),
        alt.Tooltip("config:N", title="config"),
        alt.Tooltip("us:Q", title="us", format=".2f"),
        alt.Tooltip("loss:Q", title="slower by", format=".1%"),
        alt.Tooltip("best:N", title="fastest"),
        alt.Tooltip("best_us:Q", title="fastest, us", format=".2f"),
        alt.Tooltip("ties:Q", title="may be the fastest", format="d"),
        alt.Tooltip("of_copy:Q", title="times a copy", format=".2f"),
        alt.Tooltip("rival:N", title="against"),
        alt.Tooltip("rival_config:N", title="its config"),
        alt.Tooltip("faster:Q", title="times as fast", format=".2f"),
    ]


def _axes(
    plane: SizePlane,
) -> tuple[Callable[[str], alt.X], Callable[[str], alt.Y], dict[str, Any], dict[str, Any]]:
    """A column as a position along each axis; the encodings of a shape's point and of a tile."""

    def options(axis: int) -> dict[str, Any]:
        ends = plane.domain(axis)
        return {
            "scale": alt.Scale(type="log", domain=ends, nice=False, reverse=bool(axis)),
            "title": plane.axes[axis],
            "axis": alt.Axis(values=plane.ticks(axis), labelExpr=_TICK, grid=False),
        }

    def x(name: str) -> alt.X:
        return alt.X(f"{name}:Q", **options(0))

    def y(name: str) -> alt.Y:
        return alt.Y(f"{name}:Q", **options(1))

    return x, y, {"x": x("x"), "y": y("y")}, {"x": x("x0"), "x2": "x1", "y": y("y0"), "y2": "y1"}


def _legend_of(text: str, symbol: str) -> alt.Shape:
    """The symbol of all marks of a layer, with an entry in the legend."""
    legend = alt.Legend(title=None, orient="top", symbolFillColor=_GREY, symbolStrokeColor=_GREY)
    return alt.Shape("of:N", scale=alt.Scale(domain=[text], range=[symbol]), legend=legend)


def _gaps(edges: Mapping[str, Any]) -> alt.Chart:
    """A translucent cover over combinations of sizes that were not measured."""
    text = "shapes not measured"
    legend = alt.Legend(title=None, orient="top", symbolType="square", symbolStrokeColor=_GREY, symbolStrokeWidth=1)
    fill = alt.Fill("of:N", scale=alt.Scale(domain=[text], range=[_PAPER]), legend=legend)
    return (
        alt.Chart(alt.NamedData(GAPS))
        .transform_calculate(of=f"'{text}'")
        .mark_rect(opacity=0.6)
        .encode(**edges, fill=fill)
        .properties(name="gaps")
    )


def _spec(*layers: alt.Chart, height: Any = HEIGHT) -> Spec:
    chart = (
        alt.layer(*layers).resolve_scale(color="independent", fill="independent", shape="independent")
        if len(layers) > 1
        else layers[0]
    )
    spec: Spec = chart.properties(width="container", height=height).to_dict(validate=False)
    return spec


def _graded(value: str, title: str, form: str, values: list[float], **scale: Any) -> Callable[[SizePlane], Spec]:
    """Tiles coloured by a value on a continuous scale."""
    legend = alt.Legend(title=title, orient="top", format=form, values=values, gradientLength=220, gradientThickness=10)
    return partial(_tiles, value=value, colour=alt.Color(f"{value}:Q", scale=alt.Scale(**scale), legend=legend))


_FASTER = _graded(
    *("faster", "times as fast", "~r", [0.5, 0.7, 0.9, 1, 1.1, 1.4, 2]),
    type="log",
    domain=[0.5, 1, 2],
    interpolate="rgb",
    clamp=True,
    range=[alt.ExprRef("slower"), _EVEN, alt.ExprRef("faster")],
)
_OF_COPY = _graded(
    *("of_copy", "time over a copy's", ".1f", [1, 1.5, 2, 3, 4]),
    type="log",
    domain=[1, 4],
    scheme="viridis",
    reverse=True,
    clamp=True,
)
_LOSS = _graded(
    *("loss", "slower than the fastest", "%", [0, 0.01, 0.05, 0.1, 0.2]),
    type="sqrt",
    domain=[0, 0.2],
    scheme="magma",
    reverse=alt.ExprRef("!dark"),
    clamp=True,
)
_SHARE = _graded(
    *("share", "of the legal configs measured", "%", [0, 0.25, 0.5, 0.75, 1]), domain=[0, 1], scheme="viridis"
)
# Configs that are as fast as the fastest, as far as a test can tell.
_TIES = alt.Color(
    "alike:N",
    scale=alt.Scale(domain=["1", "2", "3, 4", "5 to 8", "more"], range=[_EVEN, *SHADES]),
    legend=alt.Legend(title="configs that may be the fastest", orient="top", symbolType="square"),
)
# A title and a chart each. The speed-up is over a rival: another table, or a rule.
MEASURES: Mapping[str, tuple[str, Callable[[SizePlane], Spec]]] = {
    "faster": ("Speed-up", _FASTER),
    "copy": ("Time over a copy", _OF_COPY),
    "loss": ("Loss", _LOSS),
    "fastest": ("Fastest config", partial(_tiles, value="best_us", colour=alt.Color("best_colour:N", scale=None))),
    "ties": ("Uncertainty", partial(_tiles, value="ties", colour=_TIES)),
    "measured": ("Measured", _SHARE),
}
