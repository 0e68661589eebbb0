"""The light and the dark theme of charts; adds a theme and data to a specification."""

import json
from typing import Any, NamedTuple

import pandas as pd

Spec = dict[str, Any]
# Fonts with equal character widths, so that texts fit on any system.
_FONT = "Arial, Liberation Sans, Helvetica, sans-serif"


class Theme(NamedTuple):
    """Colours of a theme: text and lines, axes, background, and the scale of speed-ups from slower to faster."""

    ink: str
    faint: str
    paper: str
    slower: str
    even: str
    faster: str


LIGHT = Theme("#1b1f24", "#8b929c", "#ffffff", "#b35806", "#f3f1ec", "#134f96")
DARK = Theme("#e8eaed", "#7d858f", "#14171b", "#f0a35e", "#33373d", "#73b8ff")


def styled(spec: Spec, theme: Theme, background: str | None = None) -> Spec:
    """The specification with the colours and fonts of a theme."""
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
    """The specification with its data frames, by name."""
    return spec | {"datasets": {name: json.loads(frame.to_json(orient="records")) for name, frame in frames.items()}}
