"""The interpreter with torch's casts."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def torch_casts() -> Iterator[None]:
    """Casts round; beyond the largest value FP8 overflows, so that a kernel that relies on saturation fails."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    from normtune.tuner.inspection.interpreter_inside import cast_by_torch

    with pytest.MonkeyPatch.context() as patch:
        cast_by_torch(patch.setattr, saturates=False)
        yield
