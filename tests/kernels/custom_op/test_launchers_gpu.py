"""Functions that allocate their outputs and call torch are gated, timed and called on a GPU."""

import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from triton.runtime.jit import JITFunction

from normtune.kernels import load_file, operator
from normtune.kernels.config import Implementation
from normtune.tests.commands import main

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("operators_forgotten")]
FILE = Path(__file__).with_name("launchers.py")


def test_a_launcher_is_swept_fitted_and_called(tmp_path):
    store, table = f"sqlite:///{tmp_path}/door.db", tmp_path / "table.py"
    shapes = ("--operator", "doubled", "--dtype", "bfloat16", "--shapes", "64,4096x40,1024")
    done = main("--load", FILE, "sweep", "--device", "cuda:0", "--store", store, *shapes)
    assert done.exit_code == 0, done.output
    assert "wrong_result" not in done.output
    done = main("--load", FILE, "fit", "--store", store, "--out", table)
    assert done.exit_code == 0, done.output
    done = main("--load", FILE, "check", table)
    assert done.exit_code == 0 and "its kernels are those that were measured" in done.output, done.output

    load_file.load(FILE)
    spec = operator.operator("doubled")
    function = sys.modules["normtune_operators_launchers"].doubled
    x = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)
    for config in (None, spec.config(64, 1), Implementation("torch")):
        y, total = function(x, config=config)
        torch.testing.assert_close(y, 2 * x)
        torch.testing.assert_close(total, 2 * x.sum(0, dtype=torch.float32), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("num_warps", [1, 4])
def test_torch_compile_calls_a_launcher_with_its_config(num_warps):
    load_file.load(FILE)
    function = sys.modules["normtune_operators_launchers"].doubled
    launched = []

    def spy(kernel, *args, **options):
        launched.append((options["BLOCK"], options["num_warps"]))
        return usual(kernel, *args, **options)

    usual, config = JITFunction.run, function.spec.config(256, num_warps)
    x = torch.randn(16, 64, device="cuda")
    compiled = torch.compile(lambda x: function(x + 1, config=config)[0] * 2)
    with patch.object(JITFunction, "run", spy):
        for _ in range(2):
            torch.testing.assert_close(compiled(x), 4 * (x + 1))
    assert launched.count((256, num_warps)) == 2
