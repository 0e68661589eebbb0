"""The digest of a launch's code: changes that alter it, and changes that do not."""

import os
from pathlib import Path

import pytest

from normtune.errors import NormtuneError
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.spec_faults import OperatorError
from normtune.kernels.target import TARGETS
from normtune.results.records import TimedCode, launch_digest
from normtune.tests.commands import printed_by, python
from normtune.tuner.compiling import compiler
from normtune.tuner.compiling import pool as pool_module
from normtune.tuner.compiling.compiler import Compiled
from normtune.tuner.compiling.pool import codes_of, compile_all, jobs_of
from normtune.tuner.plan.binaries import Job
from normtune.tuner.staleness.code import REFUSED, digest_of_assembly, instructions

TARGET = TARGETS["sm_90"]

KERNEL = """
import triton
import triton.language as tl

from normtune.kernels.call import KernelCall

@triton.jit
def _scaled(b_x, FACTOR: tl.constexpr):
    return b_x * FACTOR

@triton.jit
def _kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr, FACTOR: tl.constexpr = 2):
    o_col = tl.arange(0, BLOCK)
    m_col = o_col < columns
    b_x = tl.load(x_ptr + o_col, mask=m_col, other=0.0, eviction_policy="evict_first")
    tl.store(y_ptr + o_col, _scaled(b_x, FACTOR), mask=m_col)

class Tensor:
    def __init__(self, shape):
        self.dtype, self.shape = tl.float32, shape
    def data_ptr(self):
        return 0

def calls(columns=100, grid=(4,), warps=4):
    x, y = Tensor((columns,)), Tensor((columns,))
    return [KernelCall(_kernel, grid, (x, y, columns), {"BLOCK": 128, "num_warps": warps})]
"""

DIGESTS = """
import importlib.util, sys
from normtune.kernels.calling import triton_inside
from normtune.tuner.staleness.code import Assembler, digest_of_launch

triton_inside.compile_for(sys.argv[1])
triton_inside.do_without_torch()
for path in sys.argv[2:]:
    spec = importlib.util.spec_from_file_location(path.rpartition("/")[2][:-3], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for options in ({}, {"columns": 96}, {"grid": (5,)}, {"warps": 8}):
        calls = module.calls(**options)
        print(digest_of_launch(calls, map(Assembler().of_call, calls)).hex(), end=" ")
    print()
"""

SAME = {
    "moved": KERNEL,
    "renamed": KERNEL.replace("_kernel", "_other").replace("_scaled", "_times").replace("o_col", "offsets"),
    "without a function": KERNEL.replace("_scaled(b_x, FACTOR)", "b_x * FACTOR"),
    "lines moved": KERNEL.replace("@triton.jit", "# a comment\n\n@triton.jit"),
}
OTHER = {
    "operation": KERNEL.replace("b_x * FACTOR", "b_x + FACTOR"),
    "eviction": KERNEL.replace("evict_first", "evict_last"),
    "mask": KERNEL.replace("o_col < columns", "o_col <= columns"),
    "default": KERNEL.replace("tl.constexpr = 2", "tl.constexpr = 3"),
    "argument": KERNEL.replace("(x, y, columns)", "(x, x, columns)"),
}


def digests(folder: Path, sources: dict[str, str], target: str = "sm_90", seed: str = "0") -> list[list[str]]:
    """The digests of a module's launches, each module in a file of its own; in another process."""
    paths = []
    for name, text in sources.items():
        paths.append(folder / f"{name.replace(' ', '_')}.py")
        paths[-1].write_text(text)
    told = printed_by(DIGESTS, target, *paths, env={**os.environ, "PYTHONHASHSEED": seed})
    return [line.split() for line in told.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "unused"), [("sm_90", []), ("gfx942", ["eviction"])])
def test_names_and_places_do_not_count_and_all_that_is_compiled_does(tmp_path, target, unused):
    plain, *found = digests(tmp_path, {"plain": KERNEL, **SAME, **OTHER}, target)
    assert len(set(plain)) == len(plain)
    assert found[: len(SAME)] == [plain] * len(SAME)
    for name, other in zip(OTHER, found[len(SAME) :], strict=True):
        assert other == plain if name in unused else not set(other) & set(plain), name


@pytest.mark.slow
def test_an_interface_of_triton_that_is_gone_costs_a_binary_and_no_digest():
    script = Path(__file__).with_name("without_interfaces.py")
    ran = python(script)  # a compiler's process prints on stderr
    assert ran.returncode == 0, ran.stderr
    told = [line.split("|") for line in ran.stderr.splitlines()]
    assert {status for _, _, status, _ in told} == {"ok"}
    compiled = {f"{of} {name}" for of, name, _, has_binary in told if has_binary == "True"}
    assert compiled >= {"runtime jit_cache_hook", "triton.compiler make_backend", "ir context", "backend add_stages"}


@pytest.fixture
def job():
    spec = operator("rms_norm_forward")
    problem = spec.problem(64, 256, "bfloat16")
    launch = spec.launch(spec.default_config(problem, TARGET), problem, TARGET)
    return Job(problem, launch, ((problem, launch),))


@pytest.mark.parametrize(
    ("name", "error", "kind", "told"),
    [
        ("_calls", OperatorError("operator 'x': its calls raises"), OperatorError, "^operator 'x': its calls raises$"),
        (
            "warmup",
            OSError(28, "No space left on device"),
            NormtuneError,
            r"^no kernel can be compiled \(OSError: .* No s",
        ),
        (
            "_described",
            AttributeError("no asm"),
            NormtuneError,
            r"^normtune cannot read .* \(AttributeError: no asm\): ",
        ),
        ("_described", NormtuneError("cuobjdump is missing"), NormtuneError, "^cuobjdump is missing$"),
    ],
)
def test_what_fails_besides_the_compiler_is_no_outcome(monkeypatch, job, name, error, kind, told):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(compiler, "warmup", lambda calls: [])
    monkeypatch.setattr(compiler, name, fail)
    with pytest.raises(kind, match=told):
        compiler.compile_job(job, False)


@pytest.mark.parametrize("error", [RuntimeError("PassManager::run failed"), AssertionError("num_warps"), KeyError("a")])
def test_what_the_compiler_raises_is_the_outcome_of_the_config(monkeypatch, job, error):
    def fail(calls):
        raise error

    monkeypatch.setattr(compiler, "warmup", fail)
    done = compiler.compile_job(job, False)
    (code,) = done.codes
    assert (done.status, code.assembly) == ("compile_error", REFUSED) and type(error).__name__ in done.reason


CALLING = """
import tempfile
from normtune.kernels.operator import operator
from normtune.tuner.compiling import compiler
from normtune.tuner.plan.plan import plan
from normtune.kernels.target import TARGETS
compiler.activate("sm_90", 0, tempfile.mkdtemp())
spec = operator("rms_norm_forward")
made = spec.calls_function()
for change in ({"options": {"nonsense": 3}}, {"args": ()}):
    def calls(*arguments, **scalars):
        return [call._replace(**{name: call.options | value if value else value for name, value in change.items()})
                for call in made(*arguments, **scalars)]
    object.__setattr__(spec, "calls_function", lambda: calls)
    try:
        job = plan([spec.problem(64, 256, "bfloat16")], "portfolio", TARGETS["sm_90"]).jobs()[0]
        print(compiler.compile_job(job, False))
    except RuntimeError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_calls_that_do_not_fit_their_kernel_are_told():
    ran = python("-c", CALLING)
    unknown, missing = ran.stderr.splitlines()
    begin = "OperatorError operator 'rms_norm_forward': its call of "
    assert unknown.startswith(begin) and "does not fit the kernel (KeyError: 'Keyword argument nonsense" in unknown
    assert missing.startswith(begin) and "does not fit the kernel (TypeError: " in missing
    assert unknown.endswith(", for rms_norm_forward bfloat16 64 x 256")


@pytest.mark.parametrize(("status", "assembly"), [("crashed", b""), ("ok", b"digest"), ("compile_error", REFUSED)])
def test_the_digest_of_a_compiler_that_died_is_empty(monkeypatch, job, status, assembly):
    (pair,) = job.serves
    code = TimedCode(launch_digest(pair[1]), assembly)
    done = Compiled(job, status, codes=(code,) if assembly else ())
    monkeypatch.setattr(pool_module.CompilePool, "__iter__", lambda pool: iter([done]))
    assert codes_of([pair], "sm_90", 1) == {pair: code}


@pytest.mark.slow
def test_digests_are_the_same_in_every_process(tmp_path):
    assert digests(tmp_path, {"plain": KERNEL}, seed="1") == digests(tmp_path, {"plain": KERNEL}, seed="2")


PTX = """//
// Generated by LLVM NVPTX Back-End
//
.version 8.7
.target sm_90a

	// .globl	{name} // -- Begin function {name}
.extern .func  (.param .b32 func_retval0) vprintf
.visible .entry {name}(
	.param .u64 .ptr .global .align 1 {name}_param_0
)
.reqntid 128
{{
	.loc	1 {line} 0                         // {file}:{line}:0
$L__func_begin0:
	ld.param.b64 	%rd1, [{name}_param_0];
$L__tmp{line}:
	.loc	1 {line} 5
	{code}
	bra 	$L__BB0_2;
	ret;
}}
	.file	1 "{file}"
	.section	.debug_abbrev
	{{
.b8 {line}
	}}
"""
AMDGCN = """	.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
	.text
	.globl	{name}        ; -- Begin function {name}
	.type	{name},@function
{name}:               ; @{name}
.Lfunc_begin0:
	.cfi_startproc
	.file	1 "{file}" "forward.py"
	.loc	1 {line} 0 prologue_end            ; forward.py:{line}:0
	{code}
.Ltmp{line}:
	s_endpgm
	.section	.debug_str,"MS",@progbits,1
	.asciz	"{file}"
	.ident	"clang {line}"
	.amdgpu_metadata
    .name:           {name}
    .symbol:         {name}.kd
    .vgpr_count:     13
	.end_amdgpu_metadata
	.section	.debug_line,"",@progbits
	.byte {line}
"""


@pytest.mark.parametrize(
    ("kind", "text", "code", "expected"),
    [
        (
            "ptx",
            PTX,
            "add.s64 %rd2, %rd1, 4; // kernel.py",
            [
                ".target sm_90a",
                ".extern .func  (.param .b32 func_retval0) vprintf",
                ".visible .entry f0(",
                ".param .u64 .ptr .global .align 1 f0_param_0",
                ")",
                ".reqntid 128",
                "{",
                "ld.param.b64 	%rd1, [f0_param_0];",
                "add.s64 %rd2, %rd1, 4;",
                "bra 	$L__BB0_2;",
                "ret;",
                "}",
            ],
        ),
        (
            "amdgcn",
            AMDGCN,
            "s_mov_b64 s[20:21], s[4:5] ; moved",
            [
                '.amdgcn_target "amdgcn-amd-amdhsa--gfx942"',
                ".text",
                ".globl	f0",
                ".type	f0,@function",
                "f0:",
                "s_mov_b64 s[20:21], s[4:5]",
                "s_endpgm",
                ".amdgpu_metadata",
                ".name:           f0",
                ".symbol:         f0.kd",
                ".vgpr_count:     13",
                ".end_amdgpu_metadata",
            ],
        ),
    ],
)
def test_instructions_are_without_names_and_positions(kind, text, code, expected):
    one = instructions(kind, text.format(name="kernel", line=7, file="/a/b.py", code=code))
    assert one.split("\n") == expected
    assert instructions(kind, text.format(name="_other", line=99, file="/c.py", code=code)) == one
    assert instructions(kind, text.format(name="kernel", line=7, file="/a/b.py", code="nop")) != one


def test_functions_are_named_by_their_order_and_other_words_left_alone():
    text = ".func  (.param .b32 func_retval0) one(\n.visible .entry one_more(\ncall one, one.x, $one; one_more_param_0"
    named = ".func  (.param .b32 func_retval0) f0(\n.visible .entry f1(\ncall f0, f0.x, $one; f1_param_0"
    assert instructions("ptx", text) == named


@pytest.mark.slow
def test_every_launch_has_a_digest_of_its_own_whatever_job_it_is_compiled_in():
    spec = operator("rms_norm_backward")
    pairs = []
    for rows in (64, 4096):
        problem = spec.problem(rows, 1024, "bfloat16")
        config = RMSNormConfig("persistent", num_warps=4, programs_per_sm=2, finish="reduce")
        pairs.append((problem, spec.resolve(config, problem, TARGET, None)))
    assert len(jobs_of(pairs)) == 1
    together = codes_of(pairs, "sm_90", 1)
    assert len({code.assembly for code in together.values()}) == 2
    assert together == {pair: codes_of([pair], "sm_90", 1)[pair] for pair in pairs}
    (done,) = compile_all(jobs_of(pairs), "sm_90", 1)
    assert [*done.codes] == [together[pair] for pair in pairs]
    # The kernel that sums 64 partial sums is not the one that sums 264.
    assert len({code.assembly for code in done.codes}) == 2


ASSEMBLY = """.visible .entry kernel(
.param .u64 .ptr .global .align 1 kernel_param_0,
.param .u64 .ptr .global .align 1 kernel_param_1,
.param .u32 kernel_param_2
)
{
ld.param.b64 %rd1, [kernel_param_0];
ld.param.b64 %rd2, [kernel_param_1];
mov.u32 %r1, %tid.x;
and.b32 %r2, %r1, 31;
shl.b32 %r3, %r1, 3;
sub.s32 %r4, %r2, %r3;
bra $L__BB0_1;
$L__BB0_1:
ld.global.b32 %r5, [%rd1+4];
add.s32 %r6, %r5, %r4;
st.global.b32 [%rd2], %r6;
ret;
}"""
MASK, SHIFT = "and.b32 %r2, %r1, 31;", "shl.b32 %r3, %r1, 3;"
SAME_CODE = {
    "order within a block": [
        ("and.b32 %r2, %r1, 31;\nshl.b32 %r3, %r1, 3;", "shl.b32 %r3, %r1, 3;\nand.b32 %r2, %r1, 31;")
    ],
    "numbers of registers": [("%r2", "%r9"), ("%rd1", "%rd7")],
    "another parameter": [("kernel_param_1", "kernel_param_5"), (".param .u32 kernel_param_2\n", "")],
}
OTHER_CODE = {
    "operands in another order": ("sub.s32 %r4, %r2, %r3", "sub.s32 %r4, %r3, %r2"),
    "another operand": ("add.s32 %r6, %r5, %r4", "add.s32 %r6, %r5, %r3"),
    "another constant": ("%r1, 31", "%r1, 15"),
    "another address": ("[%rd1+4]", "[%rd2+4]"),
    "tensors in one another's place": ("[kernel_param_0];\nld.param.b64 %rd2", "[kernel_param_0];\nld.param.b64 %rd1"),
    "an instruction in another block": (
        "bra $L__BB0_1;\n$L__BB0_1:\nld.global.b32 %r5, [%rd1+4];",
        "ld.global.b32 %r5, [%rd1+4];\nbra $L__BB0_1;\n$L__BB0_1:",
    ),
    "an instruction less": ("and.b32 %r2, %r1, 31;\n", ""),
}


@pytest.mark.parametrize("edits", SAME_CODE.values(), ids=SAME_CODE)
def test_neither_order_nor_numbers_nor_parameters_count(edits):
    text = ASSEMBLY
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    assert digest_of_assembly("ptx", text, {}) == digest_of_assembly("ptx", ASSEMBLY, {})


@pytest.mark.parametrize("edit", OTHER_CODE.values(), ids=OTHER_CODE)
def test_what_the_instructions_compute_counts(edit):
    old, new = edit
    assert old in ASSEMBLY
    assert digest_of_assembly("ptx", ASSEMBLY.replace(old, new), {}) != digest_of_assembly("ptx", ASSEMBLY, {})
