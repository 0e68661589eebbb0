"""`record_shapes` counts what a process calls, and its file is what sweeps and fits read."""

import threading
from pathlib import Path

import pandas as pd
import pytest
import torch

import normtune
from normtune.errors import UsageError
from normtune.heuristics.regret.weights import Weighting
from normtune.kernels import call_counts
from normtune.kernels.operator import operator
from normtune.tuner.plan.grids import shapes_of
from normtune.tuner.sweep.request import Request

BF16 = torch.bfloat16


def drawn(*shape: int, needs_gradient: bool = False) -> torch.Tensor:
    return torch.randn(*shape, dtype=BF16).requires_grad_(needs_gradient)


def lines(shapes: normtune.ShapeCounts) -> set[tuple[object, ...]]:
    """Operator, variant, rows, hidden, count and gradients of each line."""
    frame = shapes.frame()
    assert set(frame.dtype) <= {"bfloat16"}
    columns = ["operator", "variant", "rows", "hidden", "count", "gradients"]
    return set(frame[columns].itertuples(index=False, name=None))


def heads() -> torch.Tensor:
    return normtune.qk_norm(drawn(8, 6, 64, needs_gradient=True), drawn(16), drawn(16), 2, 1)


MODULE = normtune.RMSNorm(64, dtype=BF16)
HEADS = "heads_q=2.heads_k=1.heads=4.rotary_dim=1"
# A call, and operator, variant, rows and hidden of the lines that it makes, with gradients where there are any.
CALLS = {
    "rms_norm": (lambda: normtune.rms_norm(drawn(2, 5, 64), drawn(64)), [("rms_norm_forward", "no_rstd", 10, 64)]),
    "other shape": (
        lambda: normtune.rms_norm(drawn(2, 5, 64), (5, 64), drawn(5, 64)),
        [("rms_norm_forward", "no_rstd", 2, 320)],
    ),
    "module": (
        lambda: MODULE(drawn(3, 64)),
        [("rms_norm_forward", "", 3, 64), ("rms_norm_backward", "", 3, 64)],
    ),
    "without the weight's gradient": (
        lambda: normtune.rms_norm(drawn(3, 64, needs_gradient=True), drawn(64), casting="llama"),
        [
            ("rms_norm_forward", "rounded_product", 3, 64),
            ("rms_norm_backward", "no_dweight+rounded_product", 3, 64),
        ],
    ),
    "fused_add_rms_norm": (
        lambda: normtune.fused_add_rms_norm(drawn(3, 64), drawn(3, 64), drawn(64), in_place=True),
        [("fused_add_rms_norm_forward", "no_rstd", 3, 64)],
    ),
    "rms_norm_gated": (
        lambda: normtune.rms_norm_gated(drawn(3, 64, needs_gradient=True), drawn(64), drawn(3, 64), group_size=16),
        [("rms_norm_gated_forward", "", 12, 16), ("rms_norm_gated_backward", "no_dweight", 12, 16)],
    ),
    "rms_norm_quantize_fp8": (
        lambda: normtune.rms_norm_quantize_fp8(drawn(3, 64), drawn(64), scaling="row").q,
        [("rms_norm_quantize_fp8_row", "", 3, 64)],
    ),
    "transpose_fp8": (
        lambda: normtune.transpose_fp8(drawn(3, 64).to(torch.float8_e4m3fn)),
        [("transpose_fp8", "", 3, 64)],
    ),
    "qk_norm": (
        heads,
        [
            (f"qk_norm.{HEADS}", "out_of_place+no_rotary", 48, 16),
            (f"qk_norm_backward.{HEADS}", "no_dweight+no_rotary", 48, 16),
        ],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_public_function_counts_its_forward_and_its_backward(name) -> None:
    call, expected = CALLS[name]
    with normtune.record_shapes() as shapes:
        y = call()
        y = y[0] if isinstance(y, tuple) else y
        if y.requires_grad:
            y.float().sum().backward()
    found = lines(shapes)
    assert {line[:4] for line in found} == {*expected} and {line[4] for line in found} == {1}
    has_backward = len(expected) > 1
    assert {line[5] for line in found if "qk_norm." not in line[0]} == {has_backward}


def test_compiled_calls_count_each_time_they_run() -> None:
    compiled = torch.compile(lambda x, weight: normtune.rms_norm(x, weight).sum(), backend="aot_eager")
    compiled(drawn(4, 64, needs_gradient=True), drawn(64, needs_gradient=True)).backward()  # as a formula
    with normtune.record_shapes() as shapes:
        for _ in range(3):
            compiled(drawn(4, 64, needs_gradient=True), drawn(64, needs_gradient=True)).backward()
    assert lines(shapes) == {
        ("rms_norm_forward", "", 4, 64, 3, True),
        ("rms_norm_backward", "", 4, 64, 3, True),
    }


def test_what_no_kernel_takes_is_not_counted() -> None:
    x = drawn(2, 8)
    with normtune.record_shapes() as shapes:
        normtune.rms_norm(x.double(), drawn(8).double())
        normtune.rms_norm(drawn(1, 65537), None)
        normtune.rms_norm(drawn(0, 8), drawn(8))
        torch.func.jvp(lambda given: normtune.rms_norm(given, None), (x,), (x,))
        with pytest.raises(ValueError, match="weight has shape"):
            normtune.rms_norm(x, drawn(9))
    assert len(shapes.frame()) == 0
    assert [*shapes.frame()] == ["operator", "variant", "dtype", "count", "gradients"]


def test_contexts_nest_and_all_threads_count() -> None:
    def call() -> None:
        for _ in range(50):
            normtune.rms_norm(drawn(2, 8), None)

    with normtune.record_shapes() as outer:
        normtune.rms_norm(drawn(2, 8), None)
        with normtune.record_shapes() as inner:
            threads = [threading.Thread(target=call) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        normtune.rms_norm(drawn(2, 8), None)
    assert lines(inner) == {("rms_norm_forward", "no_rstd", 2, 8, 200, False)}
    assert lines(outer) == {("rms_norm_forward", "no_rstd", 2, 8, 202, False)}


def test_calls_run_no_code_of_it_while_nobody_records() -> None:
    """Also after contexts that end in another order than they begin, or with an error."""
    usual = [getattr(owner, name) for owner, name, _ in call_counts._CALLS]
    first, second = normtune.record_shapes(), normtune.record_shapes()
    first.__enter__()
    shapes = second.__enter__()
    assert all(getattr(owner, name) is not one for (owner, name, _), one in zip(call_counts._CALLS, usual, strict=True))
    first.__exit__(None, None, None)
    normtune.rms_norm(drawn(2, 8), None)
    assert not second.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert len(shapes.frame()) == 1
    assert [getattr(owner, name) for owner, name, _ in call_counts._CALLS] == usual


@pytest.fixture
def file(tmp_path):
    """The file of a model that calls two operators."""
    with normtune.record_shapes() as shapes:
        for _ in range(3):
            MODULE(drawn(16, 64)).sum().backward()
        with torch.no_grad():
            MODULE(drawn(1, 64))
    shapes.save(tmp_path / "shapes.csv")
    return tmp_path / "shapes.csv"


def test_the_file_has_the_operators_the_dtypes_and_the_counts(file) -> None:
    assert file.read_text() == (
        "operator,dtype,rows,hidden,weight\n"
        "rms_norm_backward,bfloat16,16,64,3\n"
        "rms_norm_forward,bfloat16,16,64,3\n"
        "rms_norm_forward:no_rstd,bfloat16,1,64,1\n"
    )


def test_a_sweep_measures_what_the_file_names_and_options_choose_of_it(file) -> None:
    def wanted(**options: object) -> list[str]:
        return [str(problem) for problem in Request(shapes=file, **options).scope().problems]

    backward, forward = "rms_norm_backward bfloat16 16 x 64", "rms_norm_forward bfloat16 16 x 64"
    no_rstd = "rms_norm_forward:no_rstd bfloat16 1 x 64"
    assert wanted() == [backward, forward, no_rstd]
    assert wanted(operators="rms_norm_forward") == [forward, no_rstd]
    assert wanted(operators="rms_norm_forward:no_rstd", dtypes="bfloat16") == [no_rstd]
    with pytest.raises(UsageError, match=r"shapes\.csv has no line for float32: expected one of rms_norm_backward bf"):
        wanted(dtypes="float32")


def test_lines_without_an_operator_or_a_dtype_are_for_each(tmp_path) -> None:
    path = tmp_path / "shapes.csv"
    path.write_text("rows,hidden,operator,dtype\n1,64,,float16\n2,64,rms_norm_backward,\n2,64,rms_norm_backward,\n")
    asked = Request(shapes=path, operators=("rms_norm_forward", "rms_norm_backward"), dtypes=("float16", "float32"))
    assert [str(problem) for problem in asked.scope().problems] == [
        "rms_norm_forward float16 1 x 64",
        "rms_norm_backward float16 1 x 64",
        "rms_norm_backward float16 2 x 64",
        "rms_norm_backward float32 2 x 64",
    ]
    path.write_text("rows,hidden,operator\n65536,8192,rms_norm_forward\n1,64,rms_norm_backward\n")
    asked_all = Request(shapes=path).scope()
    assert len(asked_all.problems) == 1 and asked_all.too_large == 1
    path.write_text("rows,hidden,operator\n1,64,rms_norm\n")
    with pytest.raises(UsageError, match="unknown operator 'rms_norm'"):
        Request(shapes=path).scope()


def test_the_count_is_the_weight(file) -> None:
    key = operator("rms_norm_forward").key("bfloat16")
    weights = Weighting(str(file)).of(key, [(16, 64), (1, 64)]).tolist()
    assert weights == [2 * 4096 - 1, 1]


def test_an_empty_recording_is_told_and_no_file_is_changed(file) -> None:
    before = file.read_text()
    with normtune.record_shapes() as shapes:
        pass
    with pytest.raises(UsageError, match=r"no call was recorded, so .*shapes\.csv is not written: call normtune's"):
        shapes.save(file)
    with normtune.record_shapes() as shapes:
        normtune.rms_norm(drawn(1, 8), None)
    with pytest.raises(UsageError, match="no call of transpose_fp8 was recorded"):
        shapes.save(file, operators="transpose_fp8")
    assert file.read_text() == before


@pytest.mark.usefixtures("operators_forgotten")
def test_operators_of_other_sizes_are_saved_apart(tmp_path) -> None:
    from normtune.kernels.load_file import load

    load(Path(__file__).parents[3] / "examples" / "matmul.py")
    shapes = normtune.ShapeCounts()
    shapes.add(operator("rms_norm_forward").problem(1, 64, "bfloat16"))
    shapes.add(operator("matmul").problem_at((64, 128, 32), "float16"))
    assert shapes.frame()[["m", "n", "k"]].iloc[0].tolist() == [64, 128, 32]
    assert pd.isna(shapes.frame().iloc[1]["k"])
    path = tmp_path / "shapes.csv"
    with pytest.raises(UsageError, match=r"sizes m, n, k \(matmul\) and rows, hidden \(rms_norm_forward\): save each"):
        shapes.save(path)
    shapes.save(path, operators="matmul")
    assert path.read_text() == "operator,dtype,m,n,k,weight\nmatmul,float16,64,128,32,1\n"
    assert shapes_of(path) == [("matmul", "float16", [(64, 128, 32)], [])]
