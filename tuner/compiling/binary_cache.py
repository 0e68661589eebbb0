"""A folder of binaries that another machine compiled, in the format of Triton's cache.

In: the folder, with its lists. Out: how many binaries a sweep finds there, and why it does not find the others. Triton
names a binary by a digest of its kernel's source and arguments, options, target, the installed Triton, its assembler
and some environment variables, but of nothing else of the machine. Needs no triton; `layered_cache` reads the binaries.
"""

import os
import platform
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.kernels.call import AnyLaunch
from normtune.kernels.problem import Problem
from normtune.results.paths import unwritable
from normtune.results.records import launch_digest
from normtune.tuner.compiling.binary_list import Toolchain, lists_of
from normtune.tuner.plan.binaries import compile_class

_MANAGER = "TRITON_CACHE_MANAGER"
# Variable with the folder, for the classes of `layered_cache`, which Triton imports and creates.
FOLDER = "NORMTUNE_BINARIES"


class Folder(NamedTuple):
    """A folder for the processes that compile and launch.

    Attributes:
        path: absolute path.
        fills: whether binaries are written to it; otherwise they are read from it, and it is not changed.
    """

    path: str
    fills: bool = False

    def enter(self) -> None:
        """Make Triton use the folder in this process, a child of the sweep."""
        manager = "FilledCacheManager" if self.fills else "LayeredCacheManager"
        os.environ |= {_MANAGER: f"normtune.tuner.compiling.layered_cache:{manager}", FOLDER: self.path}
        if self.fills:
            # A sweep does not need the intermediate code, nine tenths of the bytes.
            os.environ |= {"TRITON_CACHE_DIR": self.path, "TRITON_STORE_BINARY_ONLY": "1"}


class BinaryCache:
    """The binaries that a folder lists, and a record of those that a sweep used.

    Args:
        path: of the folder.

    Attributes:
        folder: for the processes that compile and launch.

    Raises:
        UsageError: the folder lists no binaries, or the user has set a cache manager for Triton.
        NormtuneError: a list is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._lists = lists_of(path)
        if not self._lists:
            raise UsageError(
                f"{path} lists no binaries: expected a folder that `normtune sweep --compile-only --out {path}` filled"
            )
        if os.environ.get(_MANAGER):
            raise UsageError(f"--cache and the environment variable {_MANAGER} are both given: leave one out")
        self._path = path
        self._reasons: dict[str, str] = {}  # why a binary was compiled here, by its name; empty if it was not
        self.folder = Folder(str(path.resolve()))

    @property
    def found(self) -> int:
        """Number of binaries that needed no compiler."""
        return sum(not reason for reason in self._reasons.values())

    @property
    def compiled(self) -> Counter[str]:
        """Number of binaries that were compiled here, by the reason."""
        return Counter(reason for reason in self._reasons.values() if reason)

    def unusable(self, target: str) -> str:
        """A line on why a sweep on this target cannot use the binaries; empty if it can."""
        if target not in self._lists:
            reason = f"it has binaries for {', '.join(sorted(self._lists))}, the device is {target}"
        else:
            toolchain = self._lists[target].toolchain
            reason = toolchain.difference(toolchain._replace(triton=_triton_version(), python=python_version()))
        return f"the binaries in {self._path} cannot be used: {reason}; all are compiled here" if reason else ""

    def note(self, problem: Problem, launch: AnyLaunch, compiled: Sequence[str], here: Toolchain, target: str) -> None:
        """Note whether a binary came from the folder.

        Args:
            problem: of its compile class.
            launch: of its compile class.
            compiled: Triton's names of its kernels that had to be compiled.
            here: the toolchain of this machine.
            target: architecture of the binary.
        """
        name = name_of(problem, launch)
        if not compiled:
            self._reasons[name] = ""
            return
        if target not in self._lists:
            self._reasons[name] = "for another target"
            return
        listed = self._lists[target]
        self._reasons[name] = (
            listed.toolchain.difference(here) or listed.missing(self._path, name) or "of kernels that changed since"
        )

    def line(self) -> str:
        """Line about the binaries of a sweep; empty if it needed none."""
        if not self._reasons:
            return ""
        compiled = ", ".join(f"{count} ({reason})" for reason, count in sorted(self.compiled.items())) or "none"
        return f"{self.found} of {len(self._reasons)} binaries found in {self._path}; compiled here: {compiled}"


def python_version() -> str:
    """Version of this Python, `3.11`."""
    return ".".join(platform.python_version_tuple()[:2])


def name_of(problem: Problem, launch: AnyLaunch) -> str:
    """Name of a compile class in the lists."""
    key, binary = compile_class(problem, launch)
    return " ".join(filter(None, (*key.columns, launch_digest(binary).hex())))


def check_out(path: Path) -> None:
    """Create the folder for binaries.

    Raises:
        UsageError: it is a file, holds a link (which could lead writes elsewhere), or cannot be created or written.
        NormtuneError: a list in it is damaged.
    """
    reason = unwritable(path)
    if not reason:
        try:
            path.mkdir(parents=True, exist_ok=True)
            if link := next((entry.name for entry in path.iterdir() if entry.is_symlink()), ""):
                reason = f"{link!r} in it is a link"
            lists_of(path)
        except OSError as error:
            reason = f"{path}: {error.strerror or error}"
    if reason:
        raise UsageError(f"--out cannot be written ({reason}): name another folder")


def _triton_version() -> str:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return ""
