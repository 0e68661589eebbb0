"""A folder of binaries that another machine compiled, in the format of Triton's cache.

In: results of compilers, a folder. Out: the folder's list of binaries, a file for each target; for a sweep that is
given the folder, how many binaries it found there, and how many it did not, by reason. Triton names a binary by a
digest of its kernel's source and arguments, options, target, the installed Triton, its assembler and some variables of
the environment, but of nothing else of the machine. Needs no triton; `layered_cache` reads the binaries.
"""

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from normtune.errors import NormtuneError, UsageError
from normtune.kernels.operator import AnyLaunch
from normtune.kernels.problem import Problem
from normtune.results.atomic import replaced
from normtune.results.places import unwritable
from normtune.results.records import launch_digest
from normtune.tuner.plan.binaries import compile_class

_FORMAT = 1
_MANAGER = "TRITON_CACHE_MANAGER"
# Variable with the folder, for `layered_cache`, which Triton makes by its name.
FOLDER = "NORMTUNE_BINARIES"


class Toolchain(NamedTuple):
    """The part of Triton's names of binaries that does not depend on the kernel.

    Attributes:
        triton: version of Triton.
        python: version of Python, as `3.11`: a build of Triton is for one.
        build: digest of Triton's sources and library.
        assembler: version of the assembler.
        environment: variables that change the code.
    """

    triton: str
    python: str
    build: str = ""
    assembler: str = ""
    environment: Mapping[str, str] = {}

    def difference(self, here: "Toolchain") -> str:
        """The first difference to the toolchain of this machine, in words; empty if there is none."""
        if self.triton != here.triton:
            return f"it was compiled by Triton {self.triton}, here is {here.triton or 'none'}"
        if self.python != here.python:
            return f"it was compiled by Triton for Python {self.python}, here is {here.python}"
        if self.build != here.build:
            return f"it was compiled by another build of Triton {self.triton}"
        if self.assembler != here.assembler:
            return "it was assembled by another version of ptxas"
        if names := {name for name, _ in set(self.environment.items()) ^ set(here.environment.items())}:
            return f"it was compiled under other variables of the environment ({', '.join(sorted(names))})"
        return ""


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
        if self.fills:
            # The intermediate code, nine tenths of the bytes, is of no use to a sweep.
            os.environ |= {"TRITON_CACHE_DIR": self.path, "TRITON_STORE_BINARY_ONLY": "1"}
            os.environ.pop(_MANAGER, None)
        else:
            os.environ |= {_MANAGER: "normtune.tuner.compiling.layered_cache:LayeredCacheManager", FOLDER: self.path}


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
        self._lists = {target: _read(path, target) for target in _targets(path)}
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
            made = self._lists[target][0]
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
        toolchain, binaries = self._lists[target]
        if difference := toolchain.difference(here):
            self._seen[name] = difference
        elif name not in binaries:
            self._seen[name] = "not in it"
        elif not all((self._path / kernel).is_dir() for kernel in binaries[name]):
            self._seen[name] = "listed in it, but removed"
        else:
            self._seen[name] = "of kernels that changed since"

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
    operator, variant, dtype, binary = compile_class(problem, launch)
    return " ".join(filter(None, (operator, variant, dtype, launch_digest(binary).hex())))


def check_out(path: Path) -> None:
    """Make the folder for binaries.

    Raises:
        UsageError: it is a file, or cannot be made or written.
    """
    reason = unwritable(path)
    if not reason:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = f"{path}: {error.strerror or error}"
    if reason:
        raise UsageError(f"--out cannot be written ({reason}): name another folder")


def add(path: Path, target: str, toolchain: Toolchain, binaries: Mapping[str, Sequence[str]]) -> None:
    """Add binaries to the list of a folder; one of another toolchain is replaced.

    Args:
        path: of the folder.
        target: that they are for.
        toolchain: that they were compiled by.
        binaries: Triton's names of the kernels of each compile class.

    Raises:
        NormtuneError: the list cannot be written.
    """
    listed: Mapping[str, Sequence[str]] = {}
    if target in _targets(path):
        before, listed = _read(path, target)
        listed = listed if before == toolchain else {}
    plain = {"format": _FORMAT, "toolchain": toolchain._asdict(), "binaries": {**listed, **binaries}}
    with replaced(_list_of(path, target)) as temporary:
        temporary.write_text(json.dumps(plain, indent=0, sort_keys=True) + "\n")


def _list_of(path: Path, target: str) -> Path:
    return path / f"normtune.{target}.json"


def _targets(path: Path) -> list[str]:
    return sorted(file.name.split(".")[1] for file in path.glob("normtune.*.json"))


def _read(path: Path, target: str) -> tuple[Toolchain, dict[str, list[str]]]:
    file = _list_of(path, target)
    try:
        plain: dict[str, Any] = json.loads(file.read_text("utf-8"))
        if plain["format"] != _FORMAT:
            raise ValueError(f"format {plain['format']}")
        return Toolchain(**plain["toolchain"]), {
            str(name): list(kernels) for name, kernels in plain["binaries"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise NormtuneError(
            f"{file} is damaged ({type(error).__name__}: {error}): fill an empty folder with `--compile-only`"
        ) from None


def _triton_version() -> str:
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return ""
