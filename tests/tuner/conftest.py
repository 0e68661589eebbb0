"""An operator whose kernels a test may move, rename and change, and the device of a made-up recording."""

import importlib
import inspect
from dataclasses import replace
from pathlib import Path

import pytest

from normtune.kernels import fingerprint
from normtune.kernels.rms_norm import kernels as forward_kernels
from normtune.kernels.rms_norm.operator import rms_norm_forward as forward
from normtune.results.database.store import Store
from normtune.tests.kernels.registry import registered
from normtune.tests.tuner import benches
from normtune.tuner.device.bench import Bench

SPEC = """
from dataclasses import replace
from normtune.kernels.operator import register
from normtune.kernels.rms_norm.operator import rms_norm_forward
register(replace(rms_norm_forward, name="toy", kernel_calls="{module}:forward_calls"))
"""


class Toy:
    """An operator of another distribution, whose kernels are those of the forward or what a test makes of them."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        metadata = folder / "toy-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text("[normtune.operators]\ntoy = toy_operator\n")

    def kernels(self, module: str, text: str) -> None:
        """Let the operator have these kernels in a module of this name."""
        (self._folder / f"{module}.py").write_text(text)
        (self._folder / "toy_operator.py").write_text(SPEC.format(module=module))
        importlib.invalidate_caches()
        fingerprint.forget()
        registered(self._patch, replace(forward, name="toy", kernel_calls=f"{module}:forward_calls"))


@pytest.fixture
def toy(tmp_path, monkeypatch, operators_forgotten):
    monkeypatch.syspath_prepend(str(tmp_path))
    made = Toy(tmp_path, monkeypatch)
    made.kernels("toy_kernels", inspect.getsource(forward_kernels))
    yield made
    fingerprint.forget()


@pytest.fixture
def opened():
    """Opens the device that replays `made_up_recording`."""
    return lambda: Bench(("normtune.tests.tuner.made_up_recording", "engine", ()))


@pytest.fixture
def store(tmp_path):
    with Store.open(f"sqlite:///{tmp_path}/store.db") as opened:
        yield opened


@pytest.fixture
def small_plan():
    return benches.small_plan()
