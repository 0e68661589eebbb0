"""`normtune inspect` tells each mistake in one line that says what to do, and a sound operator what it launches."""

from pathlib import Path

import pytest

import normtune
from normtune.errors import UsageError
from normtune.tests.commands import main
from normtune.tuner.inspection import gate

EXAMPLES = Path(__file__).parents[3] / "examples"
MISTAKES = Path(__file__).with_name("mistakes.py")
HABITS = Path(__file__).with_name("habits.py")
pytestmark = [pytest.mark.long, pytest.mark.usefixtures("operators_forgotten")]

# Of each operator of `mistakes` its exit code, and what its fault, or its warning, begins with and contains.
TOLD = {
    "right": (0, "", ""),
    "knob_misspelt": (2, "'TileConfig' object has no attribute 'blok' (mistakes.py, line ", ""),
    "knob_not_passed_on": (0, "", "the knob num_warps changes no launch: pass it to the kernel, or leave it out"),
    "host_read": (2, "item() reads the values of a tensor: expected launches that depend on shapes alone", ""),
    "never_returned": (1, "the output y is passed to no kernel: pass it, or if the function allocates it", ""),
    "returning_nothing": (2, "its function returning_nothing returns nothing: expected y", ""),
    "two_kernels": (0, "", "the output y is passed to 2 kernels: right if the later ones read it; if they overwrite"),
    "argument_forgotten": (2, "_double is given no count (mistakes.py, line ", ""),
    "odd_block": (1, "does not compile for sm_90: CompilationError: at 2:41: arange's range must be a power of 2", ""),
    "swapped": (1, "y: 481 of 481 elements are NaN or unwritten; x: is an input and was written: does the grid", ""),
    "input_written": (1, "x: is an input and was written: is it in-out, or swapped with an output?", ""),
    "low_reference": (
        1,
        "wrong result: y: error is",
        "the reference returns y in float16: expected float64, like its in",
    ),
    "other_shape": (2, "its reference returns y of float64 (13, 36): expected float64 (13, 37)", ""),
    "reference_of_none": (2, "its reference returns NoneType for y: expected a tensor", ""),
    "import_missing": (2, "its reference raises NameError: name 'numpy' is not defined (mistakes.py, line ", ""),
    "function_without_import": (2, "raises NameError: name 'math' is not defined (mistakes.py, line ", ""),
    "unmasked_store": (
        1,
        "_unmasked_store writes 31 elements behind the end of y_ptr: expected a mask, or another",
        "",
    ),
    "unmasked_load": (1, "_unmasked_load reads 31 elements behind the end of x_ptr: expected a mask, or another", ""),
    "rounds_down": (1, "y: 33 of 481 elements are NaN or unwritten: does the grid cover all of them, and does", ""),
    "racing_rows": (1, "_racing_rows writes elements of y_ptr that another program also writes: the last", ""),
    "racing_sums": (1, "_row_sums reads elements of y_ptr that another program writes: their order is not", ""),
    "rows_in_turn": (
        1,
        "y: 49152 of 65536 elements are NaN or unwritten: does the grid cover all of them, and does",
        "several programs of _rows_in_turn write the same elements of y_ptr, here equal values: is each row of its own",
    ),
    "rows_repeated": (0, "", "several programs of _rows_in_turn write the same elements of y_ptr, here equal"),
    "rounded_on_the_way": (1, "times what rounding allows: 1.", ""),
    "cpu_tensor": (2, "the tensor y_ptr of _double is on the CPU: expected device=x.device", ""),
    "other_dtype": (2, "its function of_another_dtype returns y of float32 (7, 100): expected float16 (7, 100)", ""),
    "unknown_option": (2, "_double takes no BLOCKS, nor does the compiler (mistakes.py, line ", ""),
    "input_forgotten": (0, "", "bias is passed to no kernel: pass it, or leave it out of buffers"),
    "never_legal": (1, "no config can run any of the tried shapes: illegal: `legal` of the operator refuses it", ""),
    "wrong_factor": (1, "times what rounding allows: more than roundings explain, for warps=1 at wrong_factor", ""),
    "infinite_reference": (1, "", "the reference gives y infinite or NaN values, which no kernel can match"),
    "nothing_launched": (2, "its function <lambda> launches nothing: expected kernel[grid](...) of a function of", ""),
    "float_promoted": (
        0,
        "",
        "_scaled computes in fp64 where torch.compile sees its launch, as Inductor passes the float factor as fp64: "
        "make it tl.constexpr, or begin the kernel with factor = factor.to(tl.float32)",
    ),
    "float_in_a_loop": (0, "", "_scaled_by_turns does not compile where torch.compile sees its launch, as Inductor"),
    "float_in_a_tuple": (0, "", "_scaled_in_a_tuple does not compile where torch.compile sees its launch, as Inductor"),
    "float_cast": (0, "", ""),
}


@pytest.mark.slow
def test_each_mistake_is_told_in_one_line_that_says_what_to_do() -> None:
    found = normtune.inspect_operator(MISTAKES)
    assert [one.operator for one in found] == list(TOLD)
    for one in found:
        code, fault, warning = TOLD[one.operator]
        assert one.exit_code == code, one
        assert bool(one.faults) == bool(code)
        assert any(fault in line for line in one.faults) or not fault, one
        assert any(line.startswith(warning) for line in one.warnings) if warning else not one.warnings, one
        assert not any("\n" in line for line in (*one.faults, *one.warnings))


@pytest.mark.slow
def test_what_libraries_do_around_their_launches_is_no_fault() -> None:
    found = normtune.inspect_operator(HABITS)
    assert len(found) == 11 and not any(one.faults or one.warnings for one in found)
    gated = [text for one in found for title, text in one.lines if title == "gate"]
    assert len(gated) == 11 and all(text.startswith(("10 of 10 launches", "6 of 6 launches")) for text in gated)
    (described,) = [one for one in found if one.operator == "by_descriptor"]
    launches = [text for title, text in described.lines if title == "launch"]
    assert "y=y: fp32 in blocks of [1, 16]" in launches[0]


def test_a_sound_operator_is_described() -> None:
    done = main("inspect", EXAMPLES / "softmax.py")
    assert done.exit_code == 0, done.output
    lines = {line.split()[0]: line for line in done.output.splitlines()}
    assert "softmax float32 13 x 37, 3848 bytes moved" in lines["problem"]
    assert (
        "_softmax_kernel[13](x_ptr=x: fp32, y_ptr=y: fp32, rows=13 any, hidden=37 any, BLOCK_COL=64" in lines["launch"]
    )
    assert "12 of 12 launches are right in Triton's interpreter, at 13 x 37 in float32, 7 x 100 in" in lines["gate"]
    assert lines["gate"].endswith("16 x 4096 in float16")
    assert "normtune: softmax: 12 launches in Triton's interpreter ..." in done.stderr
    assert "registers, 0 bytes spilled" in lines["compiled"] and "y (13, 37)" in lines["reference"]
    assert done.output.splitlines()[-1] == "softmax: no faults"


ENDLESS = """
import torch, triton, triton.language as tl
from normtune import Config, kernel_operator


class Warps(Config):
    num_warps: int = 4


@triton.jit
def _kernel(x_ptr, y_ptr, count, is_endless: tl.constexpr):
    step = 0
    while step < 2:
        step += 1 - is_endless
    offsets = tl.program_id(0) * 4096 + tl.arange(0, 4096)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < count) * 2, mask=offsets < count)


def declare(name, is_endless):
    @kernel_operator(
        name=name,
        config=Warps,
        space={"num_warps": (1, 4)},
        buffers={"x": "input", "y": "output"},
        reference=lambda x: 2 * x,
    )
    def function(x, y, config):
        _kernel[(triton.cdiv(x.numel(), 4096),)](x, y, x.numel(), is_endless, num_warps=config.num_warps)


declare("endless", True)
declare("sound", False)
"""


@pytest.mark.slow
def test_the_limit_of_one_operator_is_no_fault_and_leaves_the_others_alone(tmp_path, monkeypatch) -> None:
    file = tmp_path / "endless.py"
    file.write_text(ENDLESS)
    monkeypatch.setattr(gate, "LIMIT_SECONDS", 4)
    done = main("inspect", file)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert "endless: no faults, 6 launches not checked" in lines and lines[-1] == "sound: no faults"
    assert any("0 of 6 launches are right" in line and "6 were not checked: they take over" in line for line in lines)
    assert lines.index("endless: no faults, 6 launches not checked") < lines.index("sound for sm_90")


LARGE_TILES = """
import torch, triton, triton.language as tl
from normtune import Config, kernel_operator


class Stages(Config):
    num_stages: int = 4


@triton.jit
def _kernel(x_ptr, w_ptr, y_ptr, rows, hidden):
    m, n, k = tl.arange(0, 128)[:, None], tl.program_id(0) * 128 + tl.arange(0, 128)[None], tl.arange(0, 64)
    total = tl.zeros((128, 128), tl.float32)
    for start in range(0, hidden, 64):
        x = tl.load(x_ptr + m * hidden + start + k[None], mask=m < rows, other=0.0)
        total = tl.dot(x, tl.load(w_ptr + (start + k[:, None]) * hidden + n), total)
    tl.store(y_ptr + m * hidden + n, total.to(y_ptr.dtype.element_ty), mask=m < rows)


@kernel_operator(
    config=Stages,
    space={"num_stages": (2, 6)},
    buffers={"x": "input", "w": "weight hidden,hidden", "y": "output"},
    reference=lambda x, w: x @ w,
)
def large_tiles(x, w, y, config):
    _kernel[(x.shape[1] // 128,)](x, w, y, *x.shape, num_stages=config.num_stages)
"""


@pytest.mark.slow
def test_compiling_ahead_counts_what_needs_more_shared_memory_than_there_is(tmp_path) -> None:
    file = tmp_path / "large_tiles.py"
    file.write_text(LARGE_TILES)
    ahead = ("compile", "sm_90", tmp_path / "binaries", "--shapes", "128x512", "--operator", "large_tiles")
    done = main("--load", file, *ahead, "--dtype", "float32")
    assert "bytes of shared memory exceed 232448" in done.output and "failures: none" not in done.output, done.output
    done = main("--load", file, *ahead, "--dtype", "bfloat16")
    assert "failures: none" in done.output, done.output


def test_what_cannot_be_looked_at_is_told(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"has no operator 'sofmax': expected one of softmax"):
        normtune.inspect_operator(EXAMPLES / "softmax.py", operator="sofmax")
    with pytest.raises(UsageError, match="unknown target 'h200'"):
        normtune.inspect_operator(EXAMPLES / "softmax.py", target="h200")
    done = main("inspect", tmp_path / "nothing.py")
    assert (
        done.exit_code == 2
        and "cannot load operators from" in done.output
        and "expected an existing Python file" in done.output
    )


@pytest.mark.slow
def test_the_exit_code_is_that_of_the_worst_fault() -> None:
    done = main("inspect", MISTAKES, "--operator", "other_shape")
    assert done.exit_code == 2 and done.output.splitlines()[-1] == "other_shape: 1 fault"


PLAN = ("--shapes", "16x64", "--dtype", "float16")
TOLD_BY_PLAN = {
    "knob_misspelt": (
        2,
        "operator 'knob_misspelt': its function function raises AttributeError: 'TileConfig' object has",
    ),
    "never_legal": (1, "no config is legal at 1 problem: `inspect` of its file looks for the reason"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOLD_BY_PLAN)
def test_a_plan_of_an_operator_at_fault_is_neither_empty_nor_done(name) -> None:
    code, told = TOLD_BY_PLAN[name]
    done = main("--load", MISTAKES, "sweep", "--operator", name, *PLAN, "--dry-run", "--device", "replay:nvidia-h200")
    assert (done.exit_code, told in done.output, "stored already" in done.output) == (code, True, False), done.output


@pytest.mark.slow
def test_compiling_ahead_tells_what_cannot_be_compiled(tmp_path) -> None:
    ahead = ("compile", "sm_90", tmp_path, *PLAN)
    done = main("--load", MISTAKES, *ahead, "--operator", "odd_block")
    assert done.exit_code == 1 and "nothing could be compiled for sm_90: all 2 binaries failed" in done.output
    done = main("--load", MISTAKES, *ahead, "--operator", "host_read")
    assert done.exit_code == 2 and "item() reads the values of a tensor" in done.output
