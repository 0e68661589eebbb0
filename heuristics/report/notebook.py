"""HTML representations of results in a notebook: lines of text and, if the extra is installed, pictures of charts.

In: lines, and data of charts. Out: HTML without scripts. Texts are escaped.
"""

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from normtune.heuristics.comparing.difference import Difference
from normtune.heuristics.report import images

if TYPE_CHECKING:
    from normtune.heuristics.report.function_data import DeviceReport
    from normtune.heuristics.report.theme import Spec


def plain(lines: Iterable[str]) -> str:
    """The lines, and how to install the extra that draws pictures."""
    return f"<pre>{_text(lines)}</pre><p>For pictures: <code>{html.escape(images.INSTALL)}</code></p>"


def shown(lines: Iterable[str], devices: Iterable["DeviceReport"]) -> str:
    """The lines, and the map of each function; all but the first are folded."""
    from normtune.heuristics.report.pictures import of_function

    functions = [function for part in devices for function in part.functions]
    drawn = [(function.title, of_function(function, "map", None, None, "")) for function in functions]
    return f"<pre>{_text(lines)}</pre>{_folded(drawn)}"


def of_differences(lines: Iterable[str], differences: Sequence[Difference]) -> str:
    """The lines, and the speed-up of each comparison; all but the first are folded."""
    if not images.is_installed():
        return plain(lines)
    from normtune.heuristics.report.pictures import of_difference

    drawn = [(str(one.matrix.key), of_difference(one)) for one in differences if one.timed]
    return f"<pre>{_text(lines)}</pre>{_folded(drawn)}"


def of_seconds(lines: Iterable[str], seconds: Mapping[str, float]) -> str:
    """The lines, and the seconds of a run by phase."""
    if not images.is_installed():
        return plain(lines)
    from normtune.heuristics.report.pictures import of_phases

    return f"<pre>{_text(lines)}</pre>{_image(of_phases(seconds), 'seconds by phase')}"


def _text(lines: Iterable[str]) -> str:
    return html.escape("\n".join(lines))


def _folded(drawn: Sequence[tuple[str, "Spec"]]) -> str:
    return "".join(
        f"<details{' open' * (number == 0)}><summary>{html.escape(title)}</summary>{_image(spec, title)}</details>"
        for number, (title, spec) in enumerate(drawn)
    )


def _image(spec: "Spec", described: str) -> str:
    content = base64.b64encode(images.svg(spec)).decode()
    return f'<img style="max-width:100%" alt="{html.escape(described)}" src="data:image/svg+xml;base64,{content}">'
