"""Triton's cache over a folder of binaries that were compiled for a sweep, here or elsewhere.

In: the folder, in the variable `binary_cache.FOLDER`. Out: the binaries that its lists name, as they were listed; any
other comes from the user's own cache, which takes new ones, or, where the folder is filled, is compiled. Triton makes
the manager, by the variable TRITON_CACHE_MANAGER.
"""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from triton.runtime.cache import FileCacheManager

from normtune.errors import NormtuneError
from normtune.kernels.calling.triton_inside import binary_in, current_target
from normtune.tuner.compiling.binary_cache import FOLDER
from normtune.tuner.compiling.binary_list import is_intact, lists_of
from normtune.tuner.compiling.compiler import cache_name
from normtune.tuner.staleness.code import machine_code


class LayeredCacheManager(FileCacheManager):  # type: ignore[misc]  # triton has no types
    """The cache of one binary, over the user's own.

    Args:
        key: Triton's name of the binary.
        override, dump: whether it is the folder of code that replaces the compiler's, or of dumps.
    """

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override, dump)
        self._given = None if override or dump else Path(os.environ[FOLDER])

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Paths of a binary's files by name; None if it was not compiled.

        Triton's own list of them has absolute paths, which a copied folder has no longer, and which could be any.
        """
        return self._listed_group(filename) or super().get_group(filename)

    def _listed_group(self, filename: str) -> dict[str, str] | None:
        if self._given is None:
            return None
        stem, files = Path(filename).stem, _listed(self._given).get(self.key, {})
        paths = {name: str(self._given / self.key / name) for name in files if Path(name).stem == stem}
        usable = filename in paths and is_intact(self._given, self.key, files) and self._is_usable(paths)
        return paths if usable else None

    def _is_usable(self, paths: dict[str, str]) -> bool:
        """Whether Triton can load a binary, and it is what its name says; a list may have any digests."""
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
        # Whatever Triton raises over what is no binary of its own.
        except Exception:
            return False


class FilledCacheManager(LayeredCacheManager):
    """The same where the folder is Triton's cache: what lies there unlisted came from who knows where."""

    def get_group(self, filename: str) -> dict[str, str] | None:
        """As for a folder that is read, without a cache below it."""
        return self._listed_group(filename)


@cache
def _listed(folder: Path) -> Mapping[str, Mapping[str, str]]:
    try:
        return {kernel: files for one in lists_of(folder).values() for kernel, files in one.files.items()}
    except NormtuneError:  # the sweep has read it before: somebody is changing it
        return {}
