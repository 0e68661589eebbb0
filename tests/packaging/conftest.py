"""The checkout, its files in git, and the two distributions built from it."""

import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from normtune.tests.commands import python

ROOT = Path(__file__).parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def tracked() -> list[str]:
    """Paths of all tracked files, relative to the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(path for path in listed.stdout.split("\0") if path)


@pytest.fixture(scope="session")
def run() -> Run:
    """Run this Python in a folder with just the environment that is given, and return what it did."""

    def run_python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in ("HOME", "PATH", "TMPDIR") if name in os.environ}
        return python(*arguments, cwd=cwd, env=kept | environment)

    return run_python


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last commit, unpacked where nothing else lies, with a stray table and a stray module at its root."""
    folder = tmp_path_factory.mktemp("archive")
    packed = subprocess.run(["git", "archive", "--format=tar", "HEAD"], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
        tar.extractall(folder, filter="data")
    for stray in ("heuristics.py", "conftest.py", "scratch.py"):
        (folder / stray).write_text("raise SystemExit('not part of normtune')\n")
    return folder


@pytest.fixture(scope="session")
def committed() -> list[str]:
    """Paths of the files of the last commit."""
    listed = subprocess.run(
        ["git", "ls-tree", "-r", "-z", "--name-only", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return sorted(path for path in listed.stdout.split("\0") if path)
