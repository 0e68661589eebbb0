"""Looks of charts, light and dark, and what makes a specification whole: its theme and its data."""

import json
from typing import Any, NamedTuple

import pandas as pd

Spec = dict[str, Any]
# Of the same widths wherever a picture is drawn and shown.
_FONT = "Arial, Liberation Sans, Helvetica, sans-serif"


class Theme(NamedTuple):
    """Colours of a light or a dark chart: text and lines, axes, ground, and slower, as fast and faster."""

    ink: str
    faint: str
    paper: str
    slower: str
    even: str
    faster: str


LIGHT = Theme("#1b1f24", "#8b929c", "#ffffff", "#b35806", "#f3f1ec", "#134f96")
DARK = Theme("#e8eaed", "#7d858f", "#14171b", "#f0a35e", "#33373d", "#73b8ff")


def styled(spec: Spec, theme: Theme, background: str | None = None) -> Spec:
    """A specification in the colours of a theme."""
    text = {
        "labelColor": theme.ink,
        "titleColor": theme.ink,
        "labelFont": _FONT,
        "titleFont": _FONT,
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "titleFontSize": 12,
    }
    config = {
        "background": background or "transparent",
        "view": {"stroke": theme.faint},
        "axis": text
        | {"domainColor": theme.faint, "tickColor": theme.faint, "gridColor": theme.faint, "gridOpacity": 0.2},
        "legend": text | {"orient": "top", "layout": {"top": {"anchor": "start", "direction": "horizontal"}}},
        "title": {"color": theme.ink, "font": _FONT, "anchor": "start", "subtitleColor": theme.ink},
        "text": {"font": _FONT},
    }
    values = theme._asdict() | {"dark": theme is DARK}
    return spec | {"config": config, "params": [{"name": name, "value": value} for name, value in values.items()]}


def with_data(spec: Spec, **frames: pd.DataFrame) -> Spec:
    """A specification with its frames, by their names."""
    return spec | {"datasets": {name: json.loads(frame.to_json(orient="records")) for name, frame in frames.items()}}
