"""A table as lists for `triton.autotune`."""

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import triton
import triton.language as tl

import normtune
from normtune.kernels import load_file, operator
from normtune.kernels.tablefile.tree import distinct
from normtune.results.elsewhere import Elsewhere
from normtune.results.exchange.dataframe import evidence_of
from normtune.tests.commands import refused, succeed
from normtune.tests.heuristics.made_up import as_measured

EXAMPLE = Path(__file__).parents[3] / "examples" / "liger" / "rms_norm.py"
FORWARD, BACKWARD = "liger_rms_norm", "liger_rms_norm_backward"
ROWS, HIDDEN = (1, 512, 8192), (64, 512, 2048)
pytestmark = pytest.mark.usefixtures("operators_forgotten")


@triton.jit
def _copy_kernel(x_ptr, y_ptr):
    tl.store(y_ptr, tl.load(x_ptr))


def frame_of(configs_of, dtypes=("bfloat16",), seed=0):
    """Made-up times: those of the default config and four other ones of each operator at nine shapes."""
    random = np.random.default_rng(seed)
    rows = [
        (name, dtype, rows, hidden, config, int(random.integers(2000, 9000)))
        for name, configs in configs_of.items()
        for dtype in dtypes
        for rows in ROWS
        for hidden in HIDDEN
        for config in configs
    ]
    return pd.DataFrame(rows, columns=["operator", "dtype", "rows", "hidden", "config", "nanoseconds"])


@pytest.fixture
def configs():
    """Configs of Liger's two operators, by name; those that it has today are among them."""
    load_file.load(EXAMPLE)
    forward, backward = (operator.operator(name).config for name in (FORWARD, BACKWARD))
    return {
        FORWARD: [forward(*one) for one in ((0, 4), (0, 8), (16, 32), (8, 16))],
        BACKWARD: [backward(*one) for one in ((0, 4, 1), (0, 8, 1), (16, 32, 1), (8, 16, 2))],
    }


def fitted(frame, **options):
    device = Elsewhere(name="NVIDIA H200", target="sm_90").device()
    return normtune.fit(as_measured(evidence_of(frame, device)), **options)


def loaded(path):
    """A module from a file, under a name of its own."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_list_has_the_configs_of_the_table(configs, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = fitted(frame_of(configs), max_configs=2)
    table.save("table.py")
    assert succeed("table", "export", "table.py", "--out", "configs.py") == "wrote configs.py\n"
    module = loaded(Path("configs.py"))
    for function in table.functions:
        found = getattr(module, f"{function.key.operator.upper()}_CONFIGS")
        assert all(type(config) is triton.Config for config in found)
        expected = {(config.block_row, config.num_warps) for config in distinct(function.tree)}
        assert {(config.kwargs["block_row"], config.num_warps) for config in found} == expected and len(expected) <= 2


def test_a_list_limits_registers_where_its_configs_do(tmp_path) -> None:
    class Limited(normtune.Config):
        num_warps: int
        maxnreg: int

    normtune.kernel_operator(
        name="limited",
        config=Limited,
        space=[Limited(1, 0), Limited(1, 64)],
        buffers={"x": "input", "y": "output"},
        reference=lambda x: x,
    )(lambda x, y, config: _copy_kernel[(1,)](x, y, num_warps=config.num_warps, maxnreg=config.maxnreg))
    frame = frame_of({"limited": [Limited(1, 0), Limited(1, 64)]})
    fitted(frame, tie_percent=0).save(tmp_path / "table.py")
    normtune.export_table(tmp_path / "table.py", tmp_path / "configs.py")
    assert {config.maxnreg for config in loaded(tmp_path / "configs.py").LIMITED_CONFIGS} == {None, 64}


def test_what_is_written_and_what_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    export = ("table", "export", "nvidia-h200", "--out")
    Path("mine.py").write_text("mine")
    assert "normtune did not write it" in refused(*export, "mine.py")
    assert Path("mine.py").read_text() == "mine"
    for _ in range(2):
        assert "wrote lists.py" in succeed(*export, "lists.py")
    assert "it exists and normtune did not write it" in refused("fit", "--store", "nvidia-h200", "--out", "lists.py")
    assert {name for name in vars(loaded(Path("lists.py"))) if name.endswith("_CONFIGS")} == {
        "RMS_NORM_FORWARD_CONFIGS",
        "RMS_NORM_BACKWARD_CONFIGS",
    }
    assert "no_such is no file or shipped table" in refused("table", "export", "no_such", "--out", "other.py")
