"""Number of leaves of a function of its own, if its data are fewer than those of the function it could share."""

import math
from types import SimpleNamespace

import pandas as pd
import pytest
import triton
import triton.language as tl

import normtune
from normtune.heuristics.fitting.sharing import least_legal, leaves_of_its_own
from normtune.kernels import operator
from normtune.results.elsewhere import Elsewhere
from normtune.results.exchange.dataframe import evidence_of
from normtune.tests.commands import main
from normtune.tests.heuristics.made_up import as_measured


def of(problems: int) -> SimpleNamespace:
    return SimpleNamespace(problems=tuple((rows, 64) for rows in range(1, problems + 1)))


def donor(leaves: int, problems: int) -> SimpleNamespace:
    return SimpleNamespace(figures=SimpleNamespace(leaves=leaves, loss=SimpleNamespace(problems=problems)))


@pytest.mark.parametrize(
    ("problems", "leaves", "lent", "allowed"),
    [
        (418, 32, 418, 32),  # measured as widely: as many
        (500, 32, 418, 32),  # never more
        (62, 32, 418, 6),  # one for ten problems
        (330, 32, 418, 32),  # ten problems each are there
        (12, 6, 12, 6),  # a small grid measured as widely
        (6, 6, 12, 3),  # as many problems each as the donor's, where that is more
        (2, 6, 40, 1),
    ],
)
def test_leaves_for_as_many_problems_each_or_for_ten(problems: int, leaves: int, lent: int, allowed: int) -> None:
    assert leaves_of_its_own(of(problems), donor(leaves, lent)) == allowed


def test_more_leaves_only_where_fewer_are_not_legal() -> None:
    optima = SimpleNamespace(least=lambda leaves: None if leaves < 4 else 0)
    assert [least_legal(optima, count, 6) for count in (1, 4, 5)] == [4, 4, 5]
    assert least_legal(optima, 1, 3) is None


class Tile(normtune.Config):
    """Made-up tiles."""

    block: int
    num_warps: int = 4


@triton.jit
def _tile_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < count), mask=offsets < count)


def declare(name, legal):
    """Declare an operator, of which the compiler or `legal` says what can run."""

    def function(x, y, config):
        _tile_kernel[(math.ceil(x.numel() / config.block),)](x, y, x.numel(), config.block, num_warps=config.num_warps)

    normtune.kernel_operator(
        name=name,
        config=Tile,
        space={"block": (64, 4096), "num_warps": (4,)},
        buffers={"x": "input", "y": "output"},
        reference=lambda x: x,
        legal=legal,
    )(function)


def fitted(name, dtypes, only_narrow=()):
    """A fit of made-up times; `only_narrow` were timed in bfloat16 alone."""
    rows = [
        (name, dtype, size, 64, Tile(block, 4), 1000 + block // 8 + (size if block == 64 else 0))
        for dtype in dtypes
        for size in (1, 64, 4096, 65536)
        for block in (64, 4096)
        if dtype == "bfloat16" or block not in only_narrow
    ]
    frame = pd.DataFrame(rows, columns=["operator", "dtype", "rows", "hidden", "config", "nanoseconds"])
    device = Elsewhere(name="NVIDIA H200", target="sm_90").device()
    return normtune.fit(as_measured(evidence_of(frame, device)), tie_percent=0, leaves=4)


def answers(table):
    """The dtypes with a function."""
    return {key.dtype for function in table.functions for key in function.served}


@pytest.mark.parametrize(
    ("dtypes", "legal", "expected"),
    [
        (("bfloat16",), None, {"bfloat16", "float16"}),
        (("bfloat16",), lambda config, problem, target: True, {"bfloat16", "float16", "float32"}),
        (("float32",), None, {"bfloat16", "float16", "float32"}),
        (("bfloat16", "float32"), None, {"bfloat16", "float16", "float32"}),
    ],
)
@pytest.mark.usefixtures("operators_forgotten")
def test_a_wider_dtype_takes_a_function_only_if_its_configs_are_known_to_fit(dtypes, legal, expected) -> None:
    declare("tiled", legal)
    assert answers(fitted("tiled", dtypes)) == expected


@pytest.mark.usefixtures("operators_forgotten")
def test_a_measured_wider_dtype_takes_no_config_that_was_not_timed_in_it() -> None:
    declare("tiled", None)
    table = fitted("tiled", ("bfloat16", "float32"), only_narrow=(4096,))
    assert {table.lookup("tiled", "float32", rows, 64).block for rows in (1, 65536)} == {64}
    assert {table.lookup("tiled", "bfloat16", rows, 64).block for rows in (1, 65536)} == {64, 4096}


@pytest.mark.usefixtures("operators_forgotten")
def test_check_finds_a_table_that_answers_for_a_dtype_whose_configs_may_not_fit(tmp_path) -> None:
    declare("tiled", lambda config, problem, target: True)
    path = tmp_path / "tiled_h200.py"
    fitted("tiled", ("bfloat16",)).save(path)
    done = main("check", "--quick", path)
    assert "was not measured" not in done.output, done.output
    del operator._OPERATORS["tiled"]
    declare("tiled", None)
    done = main("check", "--quick", path)
    assert done.exit_code == 1 and "tiled float32: it was not measured, and configs of bfloat16 may need" in done.output
