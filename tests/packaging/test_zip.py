"""From a zip archive, where tables and recordings are no files, the command line ends with one line."""

import os
import zipfile
from pathlib import Path

from normtune.tests.commands import python

ROOT = Path(__file__).parents[2]


def test_a_zip_archive_is_refused_in_one_line(tmp_path: Path) -> None:
    archive = tmp_path / "normtune.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        for name in ("__init__.py", "__main__.py"):
            opened.write(ROOT / name, f"normtune/{name}")
    done = python("-P", "-m", "normtune", "check", "nvidia-h200", env=os.environ | {"PYTHONPATH": str(archive)})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("normtune: error: it cannot run from a zip archive") and done.stderr.count("\n") == 1
