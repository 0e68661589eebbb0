"""The actor that holds a device on a node of a cluster. Ray carries this module there by value."""

import socket
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from normtune.results.parallel.on_node import facts


class Node:
    """An actor that holds one device: a `Worker` in a process of its own, which a crash of the GPU ends instead."""

    def __init__(self) -> None:
        self._worker: Any = None
        self._scratch: Any = None

    def facts(self) -> dict[str, str]:
        """As `facts`, with the node's name and id, and the number of the GPU."""
        import ray

        context = ray.get_runtime_context()
        gpus = context.get_accelerator_ids().get("GPU") or [""]
        return {**facts(), "host": socket.gethostname(), "node": context.get_node_id(), "gpu": str(gpus[0])}

    def open(self, opener: Any, files: Any) -> Any:
        """Start a worker in place of the last one; returns the identity of its engine, and as `limits.limits_of`.

        Args:
            opener: as in `Worker`.
            files: as `operator_files.Files`.
        """
        from normtune.kernels.load_file import load
        from normtune.results.parallel.operator_files import unpacked
        from normtune.tuner.compiling.kernel_cache import Folder
        from normtune.tuner.device.limits import limits_of
        from normtune.tuner.device.worker import Worker

        self.close()
        if not self._scratch:
            self._scratch, paths = unpacked(files)
            for path in paths:
                load(path)
            # The worker's process would run Ray's main module again.
            sys.modules["__main__"].__dict__.pop("__file__", None)
        self._worker = Worker(opener, Folder(self._scratch.path))
        self._worker.open()
        return self._worker.identity, *limits_of([self._worker.identity.device])

    def call(self, step: str, arguments: Any, seconds: float) -> Any:
        """The worker's answer to a step."""
        return self._worker.call(step, *arguments, seconds=seconds)

    def supply(self, kernels: Collection[str], *archives: Mapping[str, Mapping[str, bytes]]) -> int:
        """Put the files of kernels where the worker finds them; returns the number of damaged kernels."""
        from normtune.tuner.compiling.kernel_cache import kernel_files

        folders = [Path(self._scratch.path, kernel) for kernel in kernels]
        for folder in folders:
            folder.mkdir(exist_ok=True)
            for archive in archives:
                for name, content in archive.get(folder.name, {}).items():
                    Path(folder, name).write_bytes(content)
        return sum(not kernel_files(folder) for folder in folders)

    def close(self) -> Any:
        """End the worker; returns the summary of the clocks."""
        worker, self._worker = self._worker, None
        return worker.close() if worker else {}

    def clear(self) -> Any:
        """End the worker and remove its files; returns the summary of the clocks."""
        summary = self.close()
        if self._scratch:
            self._scratch.remove()
        return summary
