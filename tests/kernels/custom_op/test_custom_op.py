"""The door: what an operator declares, by the decorator and as a spec, and one line for each fault of it."""

import dataclasses
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import pytest
import torch
import triton

import normtune
from normtune.errors import UsageError
from normtune.heuristics.fitting.result import FittedFunction
from normtune.heuristics.regret.matrix import timing_matrix
from normtune.heuristics.writing.emit import body_text
from normtune.kernels import fingerprint, load_file, operator
from normtune.kernels.call import ImplementationLaunch
from normtune.kernels.config import COPY, Config, Implementation
from normtune.kernels.custom_op.decorator import kernel_operator
from normtune.kernels.custom_op.rules import reason_against_target
from normtune.kernels.key import Key
from normtune.kernels.operator import IllegalConfigError, OperatorSpec, register
from normtune.kernels.problem import BUFFER_ITEMSIZE, Problem
from normtune.kernels.rms_norm.operator import RMSNormConfig, rms_norm_forward
from normtune.kernels.spec_faults import OperatorError
from normtune.kernels.tablefile import parse
from normtune.kernels.tablefile.tree import Leaf, Split
from normtune.kernels.target import TARGETS
from normtune.results.exchange.parquet_csv import read_parquet
from normtune.tests.commands import main
from normtune.tests.heuristics.made_up import everywhere
from normtune.tests.kernels.registry import forgetting
from normtune.tuner.compiling.pool import compile_all
from normtune.tuner.plan.binaries import jobs_of
from normtune.tuner.plan.plan import candidates, plan, problems
from normtune.tuner.timing.gate import inputs_of, reference_of
from normtune.tuner.timing.trial import gate_launch

H200 = TARGETS["sm_90"]
EXAMPLES = Path(__file__).parents[3] / "examples"
TOLD_BY_SHAPE = "expected it in a shape, alone or times an integer"


class ToyConfig(Config):
    """How the toy is launched."""

    block: Annotated[int, "elements a program."] = 128
    num_warps: int = 4


pytestmark = pytest.mark.usefixtures("operators_forgotten")


@pytest.fixture
def examples():
    load_file.load(EXAMPLES / "softmax.py")
    load_file.load(EXAMPLES / "layer_norm.py")
    return operator.operator("softmax"), operator.operator("layer_norm")


def unlaunchable(x, y, config):
    raise NotImplementedError


def declared(**changes):
    """A sound declaration with some of it changed, on a function that raises."""
    return declared_of(unlaunchable, **changes)


def declared_of(function, **changes):
    """The same of a function that takes `x`, `y` and `config`."""
    arguments = {
        "config": ToyConfig,
        "space": {"block": (64, 128), "num_warps": (1, 4)},
        "buffers": {"x": "input", "y": "output"},
        "reference": lambda x: x,
        "name": "toy",
    }
    return kernel_operator(**(arguments | changes))(function)


def test_the_examples_are_short_and_planned_as_any_operator(examples) -> None:
    for name in ("softmax", "layer_norm"):
        assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 80
    softmax, layer_norm = examples
    problem = softmax.problem(4096, 1000, "bfloat16")
    kept, pruned = candidates(softmax, softmax.configs("default", problem, H200), problem, H200)
    assert [one.config for one in kept if isinstance(one.config, Implementation)] == [Implementation("torch")]
    assert {one.launch.grid for one in kept} == {1, 4096, 2048, 1024, 512, 256, 128}
    assert pruned == {"illegal: `legal` of the operator refuses it": 10}
    assert not softmax.is_legal(softmax.config(32, 1), problem, H200)
    narrow = softmax.problem(1, 64, "float16")
    assert softmax.is_legal(softmax.config(1, 32), narrow, H200)
    assert softmax.config(1, 32) not in softmax.configs("default", narrow, H200)
    assert softmax.bytes_moved(problem) == 2 * 2 * 4096 * 1000
    assert layer_norm.bytes_moved(layer_norm.problem(8, 16, "float16")) == 2 * (2 * 8 * 16 + 2 * 16) + 2 * 4 * 8
    assert layer_norm.default_config(layer_norm.problem(1, 64, "float32"), H200) == (1, 4)
    assert layer_norm.default_config(layer_norm.problem(1, 32768, "float32"), H200)[1] >= 16
    assert not softmax.is_legal(RMSNormConfig("row"), problem, H200)
    assert not softmax.is_legal(Implementation("cudnn"), problem, H200)


def test_one_binary_serves_what_triton_specialises_alike(examples) -> None:
    softmax, _ = examples
    config = softmax.config(2, 4)
    launches = [softmax.launch(config, softmax.problem(rows, 1024, "bfloat16"), H200) for rows in (64, 4096, 63, 1)]
    assert launches[0].binary == launches[1].binary != launches[2].binary
    assert len({one.binary for one in launches}) == 3
    assert launches[0] != launches[1]  # another grid


@triton.jit
def _two_kernel(x_ptr, y_ptr, chunk, factor):
    pass


GRIDS = {"rows first": (4, 8), "columns first": (8, 4)}


def launching(chunk=lambda config: 32, factor=lambda config: 0.5, grid="rows first", swapped=False):
    """The launch of a config by a function that gives its kernel such arguments."""

    def function(x, y, config):
        tensors = (y, x) if swapped else (x, y)
        _two_kernel[GRIDS[grid]](*tensors, chunk(config), factor(config), num_warps=config.num_warps)

    name = f"toy_{len(operator.operators())}"
    return declared_of(function, name=name).spec


@pytest.mark.parametrize(
    ("change", "same_binary"),
    [
        ({"chunk": lambda config: 128}, True),  # as 32 a multiple of 16
        ({"chunk": lambda config: 33}, False),
        ({"factor": lambda config: 0.25}, True),
        ({"factor": lambda config: 1}, False),
        ({"grid": "columns first"}, True),
        ({"swapped": True}, True),
        ({}, True),
    ],
)
def test_launches_are_equal_if_all_arguments_and_the_grid_are(change, same_binary) -> None:
    config, other = (
        spec.launch(ToyConfig(64, 4), spec.problem(4, 8, "float16"), H200)
        for spec in (launching(), launching(**change))
    )
    assert (config == other) == (hash(config) == hash(other)) == (not change)
    assert (config.binary == other.binary) == same_binary
    assert config.grid == other.grid == 32


def test_configs_that_differ_in_an_integer_of_the_call_are_all_candidates() -> None:
    spec = launching(chunk=lambda config: config.block)
    problem = spec.problem(4, 8, "float16")
    kept, pruned = candidates(spec, spec.configs("default", problem, H200), problem, H200)
    assert [one.config for one in kept] == sorted(spec.configs("default", problem, H200)) and not pruned
    assert len(jobs_of((problem, one.launch) for one in kept)) == 2  # warps alone make another binary


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_examples_compile_without_a_gpu(examples, every) -> None:
    pairs = []
    for spec in examples if every else examples[:1]:
        problem = spec.problem(64, 96, "bfloat16")
        kept, _ = candidates(spec, spec.configs("default", problem, H200), problem, H200)
        kernels = [one for one in kept if not isinstance(one.launch, ImplementationLaunch)]
        pairs += [(problem, one.launch) for one in (kept if every else kernels[:1])]
    compiled = list(compile_all(jobs_of(pairs), "sm_90"))
    assert [(one.status, one.reason) for one in compiled] == [("ok", "")] * len(compiled)
    assert sum(isinstance(one.job.launch, ImplementationLaunch) for one in compiled) == every


GIVES = "expected inputs=, which gives its values"
DIVIDES = f"'hidden/0' is neither a shape (of rows, hidden) nor a dtype ({', '.join(BUFFER_ITEMSIZE)})"
UNITS = "expected units in the last place, a positive number"
_ITERATOR = iter([4])
OF_TOY = "expected configs of ToyConfig"
BY_NAME = "expected the tensors that are read, and the scalars"


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"config": int}, ["config is <class 'int'>: expected a subclass of normtune.Config with a knob or more"]),
        ({"space": {"block": (64,)}}, ["space has block: expected the knobs block, num_warps"]),
        (
            {"space": {"block": (64, "x"), "num_warps": ()}},
            [
                "space of block is (64, 'x'): expected a list of values of type int",
                "space of num_warps is (): expected a list of values of type int",
            ],
        ),
        (
            {"buffers": {"x": "inptu", "y": "output rows,columns"}},
            [
                "buffer 'x' is 'inptu': role 'inptu': expected one of input, weight, output, in-out, scratch",
                "buffer 'y' is 'output rows,columns': 'rows,columns' is neither a shape (of rows, hidden) nor a dtype "
                f"({', '.join(BUFFER_ITEMSIZE)})",
            ],
        ),
        ({"buffers": {"x": "input", "y": "input"}, "reference": lambda x, y: x}, ["no buffer is an output"]),
        ({"buffers": {"x": "input int64", "y": "output"}}, [f"buffer 'x' is int64: {GIVES}"]),
        (
            {"buffers": {"x": "input", "y": "output hidden/0"}},
            [f"buffer 'y' is 'output hidden/0': {DIVIDES}"],
        ),
        (
            {"tolerance": {"x": 2.0, "y": 0}},
            ["tolerance names 'x': expected one of y", f"tolerance of y is 0: {UNITS}"],
        ),
        ({"space": [ToyConfig(64, 1), RMSNormConfig("row")]}, [f"space has {RMSNormConfig('row')!r}: {OF_TOY}"]),
        (
            {"space": {"block": (64, -1), "num_warps": (4,)}},
            ["space: block of a config is -1, expected 0 to 1048576"],
        ),
        (
            {"space": {"block": (0, 64), "num_warps": (3, 4)}},
            ["space: num_warps of a config is 3, expected a power of 2"],
        ),
        ({"space": []}, ["space is empty: expected a config or more"]),
        ({"space": {ToyConfig(64, 1)}}, ["space is a set: expected a list of configs, or values by knob"]),
        (
            {"space": iter([ToyConfig(64, 1)])},
            ["space is a list_iterator: expected a list of configs, or values by knob"],
        ),
        (
            {"space": {"block": {64}, "num_warps": _ITERATOR}},
            [
                "space of block is {64}: expected a list of values of type int",
                f"space of num_warps is {_ITERATOR!r}: expected a list of values of type int",
            ],
        ),
        (
            {"reference": lambda x, eps: x},
            ["the reference has a parameter 'eps': no input and no scalar of that name is declared"],
        ),
        ({"buffers": {"x": "input rows", "y": "output"}}, [f"no input has the axis 'hidden': {TOLD_BY_SHAPE}"]),
        (
            {"buffers": {"x": "input", "z": "output"}},
            [
                "the function has a parameter 'y': no buffer and no scalar of that name is declared",
            ],
        ),
        (
            {"scalars": {"eps": 1e-6}},
            [
                "the function has no parameter 'eps', which is declared",
                f"the reference has no parameter 'eps': {BY_NAME}",
            ],
        ),
        ({"dtypes": ("float64",)}, ["dtype 'float64': expected some of bfloat16, float16, float32"]),
        ({"name": "to y"}, ["its name is 'to y': expected letters, digits and _"]),
        ({"sizes": {"heads": (0,)}}, [f"no input has the axis 'heads': {TOLD_BY_SHAPE}"]),
    ],
)
def test_each_fault_of_a_declaration_is_one_line(changes, lines) -> None:
    with pytest.raises(UsageError) as caught:
        declared(**changes)
    assert str(caught.value).splitlines() == [f"operator {changes.get('name', 'toy')!r}: {line}" for line in lines]
    assert "toy" not in operator.operators()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"name": "a b"}, "its name is 'a b': expected letters, digits and _"),
        ({"dtypes": ()}, "it has no dtype: expected some of bfloat16, float16, float32"),
        ({"max_hidden": 0}, "max_hidden is 0: expected a positive integer"),
        ({"config": tuple}, "config is <class 'tuple'>: expected a subclass of normtune.Config with a knob or more"),
        ({"scalars": {"eps": "1"}}, "scalar eps is '1': expected a number"),
        ({"sizes": {"heads": ()}}, "sizes of heads are (): expected one positive integer or more"),
        ({"buffers": lambda problem: ()}, "no buffer is an output"),
        (
            {"buffers": lambda problem: 1 / 0},
            "its buffers of a problem of 1 x 8 raise ZeroDivisionError: division by zero",
        ),
    ],
)
def test_a_full_spec_is_looked_at_when_it_is_registered(changes, fault) -> None:
    spec = dataclasses.replace(rms_norm_forward, **{"name": "copy_of_it", **changes})
    with pytest.raises(UsageError) as caught:
        register(spec)
    assert str(caught.value) == f"operator {spec.name!r}: {fault}"


def test_what_is_illegal_stays_so_for_longer_rows() -> None:
    refused = "legal refuses warps=1 at hidden 1 and allows it at hidden 128: .* to stay illegal for longer rows"
    with pytest.raises(UsageError, match=refused):
        declared(legal=lambda config, problem, target: config.block <= problem.hidden or config.block == 64)


def test_a_name_is_taken_once() -> None:
    declared()
    with pytest.raises(ValueError, match="operator 'toy' is registered already: choose another name"):
        declared()


def test_a_function_that_refuses_a_config_makes_it_illegal() -> None:
    def choosy(x, y, config):
        if config.block == 64:
            raise normtune.IllegalConfigError("64 is beyond me")
        _two_kernel[(1,)](x, y, 1, 1.0)

    spec = declared_of(choosy).spec
    problem = spec.problem(4, 8, "float16")
    for _ in range(2):
        with pytest.raises(IllegalConfigError, match=r"^64 is beyond me$"):
            spec.launch(ToyConfig(64, 4), problem, H200)
    assert spec.is_legal(ToyConfig(128, 4), problem, H200)


def test_threads_and_clusters_that_a_target_lacks_are_illegal_whatever_the_kernel() -> None:
    def launching(x, y, config):
        _two_kernel[(1,)](x, y, 1, 1.0)

    spec = declared_of(launching).spec
    problem = spec.problem(4, 8, "float16")
    for target, most in ((H200, 32), (TARGETS["gfx942"], 16), (TARGETS["gfx950"], 16)):
        assert spec.is_legal(ToyConfig(64, most), problem, target)
        with pytest.raises(IllegalConfigError, match="2048 threads exceed 1024"):
            spec.launch(ToyConfig(64, 2 * most), problem, target)
    clustered = SimpleNamespace(num_warps=4, num_ctas=2)
    reasons = [reason_against_target(clustered, TARGETS[name]) for name in ("sm_90", "gfx950")]
    assert reasons == ["", "gfx950 has no clusters"]


def broken(config, problem, target):
    return config.blocks == 1  # its author meant `block`


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "function unlaunchable raises NotImplementedError"),
        ({"leaves_out": broken}, "leaves_out raises AttributeError: 'ToyConfig' object has no attribute 'blocks'"),
        ({"legal": broken}, "legal raises AttributeError: 'ToyConfig' object has no attribute 'blocks'"),
    ],
)
def test_a_function_of_an_operator_that_raises_is_named_and_makes_no_config_illegal(changes, told) -> None:
    with pytest.raises(OperatorError) as caught:
        plan([declared(**changes).spec.problem(4, 8, "float16")], "default", H200)
    line = str(caught.value)
    assert line.startswith(f"operator 'toy': its {told} (test_custom_op.py, line ") and "\n" not in line
    assert ", for block=64 warps=1 at toy" in line


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"reference": lambda x: x / 0 + 1 // 0}, "reference raises ZeroDivisionError"),
        ({"reference": lambda x: None}, "reference returns NoneType for y: expected a tensor"),
        ({"reference": lambda x: (x, x)}, "reference returns 2 outputs: expected y"),
        ({"reference": lambda x: x[0]}, "reference returns y of float64 (8,): expected float64 (4, 8)"),
        ({"inputs": lambda *_: {}}, "inputs returns the tensors none: expected x"),
        (
            {"inputs": lambda *_: {"x": torch.zeros(4, 8)}},
            "inputs returns x of float32 (4, 8): expected float16 (4, 8)",
        ),
        (
            {"inputs": lambda *_: {"x": torch.zeros(4).half()}},
            "inputs returns x of float16 (4,): expected float16 (4, 8)",
        ),
        ({"inputs": lambda problem: {}}, "inputs raises TypeError: "),
    ],
)
def test_inputs_and_a_reference_at_fault_are_named(changes, told) -> None:
    spec = declared(**changes).spec
    problem = spec.problem(4, 8, "float16")
    with pytest.raises(OperatorError) as caught:
        reference_of(spec, problem, inputs_of(spec, problem, torch.Generator(), torch.device("cpu"), True))
    assert str(caught.value).startswith(f"operator 'toy': its {told}") and "\n" not in str(caught.value)


def test_functions_of_a_full_spec_are_named() -> None:
    def fail(*arguments):
        raise KeyError("rows")

    fields = {
        "space": fail,
        "resolve": fail,
        "trial": fail,
        "kernel_calls": "nowhere:calls",
        "reference_module": "nowhere",
    }
    spec = dataclasses.replace(rms_norm_forward, **fields)
    problem = spec.problem(4, 8, "float16")
    config = rms_norm_forward.default_config(problem, H200)
    launch = rms_norm_forward.launch(config, problem, H200)
    for call, told in (
        (lambda: spec.configs("default", problem, H200), "space raises KeyError: 'rows' (test_custom_op.py"),
        (lambda: spec.launch(config, problem, H200), "resolve raises KeyError: 'rows' (test_custom_op.py"),
        (
            lambda: gate_launch(spec, problem, (config, launch), H200),
            "trial raises KeyError: 'rows' (test_custom_op.py",
        ),
        (
            lambda: spec.calls(launch, problem, {}, None, {}),
            "calls raises ModuleNotFoundError: No module named 'nowhere'",
        ),
        (
            lambda: inputs_of(spec, problem, None, None, True),
            "inputs raises ModuleNotFoundError: No module named 'nowhere'",
        ),
        (lambda: reference_of(spec, problem, {}), "reference raises ModuleNotFoundError: No module named 'nowhere'"),
    ):
        with pytest.raises(OperatorError) as caught:
            call()
        assert str(caught.value).startswith(f"operator 'rms_norm_forward': its {told}")


def test_named_integers_make_an_operator_each(monkeypatch) -> None:
    family = dataclasses.replace(
        rms_norm_forward, name="gated", sizes={"heads": (8, 32), "group": (64,)}, buffers=rms_norm_forward.buffers
    )
    register(family)
    names = ["gated.heads=8.group=64", "gated.heads=32.group=64"]
    assert [name for name in operator.operators() if name.startswith("gated")] == names == operator.members("gated")
    assert {one.operator for one in problems(["gated:no_rstd"], ["float16"], [(1, 64)])} == set(names)
    (one,) = problems([names[0]], ["float16"], [(1, 64)])
    assert one.sizes == {"rows": 1, "hidden": 64, "heads": 8, "group": 64} and one.operator == names[0]
    other = operator.operator("gated.heads=5.group=64").problem(2, 4, "float32")
    assert other.sizes == {"rows": 2, "hidden": 4, "heads": 5, "group": 64}
    for wrong in ("gated", "gated.heads=8", "gated.heads=8.group=x", "gated.heads=8.rows=64"):
        with pytest.raises(UsageError, match=r"unknown operator|has the named integers heads, group"):
            operator.operator(wrong)
    with pytest.raises(UsageError, match="heads is 0: expected a positive integer"):
        family.at(heads=0, group=64)


def function(name: str, tree) -> FittedFunction:
    return FittedFunction(Key.of(name, "", "bfloat16"), tree, ("bfloat16",), None)  # type: ignore[arg-type, call-arg]


def test_a_table_defines_the_classes_that_it_needs(tmp_path) -> None:
    toys = ToyConfig(64, 1), ToyConfig(64, 8)
    functions = [
        function("toy", Split("rows", 9, Leaf(toys[0]), Leaf(Implementation("torch")))),
        function("rms", Leaf(RMSNormConfig("row", 1, 8))),
        function("other", Leaf(toys[1])),
    ]
    text = body_text(functions, everywhere(functions))
    names: dict[str, object] = {}
    exec(compile(text, "table", "exec"), names)
    assert names["lookup"]("toy", "bfloat16", 1, 64) == (64, 1)  # type: ignore[operator]
    assert names["lookup"]("toy", "bfloat16", 9, 64) == ("torch",)  # type: ignore[operator]
    assert names["lookup"]("rms", "bfloat16", 9, 64).num_warps == 8  # type: ignore[operator]
    assert 'def other_bfloat16(rows: int, hidden: int) -> "ToyConfig":' in text
    trees = parse.trees(text)
    assert trees == {one.key: one.tree for one in functions}
    assert type(trees[Key.parse("other", "bfloat16")].config) is ToyConfig  # type: ignore[union-attr]
    with pytest.raises(Exception, match="form that normtune does not write"):
        parse.trees(text.replace("return TOY_BLOCK_64_WARPS_8", "return RMSNORM_ROW_WARPS_8"))


def test_configs_of_all_classes_are_values() -> None:
    unknown = Config.from_json('{"tile":4,"way":"x"}')
    for config in (ToyConfig(64, 2), COPY, Implementation("torch"), unknown):
        assert pickle.loads(pickle.dumps(config)) == config
        assert type(config).from_json(config.to_json()) == config
    mixed = [ToyConfig(64, 2), COPY, Implementation("torch"), unknown, ToyConfig(32, 4)]
    assert sorted(mixed) == sorted(reversed(mixed))
    assert str(ToyConfig(64, 4)) == "block=64 warps=4" and str(ToyConfig()) == "warps=4"
    with pytest.raises(TypeError, match=r"Wrong\.rows is annotated <class 'float'>: a knob is int or str"):
        type("Wrong", (Config,), {"__annotations__": {"rows": float}})
    with pytest.raises(TypeError, match=r"Wrong\.rows has the default 'x': expected int"):
        type("Wrong", (Config,), {"__annotations__": {"rows": int}, "rows": "x"})
    with pytest.raises(TypeError, match="expected ASCII without quotes"):
        type("Wrong", (Config,), {"__annotations__": {"rows": Annotated[int, 'a "quote"']}})


def test_a_file_that_registers_nothing_or_fails_is_told_and_forgotten(tmp_path) -> None:
    for text, told in (
        ("", "it registers no operator"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ):
        (tmp_path / "mine.py").write_text(text)
        with pytest.raises(UsageError, match=rf"cannot load operators from .*mine.py: {told}"):
            load_file.load(tmp_path / "mine.py")
        assert load_file.loaded() == ()


def test_a_spec_reads_texts_of_other_knobs() -> None:
    spec: OperatorSpec = rms_norm_forward
    assert spec.read_config(COPY.to_json()) is COPY
    assert spec.read_config('{"implementation":"torch"}') == Implementation("torch")
    old = spec.read_config('{"tile":4}')
    assert old._fields == ("tile",) and not spec.is_legal(old, spec.problem(1, 64, "float16"), H200)
    with pytest.raises(ValueError, match="num_warps is 'four'"):
        spec.read_config(RMSNormConfig("row").to_json().replace('"num_warps":4', '"num_warps":"four"'))


def test_the_table_of_an_example_is_as_it_was_written() -> None:
    done = main("check", "--quick", "--load", EXAMPLES / "softmax.py", EXAMPLES / "softmax_h200.py")
    assert done.exit_code == 0, done.output
    assert "its kernels are those that were measured" in done.output


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "matmul"])
def test_the_tables_of_the_examples_are_those_of_their_sweeps(name) -> None:
    table = EXAMPLES / f"{name}_h200.py"
    done = main("check", "--load", EXAMPLES / f"{name}.py", table)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, f"{table}: OK"), done.output
    assert f"equal, byte for byte, to a fit of {name}_h200.parquet" in done.output
    assert "its kernels are those that were measured" in done.output


def test_files_of_one_name_have_the_fingerprints_that_each_has_alone(tmp_path, monkeypatch) -> None:
    files: list[Path] = []
    alone, texts = [], {"first": (EXAMPLES / "softmax.py").read_text()}
    texts["second"] = texts["first"].replace("tl.exp(", "tl.exp2(")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        files.append(tmp_path / name / "softmax.py")
        files[-1].write_text(texts[name].replace("softmax", f"{name}_softmax").replace(f"torch.{name}_", "torch."))
    for file, name in zip(files, ("first", "second"), strict=True):
        with monkeypatch.context() as patch:
            forgetting(patch)
            load_file.load(file)
            alone.append(fingerprint.fingerprint(operator.operator(f"{name}_softmax")))
        fingerprint.forget()
    for file in files:
        load_file.load(file)
    both = [fingerprint.fingerprint(operator.operator(f"{name}_softmax")) for name in ("first", "second")]
    assert both == alone and alone[0] != alone[1]
    configs = [operator.operator(f"{name}_softmax").config for name in ("first", "second")]
    assert [pickle.loads(pickle.dumps(config)) for config in configs] == configs and configs[0] is not configs[1]


def test_what_is_not_loaded_is_told() -> None:
    done = main("check", EXAMPLES / "softmax_h200.py")
    assert done.exit_code == 1 and "unknown operator 'softmax'" in done.output and "--load" in done.output
    done = main("sweep", "--load", "/nowhere.py")
    assert (
        done.exit_code == 2
        and "cannot load operators from /nowhere.py: expected an existing Python file" in done.output
    )


@pytest.mark.slow
def test_what_torch_does_was_timed_beside_the_configs() -> None:
    load_file.load(EXAMPLES / "softmax.py")
    evidence = read_parquet(EXAMPLES / "softmax_h200.parquet")
    matrix = timing_matrix(evidence, operator.operator("softmax"), operator.operator("softmax").key("bfloat16"), H200)
    assert matrix is not None and len(matrix.problems) == 188
    column = matrix.configs.index(Implementation("torch"))
    assert matrix.timed[:, column].all() and (matrix.regret[:, column] > 0).mean() > 0.9


class TileConfig(Config):
    """How a product is launched."""

    BLOCK: Annotated[int, "rows and columns a program."] = 64
    num_warps: int = 4


def of_three_sizes(**changes):
    """The declaration of a product of matrices, on a function that raises."""
    arguments = {
        "config": TileConfig,
        "space": {"BLOCK": (16, 64), "num_warps": (4,)},
        "axes": {"m": (1, 64), "n": (128,), "k": (32, 512)},
        "buffers": {"a": "input m,k", "b": "weight k,n", "c": "output"},
        "reference": lambda a, b: a @ b,
        "name": "product",
    }
    return kernel_operator(**(arguments | changes))(lambda a, b, c, config: None)


def test_an_operator_names_up_to_three_sizes() -> None:
    of_three_sizes()
    family, member = operator.operator("product"), operator.operator("product.k=512")
    assert (*family.axes,) == (*member.axes,) == ("m", "n", "k")
    assert [axis.axis for axis in family.whole] == ["m", "n", "k"]
    problem = family.problem_at((64, 128, 512), "float16")
    assert problem == member.problem(64, 128, "float16")
    assert problem.sizes == {"m": 64, "n": 128, "k": 512}
    assert [buffer.shape for buffer in member.buffers(problem)] == [(64, 512), (512, 128), (64, 128)]
    assert Problem.at(family.key("float16"), (64, 128, 512)) == problem
    found = problems(["product"], ["float16"], [(3, 5, 7), (1, 1, 32)])
    assert [str(one) for one in found] == ["product.k=7 float16 3 x 5", "product.k=32 float16 1 x 1"]
    assert len(problems(["product"], ["float16"], lambda spec: [(1, 128), (64, 128)])) == 4


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"axes": {"m": ()}}, "it has the axes m: expected two or three"),
        ({"axes": {"m": (), "n": (), "Rows": ()}}, "axis 'Rows': expected small letters, digits and _"),
        ({"axes": {"m": (), "n": (), "dtype": ()}}, "axis 'dtype': expected small letters, digits and _, and none of"),
        ({"axes": {"m": (0,), "n": (), "k": (1,)}}, r"axis m has \(0,\): expected positive integers"),
        ({"buffers": {"a": "input m,k", "b": "weight k,rows", "c": "output"}}, "is neither a shape .of m, n, k."),
        ({"sizes": {"n": (1,)}}, "an axis and a named integer have one name: m, n, k, n, k"),
        (
            {"legal": lambda config, problem, target: problem.sizes["k"] > 8},
            "legal refuses .* at k 1 and allows it at k 64: expected an illegal config to stay illegal for larger k",
        ),
    ],
)
def test_faults_of_sizes_are_told(changes, told) -> None:
    with pytest.raises(UsageError, match=told):
        of_three_sizes(**changes)


class _ModeConfig(Config):
    """A config with a text."""

    mode: str
    num_warps: int


def test_a_text_is_not_the_list_of_its_letters() -> None:
    with pytest.raises(UsageError, match="space of mode is 'fast': expected a list of values of type str"):
        declared(config=_ModeConfig, space={"mode": "fast", "num_warps": (4,)})
