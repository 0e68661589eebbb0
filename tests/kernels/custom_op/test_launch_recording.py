"""What a function launches is found without launching it, whatever it does with its tensors besides."""

import sys
from pathlib import Path
from typing import Annotated

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction, KernelInterface

from normtune.kernels import fingerprint, load_file
from normtune.kernels.config import Config
from normtune.kernels.custom_op.decorator import kernel_operator
from normtune.kernels.operator import operator
from normtune.kernels.spec_faults import OperatorError
from normtune.kernels.target import TARGETS
from normtune.tuner.compiling.pool import compile_all
from normtune.tuner.plan.binaries import jobs_of
from normtune.tuner.plan.plan import candidates

H200 = TARGETS["sm_90"]
pytestmark = pytest.mark.usefixtures("operators_forgotten")


class TileConfig(Config):
    """How the scaling is launched."""

    BLOCK: Annotated[int, "elements a program."] = 64
    num_warps: Annotated[int, "warps a program."] = 4


@triton.jit
def _scale_kernel(x_ptr, y_ptr, count, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * factor, mask=mask)


def scale(x):
    """As a library writes it: it allocates, and decides by dtype, device and shape."""
    assert x.is_cuda and x.device.type == "cuda" and x.dtype in (torch.float16, torch.bfloat16, torch.float32)
    flat = x.contiguous().view(-1)
    y = torch.empty_like(flat)
    with torch.cuda.device(x.device):
        grid = (triton.cdiv(flat.numel(), 128),)
        _scale_kernel[grid](flat, y, flat.numel(), 2.0, BLOCK=128, num_warps=8)
    return y.view(x.shape)


ARGUMENTS = {
    "config": TileConfig,
    "space": {"BLOCK": (64, 128), "num_warps": (1, 4)},
    "buffers": {"x": "input", "y": "output"},
    "reference": lambda x: 2 * x,
    "name": "scaled",
}


def declared(function=scale, **changes):
    """The spec of an operator that doubles."""
    kernel_operator(**(ARGUMENTS | changes))(function)
    return operator((ARGUMENTS | changes)["name"])


def launch_of(spec, config=TileConfig(64, 4), rows=3, hidden=40, dtype="float16"):  # noqa: B008
    return spec.launch(config, spec.problem(rows, hidden, dtype), H200)


def given(launch, call=0):
    """The arguments of a recorded call by name."""
    return dict(launch.calls[call][2])


def test_a_launcher_of_a_library_runs_unchanged_with_the_knobs_of_a_config() -> None:
    spec = declared()
    launch = launch_of(spec)
    assert launch.runs_function and launch.grid == 1
    assert (given(launch)["BLOCK"], given(launch)["num_warps"]) == (("int", "64"), ("int", "4"))
    assert given(launch)["y_ptr"] == ("", "fp16", (120,), (1,), 0)
    assert given(launch)["x_ptr"] == ("x", "fp16", (120,), (1,), 0)
    kept, _ = candidates(
        spec, spec.configs("default", spec.problem(3, 40, "float16"), H200), spec.problem(3, 40, "float16"), H200
    )
    assert len(kept) == 4


@torch.library.custom_op("normtune_tests::scale_into", mutates_args={"y"})
def scale_into(x: torch.Tensor, y: torch.Tensor) -> None:
    assert x.is_cuda
    y.zero_()
    torch.library.wrap_triton(_scale_kernel)[(1,)](x, y, x.numel(), 2.0, 1024)


def test_kernels_in_operations_of_torchs_library_are_recorded() -> None:
    def function(x):
        y = torch.empty_like(x)
        scale_into(x, y)
        return y

    launch = launch_of(declared(function))
    assert launch.operations == ("aten::zero_",)
    assert (given(launch)["x_ptr"], given(launch)["y_ptr"][:3]) == (("x", "fp16"), ("", "fp16", (3, 40)))


def test_a_knob_replaces_an_argument_that_is_given_by_position() -> None:
    def function(x, y):
        _scale_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel(), 2.0, 1024)

    launch = launch_of(declared(function))
    assert (launch.grid, given(launch)["BLOCK"]) == (2, ("int", "64"))


def test_operations_of_torch_are_part_of_a_launch() -> None:
    def summed(x):
        y = torch.zeros_like(x)
        _scale_kernel[(1,)](x, y, x.numel(), 2.0, BLOCK=64)
        return y.add_(0)

    plain, with_torch = launch_of(declared()), launch_of(declared(summed, name="summed"))
    assert plain.operations == () and with_torch.operations[-1] == "aten::add_"
    assert "aten" not in repr(with_torch)  # of another torch they may have other names


def test_a_function_in_place_is_launched_by_its_kernels_alone() -> None:
    def in_place(x, y, config):
        _scale_kernel[(triton.cdiv(x.numel(), config.BLOCK),)](x, y, x.numel(), 2.0, BLOCK=config.BLOCK)

    launch = launch_of(declared(in_place))
    assert not launch.runs_function and given(launch)["y_ptr"] == ("y", "fp16") and launch.grid == 2


def test_the_gpu_that_a_function_sees_is_the_target() -> None:
    def persistent(x, y, target, config):
        sms = torch.cuda.get_device_properties(x.device).multi_processor_count
        assert sms == target.sms and torch.cuda.get_device_capability() == (9, 0)
        assert triton.runtime.driver.active.get_current_target().arch == 90
        _scale_kernel[(sms,)](x, y, x.numel(), 2.0, BLOCK=config.BLOCK)

    spec = declared(persistent)
    assert launch_of(spec).grid == 132
    smaller = H200._replace(sms=78)
    assert spec.launch(TileConfig(64, 4), spec.problem(3, 40, "float16"), smaller).grid == 78


CONFIGS = [triton.Config({"BLOCK": 32}, num_warps=2), triton.Config({"BLOCK": 64}, num_warps=4)]
tuned = triton.autotune(configs=CONFIGS, key=["count"])(_scale_kernel)
derived = triton.heuristics({"BLOCK": lambda args: 2 * args["count"]})(_scale_kernel)
hooked = triton.autotune(configs=[triton.Config({"BLOCK": 32}, pre_hook=lambda *_: None)], key=["count"])(_scale_kernel)


def launching(kernel, **options):
    """A launcher of this kernel, which passes these options."""

    def function(x):
        y = torch.empty_like(x)
        kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x_ptr=x, y_ptr=y, count=16, factor=2.0, **options)
        return y

    return function


def test_what_autotune_would_choose_comes_from_the_config() -> None:
    launch = launch_of(declared(launching(tuned)), TileConfig(16, 1))
    assert (given(launch)["BLOCK"], given(launch)["num_warps"]) == (("int", "16"), ("int", "1"))
    assert launch.grid == 8 and [name for name, _ in launch.calls[0][2]][:2] == ["x_ptr", "y_ptr"]


def test_heuristics_are_computed_from_the_arguments() -> None:
    launch = launch_of(declared(launching(derived)), TileConfig(16, 1))
    assert given(launch)["BLOCK"] == ("int", "32") and launch.grid == 4


class WarpConfig(Config):
    """One knob."""

    num_warps: int = 4


WARPS = {"config": WarpConfig, "space": {"num_warps": (1, 4)}}


@pytest.mark.parametrize(
    ("function", "changes", "told"),
    [
        (
            launching(tuned),
            WARPS,
            "raises TypeError: triton.autotune sets BLOCK of _scale_kernel: expected a knob of that",
        ),
        (
            launching(hooked),
            {},
            "raises TypeError: a config of _scale_kernel has a pre_hook, which only triton.autotune",
        ),
        (lambda x: None, {}, "launches nothing: expected kernel[grid](...) of a function of triton.jit"),
        (lambda x: (launching(_scale_kernel, BLOCK=16)(x), None)[1], {}, "returns nothing: expected y"),
        (lambda x: (launching(_scale_kernel, BLOCK=16)(x), 1), {}, "returns Tensor, int: expected y"),
        (
            lambda x: launching(_scale_kernel, BLOCK=16)(x).float(),
            {},
            "returns y of float32 (3, 40): expected float16 (3, 40)",
        ),
        (
            lambda x: launching(_scale_kernel, BLOCK=int(x.sum().item()))(x),
            {},
            "raises TypeError: item() reads the values of a tensor: expected launches that depend on shapes alone",
        ),
        (
            lambda x: launching(_scale_kernel, BLOCK=16)(x) if x.any() else x,
            {},
            "raises TypeError: __bool__() reads the values of a tensor: expected launches that depend on shapes alone",
        ),
        (
            lambda x: _scale_kernel[(1,)](x, torch.empty(x.shape), 1, 2.0, BLOCK=16),
            {},
            "raises TypeError: the tensor y_ptr of _scale_kernel is on the CPU: expected device=x.device",
        ),
    ],
)
def test_what_cannot_be_tuned_is_a_fault_of_the_operator_in_one_line(function, changes, told) -> None:
    spec = declared(function, **changes)
    with pytest.raises(OperatorError) as caught:
        launch_of(spec, spec.config())
    line = str(caught.value)
    assert line.startswith("operator 'scaled': its function") and told in line and "\n" not in line


def test_shapes_are_expressions_of_the_sizes() -> None:
    def halves(gate_up, scale, y):
        _scale_kernel[(1,)](gate_up, y, y.numel(), 2.0, BLOCK=64)

    buffers = {"gate_up": "input rows, 2*hidden", "scale": "input rows,hidden/group float32", "y": "output"}
    with pytest.raises(ValueError, match="no input has the axis 'group'"):
        declared(halves, buffers=buffers, sizes={"group": (16,)}, reference=lambda gate_up, scale: gate_up)
    buffers["scale"] = "input rows,hidden//16 float32"
    spec = declared(halves, buffers=buffers, reference=lambda gate_up, scale: gate_up)
    shapes = {one.name: one.shape for one in spec.buffers(spec.problem(3, 64, "float16"))}
    assert shapes == {"gate_up": (3, 128), "scale": (3, 4), "y": (3, 64)}
    by_function = {"gate_up": "input rows,2*hidden", "scale": lambda problem: f"input {problem.rows}", "y": "output"}
    spec = declared(halves, buffers=by_function, reference=lambda gate_up, scale: gate_up, name="by_function")
    assert spec.buffers(spec.problem(3, 64, "float16"))[1].shape == (3,)


def test_a_shape_that_is_no_integer_is_no_problem() -> None:
    buffers = {"x": "input", "scale": "input rows,hidden/16 float32", "y": "output"}

    def function(x, scale, y):
        _scale_kernel[(1,)](x, y, y.numel(), 2.0, BLOCK=64)

    spec = declared(function, buffers=buffers, reference=lambda x, scale: x)
    _, pruned = candidates(spec, [TileConfig(64, 4)], spec.problem(3, 40, "float16"), H200)
    assert pruned == {"illegal: hidden/16 of scale is 5/2: expected a positive integer": 1}
    assert spec.is_legal(TileConfig(64, 4), spec.problem(3, 48, "float16"), H200)


def test_a_list_of_configs_is_a_space() -> None:
    space = [TileConfig(64, 1), TileConfig(128, 8), TileConfig(64, 1)]
    spec = declared(space=space, default=TileConfig(128, 8))
    problem = spec.problem(3, 40, "float16")
    assert spec.configs("default", problem, H200) == [TileConfig(64, 1), TileConfig(128, 8)]
    assert spec.default_config(problem, H200) == TileConfig(128, 8)


def test_a_rule_is_the_default_where_it_is_legal() -> None:
    spec = declared(default=lambda problem, target: TileConfig(128, 1 if problem.rows < 8 else 4))
    assert [spec.default_config(spec.problem(rows, 64, "float16"), H200) for rows in (1, 8)] == [(128, 1), (128, 4)]
    rules = {"default": lambda problem, target: TileConfig(128, 1), "legal": lambda config, *_: config.BLOCK < 128}
    spec = declared(**rules, name="other")
    assert spec.default_config(spec.problem(1, 64, "float16"), H200) == (64, 4)
    spec = declared(default=lambda problem, target: (128, 1), name="wrong")
    with pytest.raises(
        OperatorError, match="'wrong': its default returns \\(128, 1\\): expected a TileConfig, for wrong"
    ):
        spec.default_config(spec.problem(1, 64, "float16"), H200)


def test_a_call_goes_through_the_door_only_where_knobs_are_replaced(monkeypatch) -> None:
    usual, launched = KernelInterface.__getitem__, []
    monkeypatch.setattr(JITFunction, "run", lambda *_, num_warps, BLOCK=0, **__: launched.append((BLOCK, num_warps)))

    def passing(x, y, config):
        seen.append(KernelInterface.__getitem__ is usual)
        _scale_kernel[(1,)](x, y, x.numel(), 2.0, BLOCK=config.BLOCK, num_warps=config.num_warps)

    def fixed(x, y):
        seen.append(KernelInterface.__getitem__ is usual)
        _scale_kernel[(1,)](x, y, x.numel(), 2.0, BLOCK=32, num_warps=8)

    def decorated(x, y, config):
        seen.append(KernelInterface.__getitem__ is usual)
        tuned[(1,)](x, y, x.numel(), 2.0)

    x = torch.ones(4, 8)
    seen: list[bool] = []
    for function in (fixed, decorated, passing):  # the module has decorated kernels
        kernel_operator(**ARGUMENTS | {"name": function.__name__})(function)(x, x, config=TileConfig(128, 2))
        assert not seen.pop() and launched.pop()[1] == 2
    for name in ("tuned", "derived", "hooked"):
        monkeypatch.delattr(sys.modules[__name__], name)
    kernel_operator(**ARGUMENTS | {"name": "direct"})(passing)(x, x, config=TileConfig(128, 2))
    assert seen.pop() and launched.pop() == (128, 2)


def test_a_change_of_the_library_that_is_named_changes_the_fingerprint(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "launching_library").mkdir()
    kernel = "import triton\n@triton.jit\ndef kernel(x, y): pass\ndef launch(x, y): kernel[(1,)](x, y)\n"
    for module in ("by_module", "by_function"):
        (tmp_path / "launching_library" / f"{module}.py").write_text(kernel)
    import launching_library.by_module as library
    from launching_library.by_function import launch

    def function(x, y):
        torch.cuda.synchronize()
        library.launch(x, y)
        launch(x, y)

    def modules(spec):
        return {read.module for read in fingerprint.sources(spec).definitions}

    assert modules(declared(function)) == {__name__, "launching_library.by_function", "launching_library.by_module"}
    assert modules(declared(launching(_scale_kernel), name="own")) == {__name__}


@pytest.mark.slow
@pytest.mark.long
def test_a_launcher_compiles_without_a_gpu_and_without_its_library_calling_torch() -> None:
    load_file.load(Path(__file__).with_name("launchers.py"))
    spec = operator("doubled")
    problem = spec.problem(3, 40, "bfloat16")
    kept, pruned = candidates(spec, spec.configs("default", problem, H200), problem, H200)
    assert len(kept) == 5 and not pruned
    compiled = list(compile_all(jobs_of((problem, one.launch) for one in kept[:4]), "sm_90"))
    assert [(one.status, one.reason) for one in compiled] == [("ok", "")] * 4
    assert all(code.assembly for one in compiled for code in one.codes)
