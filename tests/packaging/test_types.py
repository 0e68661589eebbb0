"""mypy accepts every module of the package."""

import re
import subprocess
import sys
from pathlib import Path

SOURCES = ("__init__.py", "__main__.py", "cli.py", "errors.py", "heuristics", "kernels", "results", "tuner")


def test_mypy_checks_every_module_and_finds_nothing(root: Path, tmp_path: Path) -> None:
    # Through a link named normtune and with explicit paths: named by the checkout's folder, modules get wrong names.
    (tmp_path / "normtune").symlink_to(root)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", str(root / "pyproject.toml")),
            *("--cache-dir", str(root / ".cache" / "mypy"), *(f"normtune/{source}" for source in SOURCES)),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rooms = [source for source in SOURCES if not source.endswith(".py")]
    modules = len(SOURCES) - len(rooms) + sum(1 for room in rooms for _ in (root / room).rglob("*.py"))
    assert re.search(rf"no issues found in {modules} source files", done.stdout), done.stdout
