"""Cache managers for Triton that read a folder of binaries compiled for a sweep, here or elsewhere.

In: the folder, in the environment variable `binary_cache.FOLDER`. Out: the binaries that its lists name, if their files
are intact; others come from the user's cache or are compiled. Triton creates the manager that TRITON_CACHE_MANAGER
names.
"""

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from triton.runtime.cache import FileCacheManager

from normtune.errors import NormtuneError
from normtune.kernels.calling.triton_inside import binary_in, current_target
from normtune.tuner.compiling.binary_cache import FOLDER
from normtune.tuner.compiling.binary_list import is_intact, lists_of
from normtune.tuner.compiling.compiler import cache_name
from normtune.tuner.staleness.code import machine_code


class LayeredCacheManager(FileCacheManager):  # type: ignore[misc]  # triton has no types
    """The cache of one binary: first the folder, then the user's cache.

    Args:
        key: Triton's name of the binary.
        override, dump: whether Triton asks for its folder of replacement code, or of dumps.
    """

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override, dump)
        self._folder = None if override or dump else Path(os.environ[FOLDER])

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Paths of a binary's files by name; None if it was not compiled."""
        # Not from Triton's list of the files: it has absolute paths, wrong in a copied folder and not to be trusted.
        return self._listed_group(filename) or super().get_group(filename)

    def _listed_group(self, filename: str) -> dict[str, str] | None:
        if self._folder is None:
            return None
        stem, files = Path(filename).stem, _listed(self._folder).get(self.key, {})
        paths = {name: str(self._folder / self.key / name) for name in files if Path(name).stem == stem}
        usable = filename in paths and is_intact(self._folder, self.key, files) and self._is_usable(paths)
        return paths if usable else None

    def _is_usable(self, paths: dict[str, str]) -> bool:
        """Whether Triton can load a binary and the name is its own, which the list's digests do not prove."""
        try:
            kernel = binary_in(paths, self.key)
            item = kernel.metadata
            machine_code([kernel.kernel])
            return (
                cache_name(item.hash) == self.key
                and item.target == current_target()
                and isinstance(item.name, str)
                and all(type(number) is int and number >= 0 for number in (item.num_warps, item.num_ctas, item.shared))
            )
        # Triton may raise anything for files that it did not write.
        except Exception:
            return False


class FilledCacheManager(LayeredCacheManager):
    """The same for a folder that is being filled: unlisted files in it, of unknown origin, are not used."""

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Paths of a binary's files by name; None if it is not listed."""
        return self._listed_group(filename)


def _listed(folder: Path) -> Mapping[str, Mapping[str, str]]:
    lists = sorted(folder.glob("normtune.*.json"))  # that of a cluster grows
    return _read(folder, tuple(file.stat().st_mtime_ns for file in lists))


@lru_cache(1)
def _read(folder: Path, changed: tuple[int, ...]) -> Mapping[str, Mapping[str, str]]:
    try:
        return {kernel: files for listed in lists_of(folder).values() for kernel, files in listed.files.items()}
    except NormtuneError:  # changed since the sweep read it
        return {}
