"""Triton's cache over a folder of binaries that is read and never written.

In: the folder, in the variable `binary_cache.FOLDER`. Out: binaries from there, if it has them, else from the user's
own cache, which takes new ones. Triton makes the manager, by the variable TRITON_CACHE_MANAGER.
"""

import json
import os
from contextlib import suppress
from pathlib import Path

from triton.runtime.cache import FileCacheManager

from normtune.tuner.compiling.binary_cache import FOLDER


class LayeredCacheManager(FileCacheManager):  # type: ignore[misc]  # triton has no types
    """The cache of one binary.

    Args:
        key: Triton's name of the binary.
        override, dump: whether it is the folder of code that replaces the compiler's, or of dumps.
    """

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override, dump)
        self._given = None if override or dump else Path(os.environ[FOLDER]) / key

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Paths of a binary's files by name; None if it was not compiled.

        Triton lists them by absolute path, which a copied folder no longer has.
        """
        if self._given is not None:
            with suppress(OSError, ValueError, KeyError):
                listed = json.loads((self._given / f"__grp__{filename}").read_text("utf-8"))["child_paths"]
                paths = {name: str(self._given / name) for name in listed}
                if all(map(os.path.isfile, paths.values())):
                    return paths
        return super().get_group(filename)
