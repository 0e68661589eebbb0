"""The page of a report: one HTML file with its data, charts and scripts, which needs no network.

In: the parts of a report. Out: HTML, from the template page.html with page.css and page.js, which draws a chart when it
becomes visible. Texts from tables and measurements are escaped here; page.js inserts them as text, never as HTML.
"""

import html
import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pandas as pd

from normtune import __version__
from normtune.heuristics.report import charts, theme
from normtune.heuristics.report.function_data import DeviceReport, FunctionData
from normtune.heuristics.report.images import library
from normtune.heuristics.writing.write import WRITTEN

# Characters for all samples of a page, and the most samples shown of a config.
_SAMPLE_BUDGET, _MOST_SAMPLES = 140_000, 32


def page(title: str, parts: Sequence[DeviceReport]) -> str:
    """The page of these devices, which have at least one function."""
    functions = [function for part in parts for function in part.functions]
    rows = sum(len(function.fastest) for function in functions)
    samples = max(2, min(_MOST_SAMPLES, _SAMPLE_BUDGET // max(rows, 1)))
    plane = functions[0].plane
    specs = {
        "map": charts.config_map(plane, functions[0].groups()),
        "samples": charts.samples(),
    }
    specs |= {name: make(plane) for name, (_, make) in charts.MEASURES.items()}
    data = {
        "functions": [_values(function, samples) for function in functions],
        "specs": specs,
        "themes": {name: theme.styled({}, looks) for name, looks in (("light", theme.LIGHT), ("dark", theme.DARK))},
    }
    here = Path(__file__).parent
    return Template((here / "page.html").read_text()).substitute(
        title=html.escape(title),
        style=(here / "page.css").read_text(),
        verdict="".join(map(_verdict, parts, accumulate((len(part.functions) for part in parts), initial=0))),
        functions=_choices("function", _grouped(functions), 0),
        measures=_choices("measure", [("", [(name, text) for name, (text, _) in charts.MEASURES.items()])], 0),
        timed="".join(map(_timed, parts)),
        notes="".join(f"<li>{html.escape(note)}</li>" for part in parts for note in part.notes),
        written=f"<!-- {WRITTEN}. -->",
        version=html.escape(__version__),
        data=_in_script(data),
        library=library(),
        script=(here / "page.js").read_text(),
    )


def _in_script(data: Any) -> str:
    """JSON for an element `script`: no text in it can end the element or begin an HTML comment."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _verdict(part: DeviceReport, first: int) -> str:
    cards = []
    for number, function in enumerate(part.functions, first):
        rows = "".join(
            f"<div><dt>{html.escape(label)}</dt><dd>{html.escape(text)}</dd></div>"
            for label, text in function.verdict[1:]
        )
        name, about = html.escape(function.title), html.escape(function.verdict[0][1])
        cards.append(
            f'<li><a href="#map" data-function="{number}"><h3>{name}</h3></a><p>{about}</p><dl>{rows}</dl></li>'
        )
    return f'<p class="device">{html.escape(part.label)}</p><ul class="cards">{"".join(cards)}</ul>'


def _grouped(functions: Sequence[FunctionData]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The functions as choices (index, dtype), grouped by operator; a title is an operator and a dtype."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for number, function in enumerate(functions):
        operator, _, dtype = function.title.rpartition(" ")
        groups.setdefault(operator, []).append((str(number), dtype))
    return list(groups.items())


def _choices(name: str, groups: Sequence[tuple[str, Sequence[tuple[str, str]]]], chosen: int) -> str:
    """Radio buttons in groups with a title; one name, so that the arrow keys move through all groups."""
    parts, number = [], 0
    for title, entries in groups:
        buttons = []
        for value, text in entries:
            checked = " checked" * (number == chosen)
            number += 1
            buttons.append(
                f'<label><input type="radio" name="{name}" value="{html.escape(value)}"{checked}>'
                f"<span>{html.escape(text)}</span></label>"
            )
        heading = f'<span class="of">{html.escape(title)}</span>' if title else ""
        parts.append(f'<div class="choices">{heading}{"".join(buttons)}</div>')
    return "".join(parts)


def _timed(part: DeviceReport) -> str:
    rows = "".join(
        f"<tr><th scope=row>{html.escape(function.title)}</th><td>{len(function.shapes)}</td>"
        f"<td>{int(function.shapes['timed'].sum())}</td><td>{_share(function)}</td></tr>"
        for function in part.functions
    )
    return (
        f"<h3>{html.escape(part.label)}</h3>"
        '<div class="wide"><table><thead><tr><th scope=col>function<th scope=col>shapes'
        "<th scope=col>configs with a time<th scope=col>of the legal ones</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _share(function: FunctionData) -> str:
    return f"{100 * function.shapes['timed'].sum() / function.shapes['legal'].sum():.0f} %"


def _values(function: FunctionData, samples: int) -> dict[str, Any]:
    """The data of a function as JSON values. Of configs that nothing names there is null."""
    plane = function.plane
    named = {*function.shapes["best"], *function.fastest["config"]}
    for side in function.sides:
        named |= {*side.config, *(() if side.regions is None else side.regions["config"])}
    return {
        "title": function.title,
        "axes": plane.axes,
        "sizes": plane.sizes,
        "domains": [plane.domain(axis) for axis in (0, 1)],
        "ticks": [plane.ticks(axis) for axis in (0, 1)],
        "configs": [config if index in named else None for index, config in enumerate(function.configs)],
        "shapes": _columns(function.shapes),
        "gaps": _columns(function.gaps),
        "sides": [_side_values(function, number) for number in range(len(function.sides))],
        "fastest": _columns(_fewer_samples(function.fastest, samples)),
    }


def _side_values(function: FunctionData, number: int) -> Mapping[str, Any]:
    side = function.sides[number]
    return {
        "name": side.name,
        **_columns(pd.DataFrame({"config": side.config, "loss": side.loss})),
        "regions": None if side.regions is None else _columns(side.regions),
        "groups": function.groups(number).to_dict("records"),
    }


def _columns(frame: pd.DataFrame) -> dict[str, Any]:
    """A frame as a list for each column, rounded; nan is null."""
    columns = json.loads(frame.reset_index(drop=True).to_json(double_precision=4))
    return {name: [*values.values()] for name, values in columns.items()}


def _fewer_samples(fastest: pd.DataFrame, most: int) -> pd.DataFrame:
    """At most `most` of the samples of each config, evenly spaced in their order; count: the number of all.

    Interval and samples are relative to the median, in units of 0.01 %, as the page has hundreds of thousands.
    """
    around = []
    for us, low, high, samples in fastest[["us", "low", "high", "samples"]].itertuples(index=False):
        indices = np.unique(np.linspace(0, len(samples) - 1, most).round().astype(int))
        around.append(np.rint(1e4 * (np.array([low, high, *samples[indices]]) / us - 1)).astype(int).tolist())
    return fastest[["shape", "config", "us"]].assign(around=around, count=fastest["samples"].map(len))
