"""HTML of results in a notebook: lines of text and, if the extra is installed, pictures of charts.

In: lines, and charts. Out: HTML without scripts. Texts are escaped.
"""

import base64
from collections.abc import Callable, Iterable
from html import escape
from typing import TYPE_CHECKING

from normtune.heuristics.report import images

if TYPE_CHECKING:
    from normtune.heuristics.report.theme import Spec


def html_with_charts(lines: Iterable[str], draw: "Callable[[], Iterable[tuple[str, Spec]]]") -> str:
    """The lines, and charts with their titles, all but the first folded; without the extra, how to install it."""
    return html_of(lines) + (_pictures(draw) if images.is_installed() else _INSTALL)


def html_of(lines: Iterable[str]) -> str:
    """The lines alone."""
    text = "\n".join(lines)
    return f"<pre>{escape(text)}</pre>"


_INSTALL = f"<p>For pictures: <code>{escape(images.INSTALL)}</code></p>"


def _pictures(draw: "Callable[[], Iterable[tuple[str, Spec]]]") -> str:
    return "".join(
        f"<details{' open' * (number == 0)}><summary>{escape(title)}</summary>{_image(spec, title)}</details>"
        for number, (title, spec) in enumerate(draw())
    )


def _image(spec: "Spec", described: str) -> str:
    content = base64.b64encode(images.picture(spec, ".svg")).decode()
    return f'<img style="max-width:100%" alt="{escape(described)}" src="data:image/svg+xml;base64,{content}">'
