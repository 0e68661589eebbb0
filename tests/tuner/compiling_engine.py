"""The engine of made-up times on a device with compiled binaries; opened by workers in tests."""

import importlib.metadata

from normtune.tests.tuner.hostile_engine import HostileEngine


class CompilingEngine(HostileEngine):
    """Compiles for its target, as the engine of a GPU does."""

    def identify(self):
        software = {"triton": importlib.metadata.version("triton")}
        return super().identify()._replace(compiles=True, software=software)
