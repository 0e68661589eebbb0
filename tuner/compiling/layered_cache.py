"""The cache manager for Triton that reads a folder of binaries compiled for a sweep, here or elsewhere.

In: the folder, in the environment variable `kernel_cache.FOLDER`. Out: the files of its kernels; kernels that are
missing or damaged there come from the user's cache or are compiled. Triton creates the manager that
TRITON_CACHE_MANAGER names.
"""

import os
from pathlib import Path

from triton.runtime.cache import FileCacheManager

from normtune.tuner.compiling.kernel_cache import FOLDER, kernel_files


class LayeredCacheManager(FileCacheManager):  # type: ignore[misc]  # triton has no types
    """The cache of one kernel: first the folder, then the user's cache."""

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Paths of a kernel's files by name; None if it was not compiled."""
        folder = Path(os.environ[FOLDER], self.key)
        # Not from Triton's list of the files: it has absolute paths, wrong in a copied folder and not to be trusted.
        files = {name: str(file) for name, file in kernel_files(folder).items()}
        if filename in files:
            return files
        return None if folder == Path(self.cache_dir) else super().get_group(filename)
