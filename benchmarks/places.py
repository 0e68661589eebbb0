"""Folders of the benchmarks' results: one per GPU, with JSON and the Markdown made of it.

In: a GPU's name. Out: its folder, and files in it that are replaced whole.
"""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def folder_of(device: str) -> Path:
    """The folder of a GPU, by the driver's name; made if it does not exist."""
    from normtune.kernels.tablefile.locate import slug

    folder = RESULTS / slug(device)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write(path: Path, document: dict[str, Any], markdown: str) -> None:
    """Write `path`, a .json, and the .md beside it."""
    from normtune.results.atomic import replaced

    for place, text in ((path, json.dumps(document, indent=1)), (path.with_suffix(".md"), markdown)):
        with replaced(place) as temporary:
            temporary.write_text(text + "\n", "utf-8")
