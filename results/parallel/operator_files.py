"""Brings the Python files that register operators to a node of a cluster."""

from pathlib import Path
from typing import TypeAlias

from normtune.kernels.load_file import loaded
from normtune.results.parallel.processes import Scratch

# Path and content of each.
Files: TypeAlias = tuple[tuple[str, bytes], ...]


def files_of_operators() -> Files:
    """The files that this process loaded, in order."""
    return tuple((path, Path(path).read_bytes()) for path in loaded())


def unpacked(files: Files) -> tuple[Scratch, list[str]]:
    """A new folder on this node with Python files, each in a folder of its own, and their paths."""
    import ray

    # In Ray's own folder for this session, as a killed process removes nothing.
    scratch = Scratch(ray._private.worker.global_worker.node.get_session_dir_path())
    paths = [Path(scratch.path, f"operators-{index}", Path(name).name) for index, (name, _) in enumerate(files)]
    for path, (_, content) in zip(paths, files, strict=True):
        path.parent.mkdir()
        path.write_bytes(content)
    return scratch, [*map(str, paths)]
