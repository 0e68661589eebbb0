"""A folder of binaries that another machine compiled, in the format of Triton's cache.

In: the folder, with its lists. Out: for a sweep that is given the folder, how many binaries it found there, and how
many it did not, by reason. Triton names a binary by a digest of its kernel's source and arguments, options, target, the
installed Triton, its assembler and some variables of the environment, but of nothing else of the machine. Needs no
triton; `layered_cache` reads the binaries.
"""

import os
import platform
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from normtune.errors import UsageError
from normtune.kernels.operator import AnyLaunch
from normtune.kernels.problem import Problem
from normtune.results.paths import unwritable
from normtune.results.records import launch_digest
from normtune.tuner.compiling.binary_list import Toolchain, lists_of
from normtune.tuner.plan.binaries import compile_class

_MANAGER = "TRITON_CACHE_MANAGER"
# Variable with the folder, for `layered_cache`, which Triton makes by its name.
FOLDER = "NORMTUNE_BINARIES"


class Folder(NamedTuple):
    """A folder for the processes that compile and launch.

    Attributes:
        path: absolute path.
        fills: whether binaries are written to it; they are read from it otherwise, and it is left as it is.
    """

    path: str
    fills: bool = False

    def enter(self) -> None:
        """Let Triton in this process, a child of the sweep's, use the folder."""
        manager = "FilledCacheManager" if self.fills else "LayeredCacheManager"
        os.environ |= {_MANAGER: f"normtune.tuner.compiling.layered_cache:{manager}", FOLDER: self.path}
        if self.fills:
            # The intermediate code, nine tenths of the bytes, is of no use to a sweep.
            os.environ |= {"TRITON_CACHE_DIR": self.path, "TRITON_STORE_BINARY_ONLY": "1"}


class BinaryCache:
    """The folder as a sweep sees it: the binaries that it lists, and what became of them.

    Args:
        path: of the folder.

    Attributes:
        folder: for the processes.
        found: number of binaries that needed no compiler.
        compiled: number of others, by reason.

    Raises:
        UsageError: no binaries were compiled into the folder, or Triton uses a cache manager of the user's.
        NormtuneError: a list is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._lists = lists_of(path)
        if not self._lists:
            raise UsageError(
                f"{path} lists no binaries: expected a folder that `normtune sweep --compile-only --out {path}` filled"
            )
        if os.environ.get(_MANAGER):
            raise UsageError(f"--cache and the variable {_MANAGER} are both given: leave one out")
        self._path = path
        self._seen: dict[str, str] = {}
        self.folder = Folder(str(path.resolve()))

    @property
    def found(self) -> int:
        """Number of binaries that needed no compiler."""
        return sum(not reason for reason in self._seen.values())

    @property
    def compiled(self) -> Counter[str]:
        """Number of binaries that were compiled here, by the reason."""
        return Counter(reason for reason in self._seen.values() if reason)

    def unusable(self, target: str) -> str:
        """Line with the reason why a sweep on this target will compile everything; empty if it should not have to."""
        if target not in self._lists:
            reason = f"it has binaries for {', '.join(sorted(self._lists))}, the device is {target}"
        else:
            made = self._lists[target].toolchain
            reason = made.difference(made._replace(triton=_triton_version(), python=python_version()))
        return f"the binaries in {self._path} cannot be used: {reason}; all are compiled here" if reason else ""

    def note(self, problem: Problem, launch: AnyLaunch, made: Sequence[str], here: Toolchain, target: str) -> None:
        """Note a binary.

        Args:
            problem: of its compile class.
            launch: of its compile class.
            made: Triton's names of its kernels that had to be compiled.
            here: toolchain that they were compiled by.
            target: that they are for.
        """
        name = name_of(problem, launch)
        if not made:
            self._seen[name] = ""
            return
        if target not in self._lists:
            self._seen[name] = "for another target"
            return
        listed = self._lists[target]
        self._seen[name] = (
            listed.toolchain.difference(here) or listed.missing(self._path, name) or "of kernels that changed since"
        )

    def line(self) -> str:
        """Line about the binaries of a sweep; empty if it needed none."""
        if not self._seen:
            return ""
        compiled = ", ".join(f"{count} ({reason})" for reason, count in sorted(self.compiled.items()))
        return f"{self.found} of {len(self._seen)} binaries found in {self._path}; compiled here: {compiled or 'none'}"


def python_version() -> str:
    """Version of this Python, as `3.11`."""
    return ".".join(platform.python_version_tuple()[:2])


def name_of(problem: Problem, launch: AnyLaunch) -> str:
    """Name of a compile class in the lists."""
    key, binary = compile_class(problem, launch)
    return " ".join(filter(None, (*key.columns, launch_digest(binary).hex())))


def check_out(path: Path) -> None:
    """Make the folder for binaries.

    Raises:
        UsageError: it is a file, holds a link, through which binaries would be written, or cannot be made or written.
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
