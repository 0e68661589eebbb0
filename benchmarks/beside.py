"""normtune and its peers at one problem of a case, timed in the same rounds.

In: an engine, a problem, sides. Out: a cell: the samples of each side, or the reason of its failure. Each is checked
against float64 first, at the problem's own size. Times follow docs/measuring.md, "Timing"; a forward runs under
no_grad, a backward through autograd, without its forward. The scripts choose problems and order.
"""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from normtune.benchmarks.cases import CASES, Case
from normtune.benchmarks.peers_report import Key
from normtune.benchmarks.sides import OURS, Function, Side

BLOCKS, ROUNDS = 5, 4
# Relative to the largest value: peers round at other steps than the reference.
TOLERANCE = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 2e-5}


# (function of a side, tensors of a slice, stream) to one launch.
Calls = Callable[[Any, dict[str, Any], Any], Callable[[], Any]]


class SideFailedError(Exception):
    """One side cannot be timed."""

    def __init__(self, side: str, cause: Exception) -> None:
        super().__init__(f"{side}: {said(cause)}")
        self.side = side
        self.reason = said(cause)


def identity(target: Any, name: str, dtype: str, rows: int, hidden: int) -> dict[str, Any]:
    """Identity of normtune's time at a problem: kernels, config, and float32 elements of partial sums."""
    from normtune.kernels.calling.dispatch import config_for
    from normtune.kernels.fingerprint import fingerprint

    spec, problem = problem_of(name, dtype, rows, hidden)
    config = config_for(spec, problem, target, 0)
    if not spec.is_legal(config, problem, target):  # as in dispatch: the table is that of another GPU
        config = spec.default_config(problem, target)
    workspace = spec.resolve(config, problem, target, None).workspace
    return {"kernels": fingerprint(spec), "config": str(config), "workspace": workspace}


def problem_of(name: str, dtype: str, rows: int, hidden: int) -> tuple[Any, Any]:
    from normtune.kernels.operator import operator

    spec = operator(CASES[name].operator)
    return spec, spec.problem(rows, hidden, dtype, CASES[name].variant)


def buffers_of(case: Case, dtype: str, rows: int, hidden: int) -> list[Any]:
    """What a launch of a case reads; FP8's given scale is one more."""
    from normtune.kernels.problem import Buffer

    buffers = [Buffer(name, (rows, hidden), dtype, "input") for name in case.rows_of]
    return buffers + [Buffer(name, (hidden,), dtype, "weight") for name in case.columns_of]


def calls_of(case: Case) -> Calls:
    """Launches of a case on one slice: the forward, or the backward of a forward that has run."""
    if case.inputs:
        return lambda function, tensors, stream: gradients(function, tensors, case.inputs, case.outer, stream)
    return lambda function, tensors, stream: without_gradients(lambda: function(tensors))


def measure(engine: Any, key: Key, sides: dict[str, Side]) -> dict[str, Any]:
    """One problem of a case: samples of every side and of the copy, or the reason why a side has none.

    Raises:
        SideFailedError: normtune failed.
    """
    name, dtype, rows, hidden = key
    case, (spec, problem) = CASES[name], problem_of(*key)
    results: dict[str, dict[str, Any]] = {side: {"version": part.version} for side, part in sides.items()}
    results[OURS] |= identity(engine.target, *key)
    functions: dict[str, Any] = {}
    for side, part in sides.items():
        try:
            function = part.make(rows, hidden)
            check(function, part, case, dtype, rows, hidden)
            functions[side] = function
        # Any exception of a peer is its own result.
        except Exception as error:
            _leave_out(SideFailedError(side, error), results)
    samples, footprint = None, spec.bytes_moved(problem)
    while samples is None:
        try:
            buffers = buffers_of(case, dtype, rows, hidden)
            samples = timed(engine.ready(), buffers, footprint, calls_of(case), functions)
        except SideFailedError as error:
            _leave_out(error, results)
            del functions[error.side]
    for side, times in samples.items():
        results.setdefault(side, {}).update(median_us=round(median(times) / 1e3, 3), samples_ns=times)
    cell = {"pass": name, "dtype": dtype, "rows": rows, "hidden": hidden, "bytes": footprint, "sides": results}
    setting = {"device": engine.device.name, "software": engine.software, "sm_clock_mhz": engine.sm_clock_mhz}
    return cell | setting


def said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def _leave_out(error: SideFailedError, told: dict[str, dict[str, Any]]) -> None:
    if error.side == OURS:
        raise error
    told[error.side]["failed"] = error.reason


def check(function: Function, part: Side, case: Case, dtype: str, rows: int, hidden: int, device: str = "cuda") -> None:
    """Compare a case with float64, under the witness of its side.

    Raises:
        ValueError: the error is too large.
    """
    import torch

    kind = getattr(torch, dtype)
    tensors = {name: torch.randn(rows, hidden, device=device, dtype=kind) for name in case.rows_of}
    tensors |= {name: torch.randn(hidden, device=device, dtype=kind) for name in case.columns_of}
    wide = {name: tensor.double() for name, tensor in tensors.items()}
    with torch.set_grad_enabled(bool(case.inputs)), part.witness():
        given, exact = ({**of, **{name: of[name].requires_grad_() for name in case.inputs}} for of in (tensors, wide))
        results, wanted = function(given), case.exact(exact)
        named = [f"result {place}" for place in range(len(wanted))]
        if case.inputs:
            named = [f"d{name}" for name in case.inputs]
            # A kept graph, as in the timing: a backward that is compiled at its first run is compiled for that.
            results, wanted = (
                torch.autograd.grad(
                    made,
                    [of[name] for name in case.inputs],
                    [of[name].clone() for name in case.outer],
                    retain_graph=True,
                )
                for made, of in ((results, given), (wanted, exact))
            )
        results = case.readable(results, tensors)
    for name, value, right in zip(named, results, wanted, strict=True):
        off = float((value.detach().double() - right.detach()).abs().max() / right.detach().abs().max())
        if not off <= (case.tolerance or TOLERANCE[dtype]):
            raise ValueError(f"{name} is off by {off:.2g} of its largest value")


def timed(
    timer: Any, buffers: Sequence[Any], footprint: int, calls: Calls, functions: dict[str, Any]
) -> dict[str, list[int]]:
    """Nanoseconds of each side and of the copy, in the same rounds.

    Args:
        timer: of the device.
        buffers: what a launch reads.
        footprint: bytes that a perfect kernel moves.
        calls: (function of a side, tensors, stream) to one launch without arguments.
        functions: of the sides.

    Raises:
        SideFailedError: a side cannot be launched or captured.
    """
    import torch

    times: dict[str, list[int]] = {side: [] for side in ("copy", *functions)}
    for _ in range(BLOCKS):
        torch.cuda.empty_cache()  # the memory of the last block's graphs is still held
        for side, samples in _block(timer, buffers, footprint, calls, functions).items():
            times[side] += samples
    return times


def _block(
    timer: Any, buffers: Sequence[Any], footprint: int, calls: Calls, functions: dict[str, Any]
) -> dict[str, list[int]]:
    """The rounds of one draw of offsets and one capture of each side."""
    import torch

    from normtune.kernels.problem import Buffer
    from normtune.tuner.timing import memory
    from normtune.tuner.timing.batch import Captured
    from normtune.tuner.timing.protocol import timed_launches

    words = (-(-footprint // 8),)
    copied = (Buffer("source", words, "float32", "input"), Buffer("target", words, "float32", "output"))
    count = 1 + timed_launches(footprint)
    slices = timer.arena.slices(buffers, count)
    copies = timer.arena.slices(copied, count)
    graphs: dict[str, Any] = {"copy": Captured(timer, lambda t: memory.copy(t["source"], t["target"]), copies, 1)}
    # A side's outputs live as long as its graph, else it would write to the same memory again, in the cache.
    outputs: list[Any] = []
    for side, function in functions.items():
        try:
            made: list[Any] = [_launched(calls(function, tensors, timer.stream), timer.stream) for tensors in slices]
            torch.cuda.synchronize()
            graphs[side] = Captured(timer, lambda call: outputs.append(call["call"]()), made, 1)  # type: ignore[operator]
        except Exception as error:
            raise SideFailedError(side, error) from error
    return timer.rounds.of(graphs, ROUNDS, repeatable=False)


def _launched(call: Callable[[], Any], stream: Any) -> dict[str, Callable[[], Any]]:
    """A launch that has run once, so that it compiles nothing when it is captured."""
    import torch

    with torch.cuda.stream(stream):
        call()
    return {"call": call}


def without_gradients(call: Callable[[], Any]) -> Callable[[], Any]:
    import torch

    def quiet() -> Any:
        with torch.no_grad():
            return call()

    return quiet


def gradients(
    forward: Callable[[dict[str, Any]], tuple[Any, ...]],
    tensors: dict[str, Any],
    inputs: Sequence[str],
    outer: Sequence[str],
    stream: Any,
) -> Callable[[], Any]:
    """The backward of a forward that has run.

    Args:
        forward: tensors by name to outputs.
        tensors: of a slice.
        inputs: names of those that get a gradient.
        outer: names of the gradients of the outputs.
        stream: of the launches: the engine runs a backward on the stream of its forward.
    """
    import torch

    given = {**tensors, **{name: tensors[name].detach().requires_grad_() for name in inputs}}
    of_outputs = [tensors[name].clone() for name in outer]
    with torch.cuda.stream(stream):
        outputs = forward(given)
    return lambda: torch.autograd.grad(outputs, [given[name] for name in inputs], of_outputs, retain_graph=True)
