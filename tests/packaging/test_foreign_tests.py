"""`benchmarks/foreign_tests.py` on a small test file, in this process of pytest's and in its workers."""

import pytest

# Of quack: its own reference, what normtune has, what it has not, and a test that is not chosen.
REFERENCE = """
import a_compiler

def rmsnorm_ref(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

def rmsnorm_bwd_ref(x):
    return x
"""
FILE = """
import pytest
import torch
from quack.rmsnorm import rmsnorm, rmsnorm_fwd, rmsnorm_ref

@pytest.mark.parametrize("rows", [1, 3])
def test_with_residual(rows):
    x = torch.randn(rows, 8)
    torch.testing.assert_close(rmsnorm(x), rmsnorm_ref(x))

def test_prenorm_false():
    rmsnorm_fwd(torch.randn(1, 8))

def test_layernorm():
    assert False
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "further",
    [pytest.param([], id="one_process"), pytest.param(["--", "-n", "1"], id="workers")],
)
def test_the_chosen_tests_run_on_normtune(further, root, tmp_path, run) -> None:
    (tmp_path / "test_of_quack.py").write_text(FILE)
    (tmp_path / "reference.py").write_text(REFERENCE)
    script = str(root / "benchmarks/foreign_tests.py")
    arguments = ["quack", "test_of_quack.py", "reference.py", *further]
    done = run(script, *arguments, cwd=tmp_path, PYTHONSAFEPATH="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 1 skipped" in done.stdout
