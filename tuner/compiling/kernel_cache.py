"""A folder of Triton's cache that another machine filled.

In: the folder. Out: the files of a kernel in it, unless they are damaged, and how many binaries of a sweep it had.
Triton names a kernel's folder by a digest of its source, arguments, options and target, of the installed Triton, its
assembler and some environment variables. Needs no triton; `layered_cache` reads the folder for Triton.
"""

import base64
import json
import os
import platform
import struct
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from normtune.errors import UsageError
from normtune.kernels.call import AnyLaunch
from normtune.kernels.problem import Problem
from normtune.kernels.tablefile.locate import regular_file
from normtune.results.paths import unwritable
from normtune.tuner.plan.binaries import compile_class

_MANAGER = "TRITON_CACHE_MANAGER"
# Variable with the folder, for the class of `layered_cache`, which Triton imports and creates.
FOLDER = "NORMTUNE_BINARIES"
_SUFFIXES = "cubin", "hsaco"
_ASSEMBLY = ".ptx", ".amdgcn"
# Intermediate code of a kernel, which no sweep reads; digests of its code are of the assembly.
_UNUSED_SUFFIXES = ".source", ".ttir", ".ttgir", ".llir"
# A file of a kernel is a thousand times smaller.
_MOST_BYTES = 1 << 27


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
        os.environ |= {_MANAGER: "normtune.tuner.compiling.layered_cache:LayeredCacheManager", FOLDER: self.path}
        if self.fills:
            os.environ |= {"TRITON_CACHE_DIR": self.path, "TRITON_STORE_BINARY_ONLY": "0"}

    def trim(self) -> None:
        """Remove intermediate code, three fifths of the bytes, once nothing compiles into the folder."""
        for file in Path(self.path).glob("*/*"):
            if file.suffix in _UNUSED_SUFFIXES:
                file.unlink(missing_ok=True)


class KernelCache:
    """A filled folder, and how many of a sweep's binaries it had.

    Args:
        path: of the folder.

    Attributes:
        folder: for the processes that compile and launch.

    Raises:
        UsageError: the folder has no binaries, or the user has set a cache manager for Triton.
    """

    def __init__(self, path: Path) -> None:
        if next(_metadata_files(path), None) is None:
            raise UsageError(f"{path} has no binaries: expected a folder that `normtune compile` filled")
        if os.environ.get(_MANAGER):
            raise UsageError(f"--cache and the environment variable {_MANAGER} are both given: leave one out")
        self._path = path
        self._compiled: dict[object, bool] = {}
        self.folder = Folder(str(path.resolve()))

    def unusable(self, target: str) -> str:
        """A line if all binaries are of another Triton or target, which a sweep on `target` cannot use; else empty."""
        here = f"Triton {triton_version() or 'none'} for {target}"
        others = set()
        for file in _metadata_files(self._path):
            try:
                toolchain = _toolchain(_metadata(file))
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue
            if toolchain == here:
                return ""
            others.add(toolchain)
        reason = f"they are of {', '.join(sorted(others)[:3])}" if others else "they are damaged"
        return f"the binaries in {self._path} cannot be used: {reason}, here is {here}; all are compiled here"

    def note(self, problem: Problem, launch: AnyLaunch, is_compiled: bool) -> None:
        """Note whether a binary was compiled on this machine."""
        self._compiled[compile_class(problem, launch)] = is_compiled

    def line(self) -> str:
        """Line about the binaries of a sweep; empty if it needed none."""
        count = sum(self._compiled.values())
        if not self._compiled:
            return ""
        ready = f"{len(self._compiled) - count} of {len(self._compiled)} binaries found in {self._path}"
        return f"{ready}; compiled here: {count or 'none'}"


def triton_version() -> str:
    """Version of the installed Triton; empty without one."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return ""


def python_version() -> str:
    """Version of this Python, `3.11`."""
    return ".".join(platform.python_version_tuple()[:2])


def key_of(digest: str) -> str:
    """Name of a kernel's folder in Triton's cache, from Triton's hash of the kernel.

    Raises:
        ValueError: the hash is not hexadecimal.
    """
    return base64.b32encode(bytes.fromhex(digest)).decode().rstrip("=")


def kernel_files(folder: Path) -> dict[str, Path]:
    """Metadata, binary and assembly of a kernel, by file name; empty if metadata or binary are missing or damaged.

    Triton launches what it finds. A truncated binary would fail for good, and its config with it.

    Args:
        folder: of the kernel, with Triton's name.
    """
    try:
        for file in folder.iterdir():
            if file.suffix[1:] in _SUFFIXES:
                description = file.with_suffix(".json")
                if key_of(_metadata(description)["hash"]) == folder.name and is_whole(_content(file)):
                    assembly = [other for other in folder.iterdir() if other.suffix in _ASSEMBLY and other.is_file()]
                    return {each.name: each for each in (description, file, *assembly)}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return {}


def check_out(path: Path) -> None:
    """Create the folder for binaries.

    Raises:
        UsageError: it is a file, holds a link (which could lead writes elsewhere), or cannot be created or written.
    """
    reason = unwritable(path)
    if not reason:
        try:
            path.mkdir(parents=True, exist_ok=True)
            if link := next((entry.name for entry in path.iterdir() if entry.is_symlink()), ""):
                reason = f"{link!r} in it is a link"
        except OSError as error:
            reason = f"{path}: {error.strerror or error}"
    if reason:
        raise UsageError(f"--out cannot be written ({reason}): name another folder")


def _metadata_files(path: Path) -> Iterator[Path]:
    return (file.with_suffix(".json") for suffix in _SUFFIXES for file in path.glob(f"*/*.{suffix}"))


def _metadata(file: Path) -> Any:
    return json.loads(_content(file))


def _content(file: Path) -> bytes:
    content = regular_file(file, _MOST_BYTES)
    if content is None:
        raise OSError("not a regular file")
    return content


def _toolchain(description: Any) -> str:
    """Triton and target of a kernel."""
    arch, version = description["target"]["arch"], description["triton_version"]
    toolchain = f"Triton {version} for {f'sm_{arch}' if isinstance(arch, int) else arch}"
    if not toolchain.isprintable():
        raise ValueError(toolchain)
    return toolchain


def is_whole(binary: bytes) -> bool:
    """Whether a file of ELF64, little-endian, ends where its headers say: the last of its two tables ends it."""
    if len(binary) < 0x40:
        return False
    tables = struct.unpack_from("<QQ", binary, 0x20)
    sizes = struct.unpack_from("<4H", binary, 0x36)
    ends = [start + sizes[2 * index] * sizes[2 * index + 1] for index, start in enumerate(tables)]
    return binary[:4] == b"\x7fELF" and len(binary) >= max(ends)
