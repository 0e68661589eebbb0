"""The engine of a GPU."""

import pytest


@pytest.fixture(scope="module")
def engine():
    from normtune.tuner.device.cuda import CudaEngine

    opened = CudaEngine(0)
    yield opened
    opened.close()
