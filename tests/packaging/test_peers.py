"""`benchmarks/peers.py` without a GPU: its sides, its checks, repeated measurements, its end."""

import importlib
import json
import os
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from normtune.benchmarks import beside, cases, peers, sides
from normtune.benchmarks.cases import CASES, RMS_NORM
from normtune.benchmarks.peers_report import read
from normtune.benchmarks.sides import Function, Side, Tensors
from normtune.kernels.target import TARGETS
from normtune.tuner.timing.arena import Arena
from normtune.tuner.timing.protocol import timed_launches

pytestmark = pytest.mark.slow  # a benchmark, or what documents say of it

KEY = ("backward", "bfloat16", 64, 128)
IDENTITY = {"kernels": "sha256:1", "config": "row warps=4", "workspace": 0}


def norm(given: Tensors) -> tuple[torch.Tensor, ...]:
    x, weight = given["x"], given["weight"]
    return (torch.nn.functional.rms_norm(x, x.shape[-1:], weight, sides.EPS),)


def side(version: str = "1") -> Side:
    return Side(version, lambda rows, hidden: norm)


def cell(**told: dict) -> dict:
    head = dict(zip(("pass", "dtype", "rows", "hidden"), KEY, strict=True))
    return head | {"sides": {"normtune": {"version": "1"} | IDENTITY, "copy": {"median_us": 1.0}} | told}


@pytest.mark.parametrize("name", ["forward", "backward"])
@pytest.mark.parametrize("dtype", beside.TOLERANCE)
def test_a_right_norm_passes_and_a_wrong_one_is_told(name: str, dtype: str) -> None:
    torch.manual_seed(0)
    beside.check(norm, side(), CASES[name], dtype, 40, 200, device="cpu")
    for wrong in (
        lambda given: (norm(given)[0] * 1.05,),
        lambda given: (norm(given)[0].index_fill(0, torch.tensor([7]), 0.0),),
    ):
        with pytest.raises(ValueError, match="off by"):
            beside.check(wrong, side(), CASES[name], dtype, 40, 200, device="cpu")


def test_a_weight_gradient_alone_that_is_wrong_is_told() -> None:
    def wrong(given: Tensors) -> tuple[torch.Tensor, ...]:
        return norm({"x": given["x"], "weight": given["weight"] * 2 - given["weight"].detach()})

    beside.check(wrong, side(), CASES["forward"], "float32", 40, 200, device="cpu")
    with pytest.raises(ValueError, match="dweight is off by 1 "):
        beside.check(wrong, side(), CASES["backward"], "float32", 40, 200, device="cpu")


def test_inductor_without_a_triton_kernel_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    def launch(kernel: object, *, stream: int) -> int:
        return stream

    monkeypatch.setattr(CachingAutotuner, "run", launch)
    kernel = object.__new__(CachingAutotuner)
    with sides.triton_ran():
        thread = threading.Thread(target=lambda: kernel.run(stream=3))  # as a backward's, of the autograd engine
        thread.start()
        thread.join()
    assert CachingAutotuner.run is launch
    part = Side("1", lambda rows, hidden: norm, sides.triton_ran)
    for name in RMS_NORM:
        with pytest.raises(RuntimeError, match="no Triton kernel"):
            beside.check(norm, part, CASES[name], "float32", 4, 64, device="cpu")
    assert CachingAutotuner.run is launch


def test_the_rule_of_a_proposal_takes_the_place_of_the_constants() -> None:
    def blocks(rows: int, block: int) -> str:
        return "row" if block > 256 or rows < 4096 * 8 else "block"

    assert [blocks(4096, 512), blocks(40000, 256)] == ["row", "block"]
    sides.with_constants(blocks, sides.LIGER_1238)
    shapes = ((4096, 512), (4095, 512), (4096, 513), (40000, 64))
    assert [blocks(*shape) for shape in shapes] == ["block", "row", "row", "block"]
    assert [sides.is_block_row(*shape, 512, 4096) for shape in shapes] == [True, False, False, True]
    with pytest.raises(ValueError, match="blocks has no constant 256"):
        sides.with_constants(blocks, sides.LIGER_1238)


@pytest.mark.parametrize("name", ["forward", "backward", "fused_add", "fused_add_backward"])
def test_liger_cute_counts_only_where_liger_keeps_to_its_cute_kernels(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    backends = pytest.importorskip("liger_kernel.backends")
    dispatch = importlib.import_module("liger_kernel.backends.dispatch")
    operator = "fused_add_rms_norm" if name.startswith("fused_add") else "rms_norm"

    def cute(x: torch.Tensor, *rest: object, mode: None) -> object:
        if x.shape[-1] % 4:
            dispatch.emit_fallback_warning(operator, "nvidia-cutedsl", "nvidia-triton", "odd")
        if operator == "rms_norm":
            return norm({"x": x, "weight": rest[0]})[0]
        return cases._exact_fused_add({"x": x, "residual": rest[0], "weight": rest[1]})

    impl = backends.OpImpl(operator, "nvidia-cutedsl", forward=cute)
    monkeypatch.setattr("liger_kernel.backends.registry._REGISTRY", {(operator, impl.impl_name): impl})
    monkeypatch.setattr("liger_kernel.backends.registry._DISCOVERED", {operator: True})
    for module in ("cutlass", "cutlass.cute"):
        monkeypatch.setitem(sys.modules, module, ModuleType(module))
    monkeypatch.setattr(sides, "version", lambda name: {"liger-kernel": "1", "nvidia-cutlass-dsl": "2"}[name])
    part = CASES[name].sides["liger_cute"]()
    assert part.version == "1 with nvidia-cutlass-dsl 2"
    before = dict(os.environ)
    beside.check(part.make(40, 200), part, CASES[name], "float32", 40, 200, device="cpu")
    with pytest.raises(backends.ImplNotAvailableError, match="falling back to 'nvidia-triton'"):
        beside.check(part.make(40, 201), part, CASES[name], "float32", 40, 201, device="cpu")
    assert dict(os.environ) == before


def test_without_the_compiler_of_cute_its_side_takes_no_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "cutlass.cute", None)
    assert list(cases.installed(CASES["backward"], ["liger_cute"])) == ["normtune"]
    assert "liger_cute takes no part in rms_norm_backward: import of cutlass.cute halted" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "expected"), [("peer", "torch, inductor"), ("case", "forward, backward")])
def test_an_unknown_name_is_told(monkeypatch: pytest.MonkeyPatch, option: str, expected: str) -> None:
    monkeypatch.setattr("sys.argv", ["peers.py", f"--{option}s", "none"])
    with pytest.raises(SystemExit, match=f"unknown {option} 'none': expected some of {expected}"):
        peers.main(RMS_NORM, "bfloat16", "peers.jsonl", None)


def test_a_side_that_is_not_installed_takes_no_part(capsys: pytest.CaptureFixture) -> None:
    def missing() -> Side:
        raise ImportError("no quack")

    case = CASES["forward"]._replace(sides={"torch": side, "quack": missing})
    assert list(cases.installed(case)) == ["normtune", "torch"]
    assert list(cases.installed(case, ["quack"])) == ["normtune"]
    assert "quack takes no part in rms_norm_forward: no quack" in capsys.readouterr().err


def test_a_problem_is_measured_again_with_all_its_sides_once_one_is_new() -> None:
    there = {name: side() for name in ("normtune", "torch", "liger", "quack")}
    known = cell(torch={"version": "1", "median_us": 2.0}, liger={"version": "1", "failed": "ValueError: no"})
    before = peers.sides_of(known, {"normtune", "torch", "liger"}, there)
    assert peers.is_done(known, before, IDENTITY)  # the failure of liger is a result
    again = peers.sides_of(known, {"normtune", "quack"}, there)
    assert set(again) == {"normtune", "torch", "liger", "quack"}
    assert not peers.is_done(known, again, IDENTITY)
    assert set(peers.sides_of(None, {"normtune", "quack"}, there)) == {"normtune", "quack"}


def test_a_problem_is_measured_again_once_a_version_or_a_kernel_is_another() -> None:
    sides_now = {"normtune": side(), "torch": side()}
    known = cell(torch={"version": "1", "median_us": 2.0})
    assert peers.is_done(known, sides_now, IDENTITY)
    assert not peers.is_done(known, sides_now | {"torch": side("2")}, IDENTITY)
    assert not peers.is_done(known, sides_now, IDENTITY | {"kernels": "sha256:2"})
    assert not peers.is_done(known, sides_now, IDENTITY | {"config": "row warps=8"})
    assert not peers.is_done(None, sides_now, IDENTITY)


def test_what_normtune_is_measured_as_is_that_of_the_launch() -> None:
    found = beside.identity(TARGETS["sm_90"], "backward", "bfloat16", 4096, 4096)
    spec, problem = beside.problem_of("backward", "bfloat16", 4096, 4096)
    launch = spec.resolve(spec.default_config(problem, TARGETS["sm_90"]), problem, TARGETS["sm_90"], None)
    assert found["workspace"] == launch.workspace == launch.grid * 4096
    assert found["kernels"].startswith("sha256:") and found["config"] == str(
        spec.default_config(problem, TARGETS["sm_90"])
    )


def test_the_budget_stops_before_a_problem_and_says_what_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "peers.jsonl"
    left = [((*KEY[:2], rows, 128), {}) for rows in (1, 2, 3)]

    def measure(key: tuple, sides: dict) -> dict:
        passed.append(1.0)
        return cell() | {"rows": key[2]}

    passed = [0.0]
    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=lambda: sum(passed)))
    peers.run(left, out, 0.5, 0.0, measure)
    assert [found["rows"] for found in read(out)] == [1]
    assert capsys.readouterr().out.endswith("2 of 3 problems left: the same command goes on\n")
    assert peers.run(left, out, 0.0, 1.0, measure) == []
    assert len(read(out)) == 1


def test_a_failure_of_normtune_stays_unwritten_and_the_others_go_on(tmp_path: Path) -> None:
    def measure(key: tuple, sides: dict) -> dict:
        if key[2] == 1:
            raise beside.SideFailedError("normtune", ValueError("y is off"))
        return cell() | {"rows": key[2]}

    out = tmp_path / "peers.jsonl"
    left = [((*KEY[:2], rows, 128), {}) for rows in (1, 2)]
    assert peers.run(left, out, None, time.monotonic(), measure) == ["backward bfloat16 1 x 128"]
    assert [found["rows"] for found in read(out)] == [2]


def test_a_line_that_was_cut_off_costs_itself_alone(tmp_path: Path) -> None:
    out = tmp_path / "peers.jsonl"
    peers.append(out, cell() | {"rows": 1})
    with out.open("a") as file:
        file.write(json.dumps(cell() | {"rows": 2})[:40])
    peers.append(out, cell() | {"rows": 3})
    assert [found["rows"] for found in read(out)] == [1, 3]
    newer = cell(torch={"version": "2", "median_us": 1.0}) | {"rows": 1}
    peers.append(out, newer)
    before = read(out)
    peers.keep_newest(out)
    assert read(out) == before and len(out.read_text().splitlines()) == 2
    assert newer in before
    peers.keep_newest(tmp_path / "none.jsonl")
    assert [file.name for file in tmp_path.iterdir()] == ["peers.jsonl"]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """An engine whose timing fails for the sides named `breaks`, and checks on the CPU."""

    def timed(timer: object, buffers: list, footprint: int, calls: object, norms: dict) -> dict[str, list[int]]:
        for broken in (found for found in norms if found == "breaks"):
            raise beside.SideFailedError(broken, RuntimeError("operation not permitted when stream is capturing\nmore"))
        return {name: [1000, 3000, 2000] for name in ("copy", *norms)}

    check = beside.check
    monkeypatch.setattr(beside, "timed", timed)
    monkeypatch.setattr(beside, "check", lambda *arguments: check(*arguments, device="cpu"))
    device = SimpleNamespace(name="GPU")
    return SimpleNamespace(target=TARGETS["sm_90"], device=device, software={}, ready=lambda: None, sm_clock_mhz=1980)


def test_a_side_that_fails_is_left_out_and_the_others_are_timed(engine: SimpleNamespace) -> None:
    def refuses(rows: int, hidden: int) -> Function:
        raise ValueError("the same as liger at this shape")

    wrong = Side("2", lambda rows, hidden: lambda given: (given["x"] * given["weight"],))
    there = {"normtune": side(), "torch": side(), "breaks": side(), "wrong": wrong, "not_here": Side("3", refuses)}
    measured = beside.measure(engine, KEY, there)
    assert measured["sm_clock_mhz"] == 1980
    found = measured["sides"]
    assert {name for name, told in found.items() if told.get("median_us") == 2.0} == {"normtune", "torch", "copy"}
    assert found["breaks"]["failed"] == "RuntimeError: operation not permitted when stream is capturing"
    assert "off by" in found["wrong"]["failed"] and "samples_ns" not in found["wrong"]
    assert found["not_here"] == {"version": "3", "failed": "ValueError: the same as liger at this shape"}
    assert peers.is_done(cell() | {"sides": found}, there, beside.identity(engine.target, *KEY))


def test_normtune_cannot_be_left_out(engine: SimpleNamespace) -> None:
    wrong = Side("1", lambda rows, hidden: lambda given: (given["x"] * given["weight"],))
    with pytest.raises(beside.SideFailedError, match="normtune: ValueError: dx is off by"):
        beside.measure(engine, KEY, {"normtune": wrong, "torch": side()})


class Graph:
    """In place of a captured graph: keeps its slices and launches them at once."""

    def __init__(self, timer: SimpleNamespace, launch, slices: list, lead_in: int) -> None:
        assert lead_in == 1
        timer.graphs.append(self)
        self.slices = slices
        for tensors in slices:
            launch(tensors)


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A timer on the CPU; a round of a graph takes as many nanoseconds as it has launches."""

    def rounds_of(graphs: dict, count: int, repeatable: bool) -> dict[str, list[int]]:
        return {label: [len(graph.slices)] * count for label, graph in graphs.items()}

    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr("normtune.tuner.timing.batch.Captured", Graph)
    monkeypatch.setattr("normtune.tuner.timing.memory.copy", lambda source, target: target.copy_(source))
    arena = Arena(torch.device("cpu"), 0)
    return SimpleNamespace(arena=arena, stream=None, graphs=[], rounds=SimpleNamespace(of=rounds_of))


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_all_sides_are_timed_on_the_same_slices_and_a_copy_of_as_many_bytes(name: str, timer: SimpleNamespace) -> None:
    seen: list[tuple[int, int, int]] = []

    def watched(given: Tensors) -> tuple[torch.Tensor, ...]:
        (y,) = norm(given)
        seen.append((given["x"].data_ptr(), given["weight"].data_ptr(), y.data_ptr()))
        return (y,)

    spec, problem = beside.problem_of(name, "float32", 8, 64)
    footprint = spec.bytes_moved(problem)
    buffers, calls = beside.buffers_of(CASES[name], "float32", 8, 64), beside.calls_of(CASES[name])
    times = beside.timed(timer, buffers, footprint, calls, {"normtune": watched, "torch": norm})
    launches = 1 + timed_launches(footprint)
    assert times == {side: [launches] * (beside.BLOCKS * beside.ROUNDS) for side in ("copy", "normtune", "torch")}
    copies = timer.graphs[::3]
    assert len(timer.graphs) == 3 * beside.BLOCKS and all(len(graph.slices) == launches for graph in timer.graphs)
    moved = sum(tensor.nbytes for tensor in copies[0].slices[0].values())
    assert 0 <= moved - footprint < 8
    # Called by hand once and once more when it is captured; a backward's forward runs once, by hand.
    calls = 2 if name == "forward" else 1
    assert len(seen) == beside.BLOCKS * launches * calls
    inputs = [x for x, _, _ in seen[: launches * calls]]
    assert len(set(inputs)) == launches
    assert len({weight for _, weight, _ in seen[: launches * calls]}) == 1
    if name == "forward":  # what a captured launch wrote stays its own
        assert len({y for _, _, y in seen[launches : 2 * launches]}) == launches


def test_a_backward_is_that_of_its_slice_however_often_it_is_launched(timer: SimpleNamespace) -> None:
    tensors = {"x": torch.randn(8, 64), "dy": torch.randn(8, 64), "weight": torch.randn(64)}
    call = beside.calls_of(CASES["backward"])(norm, tensors, None)
    x, weight = tensors["x"].requires_grad_(), tensors["weight"].requires_grad_()
    wanted = torch.autograd.grad(norm(tensors), (x, weight), tensors["dy"])
    for _ in range(3):
        torch.testing.assert_close(call(), wanted)


def test_who_cannot_be_captured_is_named(timer: SimpleNamespace) -> None:
    def breaks(given: Tensors) -> tuple[torch.Tensor, ...]:
        raise RuntimeError("operation not permitted")

    spec, problem = beside.problem_of("forward", "float32", 8, 64)
    buffers, calls = beside.buffers_of(CASES["forward"], "float32", 8, 64), beside.calls_of(CASES["forward"])
    with pytest.raises(beside.SideFailedError) as caught:
        beside.timed(timer, buffers, spec.bytes_moved(problem), calls, {"normtune": norm, "quack": breaks})
    assert (caught.value.side, caught.value.reason) == ("quack", "RuntimeError: operation not permitted")
