"""The first call on a cluster's node. Ray carries this module there by value, so it can tell which normtune is there.

Only the standard library is imported outside of functions: a node may have another normtune, or none.
"""

import hashlib
import platform
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# The parts of the package that measure, compile and fit.
_PARTS = ("*.py", "heuristics/**/*.py", "kernels/**/*.py", "results/**/*.py", "tuner/**/*.py")


def facts() -> dict[str, str]:
    """What must be as where the command runs: versions of normtune, with a digest of its sources, Python and Triton."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"normtune": _normtune(), "Python": python, "triton": _version("triton")}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _normtune() -> str:
    try:
        package = import_module("normtune")
    # Whatever is wrong with the package there.
    except Exception as error:
        return f"none ({type(error).__name__}: {error})"
    folder = Path(str(package.__file__)).parent
    digest = hashlib.sha256()
    for file in sorted({file for part in _PARTS for file in folder.glob(part)}):
        digest.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes() + b"\0")
    return f"{package.__version__} of sources {digest.hexdigest()[:12]}"


def run(versions: Mapping[str, str], name: str, *arguments: Any) -> Any:
    """A task: call a function of normtune on this node.

    Args:
        versions: the `facts` of the command.
        name: module and name of the function, with a dot between them.
        arguments: of the function.

    Returns:
        Its two results; for a node with other versions its id, and None.
    """
    import ray

    if facts() != versions:
        return ray.get_runtime_context().get_node_id(), None
    module, _, function = name.rpartition(".")
    return getattr(import_module(module), function)(*arguments)
