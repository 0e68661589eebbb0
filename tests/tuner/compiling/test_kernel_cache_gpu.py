"""A sweep on a GPU launches binaries that were compiled without it, and compiles none."""

import pytest

from normtune.tests.tuner.benches import Heard
from normtune.tuner.sweep import api
from normtune.tuner.sweep.request import Request

pytestmark = pytest.mark.gpu


def test_a_sweep_finds_all_binaries_for_gate_and_timing(tmp_path, monkeypatch):
    import torch

    from normtune.tuner.timing import memory

    own, out = tmp_path / "own", tmp_path / "out"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(own))
    major, minor = torch.cuda.get_device_capability()
    sizes = {"rows": [1, 4096], "hidden": [256, 4096]}
    ahead = api.sweep(target=f"sm_{major}{minor}", out=out, **sizes).compiled
    heard = Heard()
    request = Request("cuda:0", cache=out, store=tmp_path / "store.db", **sizes)
    found = api.run(request, heard)
    assert found.summary.problems == 8
    binaries = found.backlog.binaries
    assert 0 < binaries <= ahead.binaries
    assert heard.lines[-1] == f"{binaries} of {binaries} binaries found in {out}; compiled here: none"
    # What moves and compares memory in a sweep is compiled where it runs.
    own_kernels = {name for name in vars(memory) if name.endswith("_kernel")}
    assert {file.stem for file in own.rglob("*.cubin")} <= own_kernels
