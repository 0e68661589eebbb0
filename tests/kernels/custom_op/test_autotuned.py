"""The configs of a kernel in `triton.autotune` are the space of an operator."""

import pickle

import pytest
import torch
import triton
import triton.language as tl

import normtune
from normtune.errors import UsageError
from normtune.heuristics.fitting.result import FittedFunction
from normtune.heuristics.writing.emit import body_text
from normtune.kernels.key import Key
from normtune.kernels.operator import operator
from normtune.kernels.tablefile import parse
from normtune.kernels.tablefile.tree import Leaf
from normtune.kernels.target import TARGETS
from normtune.tests.heuristics.made_up import everywhere
from normtune.tuner.plan.plan import candidates

H200 = TARGETS["sm_90"]
pytestmark = pytest.mark.usefixtures("operators_forgotten")


@triton.jit
def _scale_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=mask) * 2, mask=mask)


def kernel_of(*configs, inner=_scale_kernel, **options):
    return triton.autotune(configs=list(configs), key=["count"], **options)(inner)


def fitting(configs, named_args, **options):
    """As libraries prune: no block is longer than what it works on."""
    assert set(named_args) | set(options) >= {"x_ptr", "y_ptr", "count"}
    return [config for config in configs if config.kwargs["BLOCK"] <= named_args["x_ptr"].numel()]


CONFIGS = (
    triton.Config({"BLOCK": 32, "EVEN": True}, num_warps=2),
    triton.Config({"BLOCK": 64, "EVEN": False}, num_warps=4, num_stages=2),
    triton.Config({"BLOCK": 512, "EVEN": False}, num_warps=8),
)
tuned = kernel_of(*CONFIGS, prune_configs_by={"early_config_prune": fitting})


def doubled(x):
    y = torch.empty_like(x)
    tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y


def declared(**changes):
    arguments = normtune.from_autotuned(tuned) | {
        "buffers": {"x": "input", "y": "output"},
        "reference": lambda x: 2 * x,
    }
    normtune.kernel_operator(**(arguments | changes))(doubled)
    return operator("doubled")


def test_configs_become_the_space_and_the_first_is_the_default() -> None:
    spec = declared()
    assert spec.config.__name__ == "ScaleKernelConfig"
    assert spec.config._fields == ("BLOCK", "EVEN", "num_warps", "num_stages")
    problem = spec.problem(8, 128, "float16")
    assert spec.configs("default", problem, H200) == [(32, 1, 2, 3), (64, 0, 4, 2), (512, 0, 8, 3)]
    assert spec.default_config(problem, H200) == (32, 1, 2, 3)
    launch = spec.launch(spec.config(64, 0, 4, 2), problem, H200)
    given = dict(launch.calls[0][2])
    assert launch.grid == 16 and (given["BLOCK"], given["num_stages"]) == (("int", "64"), ("int", "2"))


def test_what_the_kernel_prunes_is_not_timed() -> None:
    spec = declared()
    small = spec.problem(1, 100, "float16")
    kept, pruned = candidates(spec, spec.configs("default", small, H200), small, H200)
    assert [one.config.BLOCK for one in kept] == [32, 64] and not pruned
    assert spec.is_legal(spec.config(512, 0, 8, 3), small, H200)


def test_its_configs_are_values_of_tables_and_of_other_processes() -> None:
    spec = declared()
    config = spec.config(64, 0, 4, 2)
    revived = pickle.loads(pickle.dumps(config))
    assert revived == config and spec.knows(revived) and type(revived).__name__ == "ScaleKernelConfig"
    function = FittedFunction(Key.of("doubled", "", "float16"), Leaf(config), ("float16",), None)  # type: ignore[call-arg]
    text = body_text([function], everywhere([function]))
    assert "class Config(NamedTuple):" in text and "BLOCK_64_EVEN_0_WARPS_4_STAGES_2 = Config(" in text
    assert parse.trees(text) == {function.key: function.tree}


def test_configs_of_kernels_that_are_launched_together_are_combined() -> None:
    row = kernel_of(triton.Config({}, num_warps=2), triton.Config({}, num_warps=4))
    found = normtune.from_autotuned(tuned, row)
    assert found["space"] == [(32, 1, 2, 3), (64, 0, 4, 2)]  # a config has one number of warps
    found = normtune.from_autotuned(kernel_of(triton.Config({"A": 1}), triton.Config({"A": 2})), tuned)
    assert found["config"]._fields == ("A", "num_warps", "BLOCK", "EVEN", "num_stages")
    assert found["space"] == [(1, 4, 64, 0, 2), (2, 4, 64, 0, 2)]


@triton.jit
def _tail_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr, UNROLL: tl.constexpr = 2, FLUSH: tl.constexpr = False):
    offsets = tl.program_id(0) * BLOCK * UNROLL + tl.arange(0, BLOCK * UNROLL)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < count) * 2, mask=offsets < count)


def test_a_constant_that_a_config_lacks_is_the_kernels_default_and_no_other_configs() -> None:
    configs = (
        triton.Config({"BLOCK": 64}),
        triton.Config({"BLOCK": 64, "UNROLL": 4, "FLUSH": True}),
        triton.Config({"BLOCK": 64, "UNROLL": 8}),
    )
    found = normtune.from_autotuned(kernel_of(*configs, inner=_tail_kernel))
    assert found["config"]._fields == ("BLOCK", "UNROLL", "FLUSH", "num_warps")
    assert found["space"] == [(64, 2, 0, 4), (64, 4, 1, 4), (64, 8, 0, 4)] and found["default"] == (64, 2, 0, 4)


REGISTERS = (
    triton.Config({"BLOCK": 64}, num_warps=4),
    triton.Config({"BLOCK": 64}, num_warps=8, maxnreg=128),
    triton.Config({"BLOCK": 64}, num_warps=8, num_ctas=2),
)
limited = kernel_of(*REGISTERS, inner=_tail_kernel)


def tailed(x):
    y = torch.empty_like(x)
    limited[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y


@pytest.mark.parametrize("is_decorated", [True, False])
def test_configs_of_which_some_limit_registers_are_all_carried_to_the_launch(is_decorated) -> None:
    arguments = normtune.from_autotuned(limited)
    assert arguments["space"] == [(64, 4, 1, 0), (64, 8, 1, 128), (64, 8, 2, 0)]
    assert arguments["config"]._fields == ("BLOCK", "num_warps", "num_ctas", "maxnreg")

    def plain(x, config):
        y = torch.empty_like(x)
        limited.fn[(triton.cdiv(x.numel(), config.BLOCK),)](x, y, x.numel(), **config._asdict())
        return y

    arguments |= {"buffers": {"x": "input", "y": "output"}, "reference": lambda x: 2 * x, "name": "tailed"}
    normtune.kernel_operator(**arguments)(tailed if is_decorated else plain)
    spec = operator("tailed")
    problem = spec.problem(8, 128, "float16")
    for values, config in zip(arguments["space"], REGISTERS, strict=True):
        options = dict(spec.launch(spec.config(*values), problem, H200).calls[0][2])
        assert options.get("maxnreg") == (("int", "128") if config.maxnreg else None)
        assert options["num_warps"] == ("int", str(config.num_warps))


@pytest.mark.parametrize(
    ("kernels", "told"),
    [
        ((), "from_autotuned takes kernels in triton.autotune: got none"),
        ((_scale_kernel,), "_scale_kernel is no kernel in triton.autotune: expected one"),
        (
            (kernel_of(triton.Config({"BLOCK": 0.5})),),
            "BLOCK of a config of _scale_kernel is 0.5: expected an integer, a",
        ),
        (
            (kernel_of(triton.Config({"BLOCK": 1}, pre_hook=lambda *_: None)),),
            "a config of _scale_kernel has a pre_hook, which only triton.autotune runs: expected a function with the",
        ),
        (
            (kernel_of(triton.Config({"BLOCK": 1}, ir_override="scale.ttgir")),),
            "a config of _scale_kernel has ir_override='scale.ttgir', a file that no table can name: expected configs",
        ),
        (
            (kernel_of(triton.Config({"BLOCK": 1}), triton.Config({"BLOCK": 1, "EVEN": True})),),
            "a config of _scale_kernel has no EVEN, and the kernel no default of it",
        ),
        (
            (kernel_of(triton.Config({"BLOCK": 1}), triton.Config({"BLOCK": "wide"})),),
            "BLOCK of _scale_kernel is an integer in one config and text in another: expected one type",
        ),
        (
            (kernel_of(triton.Config({}, num_warps=2)), kernel_of(triton.Config({}, num_warps=4))),
            "the kernels _scale_kernel, _scale_kernel have no configs in common",
        ),
    ],
)
def test_what_is_no_space_is_told(kernels, told) -> None:
    with pytest.raises(UsageError) as caught:
        normtune.from_autotuned(*kernels)
    assert str(caught.value).startswith(told)
