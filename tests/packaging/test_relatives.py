"""The cases of `benchmarks/peers.py` and `relatives.py` without a GPU: their checks, the table of the relatives."""

import json
from pathlib import Path

import pytest
import torch

from normtune.benchmarks import beside, cases, relatives_report
from normtune.benchmarks.cases import CASES, RMS_NORM
from normtune.benchmarks.sides import Function, Side, Tensors
from normtune.kernels.problem import ITEMSIZE

pytestmark = pytest.mark.slow  # a benchmark, or what documents say of it

# (formula that Inductor compiles) of each case.
PLAIN = {
    **dict.fromkeys(RMS_NORM, lambda given: CASES["forward"].sides["torch"]().make(*given["x"].shape)(given)),
    "fused_add": cases._plain_fused_add,
    "gated": cases._plain_gated,
    "fp8_static": cases._plain_fp8_static,
    "fp8_row": cases._plain_fp8(None),
    "fp8_block": cases._plain_fp8(128),
    "fp8_transpose": cases._plain_fp8_transpose,
}


def check(function: Function, name: str, dtype: str = "float32") -> None:
    torch.manual_seed(0)
    side = Side("1", lambda rows, hidden: function)
    beside.check(function, side, CASES[name], dtype, 40, 256, device="cpu")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_normtune_and_the_formula_of_its_peers_pass_the_check(name: str, dtype: str) -> None:
    check(cases.ours(CASES[name]), name, dtype)
    check(PLAIN[name if name in PLAIN else name.removesuffix("_backward")], name, dtype)


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_result_is_told(name: str) -> None:
    right = cases.ours(CASES[name])

    def wrong(given: Tensors) -> tuple[torch.Tensor, ...]:
        return right({**given, "x": given["x"] * (1.0 + 0.2 * (given["weight"] > 0))})

    with pytest.raises(ValueError, match=r"(result 0|dx) is off by 0\."):
        check(wrong, name)


def test_the_chain_of_torch_is_a_gated_norm() -> None:
    check(cases._chained_gate, "gated")
    check(cases._chained_gate, "gated_backward")


@pytest.mark.parametrize("name", CASES)
def test_a_perfect_kernel_moves_what_the_case_reads_and_writes(name: str) -> None:
    spec, problem = beside.problem_of(name, "bfloat16", 4096, 1024)
    read = sum(
        torch.Size(buffer.shape).numel() * ITEMSIZE[buffer.dtype]
        for buffer in beside.buffers_of(CASES[name], "bfloat16", 4096, 1024)
    )
    written = spec.bytes_moved(problem) - read
    rows = 4096 * 1024
    # Elements written, and read beside what a call is given, in bytes.
    elements = dict.fromkeys((*RMS_NORM, "gated", "fp8_transpose"), 2) | {
        "fused_add": 4,
        "fused_add_backward": 2 - 2,
        "gated_backward": 4,
    }
    moved = elements.get(name, 1) * rows
    assert moved <= written <= 1.04 * moved + 40 * 1024


def test_the_table(tmp_path: Path) -> None:
    cells = [
        {
            "pass": name,
            "dtype": "bfloat16",
            "rows": rows,
            "hidden": 4096,
            "bytes": rows * 16384,
            "device": "GPU",
            "sides": {"normtune": {"version": "1", "median_us": 10.0 * rows}, "copy": {"median_us": 8.0 * rows}}
            | {"inductor": {"version": "2", "median_us": 20.0 * rows}},
        }
        for name in ("fused_add", "gated")
        for rows in (1, 8192)
    ]
    path = tmp_path / "relatives.jsonl"
    path.write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    text = relatives_report.report(path)
    assert "| fused_add, bfloat16 | 1.250 | 1.250 | 1 |" in text
    assert "| 8192 x 4096 | 65536.00 | 81920.00 | 163840.00 | 0.50 | 1.25 |" in text
