"""A fit as lists for `triton.autotune`."""

import importlib.util
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import triton
import triton.language as tl

import normtune
from normtune.errors import UsageError
from normtune.heuristics.fitting.options import FitOptions
from normtune.kernels import load_file, operator
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


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(4))
def test_a_list_for_an_autotuner_is_the_best_of_its_length(configs, seed, tmp_path) -> None:
    name, path = BACKWARD, tmp_path / "configs.py"
    frame = frame_of({name: configs[name]}, ("bfloat16", "float16"), seed)
    assert fitted(frame, max_configs=2, weights="equal").write_as("triton-configs", path) == [path]
    found = loaded(path).LIGER_RMS_NORM_BACKWARD_CONFIGS
    assert all(type(config) is triton.Config for config in found)
    chosen = {(config.kwargs["block_row"], config.num_warps, config.kwargs["programs"]) for config in found}

    def loss(some):
        best = frame.groupby(["dtype", "rows", "hidden"]).nanoseconds.min()
        least = frame[frame.config.isin(some)].groupby(["dtype", "rows", "hidden"]).nanoseconds.min()
        return np.log(least / best).mean()

    assert loss(chosen) <= min(map(loss, combinations(configs[name], 2))) + 1e-6
    told = re.search(r"# of all by (.*) % on average", path.read_text())
    part = frame[frame.dtype == "bfloat16"]
    best = part.groupby(["rows", "hidden"]).nanoseconds.min()
    least = part[part.config.isin(chosen)].groupby(["rows", "hidden"]).nanoseconds.min()
    assert told and float(told[1]) == pytest.approx(100 * np.expm1(np.log(least / best).mean()), abs=0.011)


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
    fitted(frame, tie_percent=0).write_as("triton-configs", tmp_path / "configs.py")
    found = loaded(tmp_path / "configs.py").LIMITED_CONFIGS
    assert {config.maxnreg for config in found} == {None, 64}


def test_a_list_without_a_length_loses_no_more_than_the_tie(configs, tmp_path) -> None:
    name, path = FORWARD, tmp_path / "configs.py"
    frame = frame_of({name: configs[name]})
    fitted(frame, tie_percent=0).write_as("triton-configs", path)
    best = frame.loc[frame.groupby(["rows", "hidden"]).nanoseconds.idxmin()].config
    assert len(loaded(path).LIGER_RMS_NORM_CONFIGS) == len({*best})
    assert "by 0.00 % on average, 0.0 % at worst" in path.read_text()


def test_no_list_is_shorter_than_what_runs_everywhere(configs, tmp_path) -> None:
    name = FORWARD
    frame = frame_of({name: configs[name]})
    frame = frame[frame.config.map(lambda config: config.block_row > 0) == (frame.hidden == 64)]
    table = fitted(frame)
    with pytest.raises(UsageError, match="--max-configs is 1: liger_rms_norm needs more configs to run at every shape"):
        replace(table, options=FitOptions(max_configs=1)).write_as("triton-configs", tmp_path / "configs.py")


def test_what_is_written_and_what_is_refused(configs, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    fitted(frame_of(configs)).save("table.py", evidence="times.parquet")
    fit = ("fit", "--store", "times.parquet")
    lists = ("--format", "triton-configs")
    assert "unknown format 'csv': expected one of module, triton-configs" in refused(*fit, "--format", "csv")
    assert "--format triton-configs is for --out FILE" in refused(*fit, *lists)
    assert "--format triton-configs is for --out FILE" in refused(*fit, *lists, "--out", "x.py", "--install")
    Path("mine.py").write_text("mine")
    assert "normtune did not write it" in refused(*fit, *lists, "--out", "mine.py")
    assert Path("mine.py").read_text() == "mine"
    for _ in range(2):
        assert "wrote lists.py" in succeed(*fit, *lists, "--out", "lists.py")
    assert "it exists and normtune did not write it" in refused(*fit, "--out", "lists.py")
