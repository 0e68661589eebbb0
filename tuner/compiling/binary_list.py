"""The list of a folder of binaries for another machine: the kernels of each binary, and a digest of each file.

In: a folder that Triton filled as its cache. Out: a list for each target, and whether a kernel's files are those that
were listed. A list may come from anybody, so names of files outside of the folder are refused.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from normtune.errors import NormtuneError
from normtune.kernels.tablefile.locate import regular_file
from normtune.results.atomic import replaced

_FORMAT = 2
# A list of 300,000 binaries; a binary is a thousand times smaller.
_MOST_BYTES = 1 << 27
_LIST = re.compile(r"normtune\.(\w+)\.json", re.ASCII)
# Names of folders and files inside the folder; no path out of it matches.
_NAME = re.compile(r"\w[\w.-]{0,254}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}")
# Prefixes of files that Triton keeps beside a binary for its own use.
_INTERNAL_FILES = ("__grp__", "tmp.", "lock")


class Toolchain(NamedTuple):
    """The part of Triton's digests of binaries that does not depend on the kernel.

    Attributes:
        triton: version of Triton.
        python: version of Python that Triton was built for, `3.11`.
        build: digest of Triton's sources and library.
        assembler: version of the assembler.
        environment: environment variables that change the code.
    """

    triton: str
    python: str
    build: str = ""
    assembler: str = ""
    environment: Mapping[str, str] = {}

    def difference(self, here: "Toolchain") -> str:
        """The first difference from the toolchain of this machine, as text; empty without one."""
        if self.triton != here.triton:
            return f"it was compiled by Triton {self.triton}, here is {here.triton or 'none'}"
        if self.python != here.python:
            return f"it was compiled by Triton for Python {self.python}, here is {here.python}"
        if self.build != here.build:
            return f"it was compiled by another build of Triton {self.triton}"
        if self.assembler != here.assembler:
            return "it was assembled by another version of ptxas"
        if names := {name for name, _ in set(self.environment.items()) ^ set(here.environment.items())}:
            return f"it was compiled with other environment variables ({', '.join(sorted(names))})"
        return ""


class Contents(NamedTuple):
    """A list of the binaries in a folder.

    Attributes:
        toolchain: of the machine that compiled them.
        binaries: Triton's names of the kernels of each compile class.
        files: digest of each file, by kernel and file name.
    """

    toolchain: Toolchain
    binaries: Mapping[str, Sequence[str]]
    files: Mapping[str, Mapping[str, str]]

    def missing(self, path: Path, name: str) -> str:
        """Why a binary is missing in the folder, or differs from the list; empty if neither."""
        if name not in self.binaries:
            return "not in it"
        kernels = self.binaries[name]
        if not all((path / kernel).is_dir() for kernel in kernels):
            return "listed in it, but removed"
        return "" if all(is_intact(path, kernel, self.files.get(kernel, {})) for kernel in kernels) else "damaged in it"


def add(path: Path, target: str, toolchain: Toolchain, binaries: Mapping[str, Sequence[str]]) -> None:
    """Add binaries to the list of a folder for a target; a list of another toolchain is replaced.

    Args:
        path: of the folder.
        target: architecture of the binaries.
        toolchain: of this machine.
        binaries: Triton's names of the kernels of each compile class.

    Raises:
        NormtuneError: the list cannot be written, or an existing one is damaged.
    """
    listed = Contents(toolchain, {}, {})
    before = lists_of(path).get(target, listed)
    listed = before if before.toolchain == toolchain else listed
    kernels = {kernel for names in binaries.values() for kernel in names}
    plain = {
        "format": _FORMAT,
        "toolchain": toolchain._asdict(),
        "binaries": {**listed.binaries, **binaries},
        "files": {**listed.files, **{kernel: digests(path / kernel) for kernel in kernels}},
    }
    with replaced(path / f"normtune.{target}.json") as temporary:
        temporary.write_text(json.dumps(plain, indent=0, sort_keys=True) + "\n")


def lists_of(path: Path) -> dict[str, Contents]:
    """The lists of a folder, by target.

    Raises:
        NormtuneError: a list is damaged.
    """
    matches = (_LIST.fullmatch(file.name) for file in sorted(path.glob("normtune.*.json")))
    return {match[1]: _read(path / match[0]) for match in matches if match}


def is_intact(path: Path, kernel: str, files: Mapping[str, str]) -> bool:
    """Whether the files of a kernel match the list, and none is a link."""
    folder = path / kernel
    return not folder.is_symlink() and bool(files) and all(_digest(folder / name) == files[name] for name in files)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the files of a kernel, by name; those that Triton keeps for its own use are left out."""
    names = sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []
    found = {name: _digest(folder / name) for name in names if not name.startswith(_INTERNAL_FILES)}
    return {name: digest for name, digest in found.items() if digest}


def _digest(file: Path) -> str:
    """SHA-256 of a file; empty if it cannot be read."""
    try:
        return hashlib.sha256(_content(file)).hexdigest()
    except OSError:
        return ""


def _content(file: Path) -> bytes:
    """Content of a regular file of at most `_MOST_BYTES`; OSError for anything else, links included."""
    content = regular_file(file, _MOST_BYTES, os.O_NOFOLLOW)
    if content is None:
        raise OSError("not a regular file")
    if len(content) > _MOST_BYTES:
        raise OSError(f"over {_MOST_BYTES} bytes")
    return content


def _read(file: Path) -> Contents:
    try:
        plain: dict[str, Any] = json.loads(_content(file))
        if plain["format"] != _FORMAT:
            raise ValueError(f"format {plain['format']!r}, expected {_FORMAT}")
        toolchain = Toolchain(**plain["toolchain"])
        binaries = {name: list(kernels) for name, kernels in plain["binaries"].items()}
        files = {kernel: dict(digests) for kernel, digests in plain["files"].items()}
        # These texts are printed.
        for text in (*toolchain[:4], *toolchain.environment, *toolchain.environment.values()):
            if not text.isprintable():
                raise ValueError(f"toolchain {text!r}")
        for name in {*files, *chain.from_iterable(binaries.values()), *chain.from_iterable(files.values())}:
            if not _NAME.fullmatch(name):
                raise ValueError(f"file name {name!r}")
        for digest in chain.from_iterable(digests.values() for digests in files.values()):
            if not _DIGEST.fullmatch(digest):
                raise ValueError(f"digest {digest!r}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}"[:200].split())
        raise NormtuneError(f"{file} is damaged ({reason}): fill an empty folder with `--compile-only`") from None
    return Contents(toolchain, binaries, files)
