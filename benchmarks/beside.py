"""normtune and its peers at one problem, timed in the same rounds.

In: an engine, a problem, sides. Out: a cell: the samples of each side, or the reason of its failure. Each is checked
against float64 first, at the problem's own size. Times follow docs/measuring.md, "Timing"; a forward runs under
no_grad, a backward through autograd, without its forward. The scripts choose problems and order.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any

from normtune.benchmarks.sides import EPS, OURS, Norm, Side

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
    return identity_of(target, *problem_of(name, dtype, rows, hidden))


def identity_of(target: Any, spec: Any, problem: Any) -> dict[str, Any]:
    """As `identity`, for any operator."""
    from normtune.kernels.calling.dispatch import config_for
    from normtune.kernels.fingerprint import fingerprint

    config = config_for(spec, problem, target, 0)
    if not spec.is_legal(config, problem, target):  # as in dispatch: the table is that of another GPU
        config = spec.default_config(problem, target)
    workspace = spec.resolve(config, problem, target, None).workspace
    return {"kernels": fingerprint(spec), "config": str(config), "workspace": workspace}


def problem_of(name: str, dtype: str, rows: int, hidden: int) -> tuple[Any, Any]:
    """The operator of a pass and the problem: a forward keeps no tensor for a backward."""
    from normtune.kernels.operator import operator

    spec = operator(f"rms_norm_{name}")
    return spec, spec.problem(rows, hidden, dtype, "no_rstd" if name == "forward" else "")


def measure(engine: Any, name: str, dtype: str, rows: int, hidden: int, sides: dict[str, Side]) -> dict[str, Any]:
    """One problem: samples of every side and of the copy, or the reason why a side has none.

    Raises:
        SideFailedError: normtune failed.
    """
    spec, problem = problem_of(name, dtype, rows, hidden)

    def checked(norm: Norm, part: Side) -> None:
        check(norm, part, name, dtype, rows, hidden)

    found = compare(engine, spec, problem, buffers_of(problem, name), calls_of(name), checked, sides)
    return {"pass": name, "dtype": dtype, "rows": rows, "hidden": hidden, **found}


def compare(
    engine: Any,
    spec: Any,
    problem: Any,
    buffers: Sequence[Any],
    calls: Calls,
    checked: Callable[[Any, Side], None],
    sides: dict[str, Side],
) -> dict[str, Any]:
    """The sides at one problem of any operator: their samples and those of the copy, and where they were taken.

    Args:
        engine: of the device.
        spec: of normtune's operator, which knows the bytes that a perfect kernel moves.
        problem: of it.
        buffers: what a launch reads.
        calls: (function of a side, tensors, stream) to one launch without arguments.
        checked: raises if the results of a side are wrong.
        sides: by name.

    Raises:
        SideFailedError: normtune failed.
    """
    results: dict[str, dict[str, Any]] = {side: {"version": part.version} for side, part in sides.items()}
    results[OURS] |= identity_of(engine.target, spec, problem)
    functions: dict[str, Any] = {}
    for side, part in sides.items():
        try:
            function = part.make(problem.rows, problem.hidden)
            checked(function, part)
            functions[side] = function
        # Any exception of a peer is its own result.
        except Exception as error:
            _leave_out(SideFailedError(side, error), results)
    samples = None
    while samples is None:
        try:
            samples = timed(engine.ready(), buffers, spec.bytes_moved(problem), calls, functions)
        except SideFailedError as error:
            _leave_out(error, results)
            del functions[error.side]
    for side, times in samples.items():
        results.setdefault(side, {}).update(median_us=round(median(times) / 1e3, 3), samples_ns=times)
    setting = {"device": engine.device.name, "software": engine.software, "sm_clock_mhz": engine.sm_clock_mhz}
    return {"sides": results} | setting


def said(error: Exception) -> str:
    """Message of an error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def _leave_out(error: SideFailedError, told: dict[str, dict[str, Any]]) -> None:
    if error.side == OURS:
        raise error
    told[error.side]["failed"] = error.reason


def check(norm: Norm, part: Side, name: str, dtype: str, rows: int, hidden: int, device: str = "cuda") -> None:
    """Compare a pass with float64, under the witness of its side.

    Raises:
        ValueError: the error is too large.
    """
    import torch

    backward = name == "backward"
    kind = getattr(torch, dtype)
    x, dy = (torch.randn(rows, hidden, device=device, dtype=kind) for _ in range(2))
    weight = torch.randn(hidden, device=device, dtype=kind)
    with torch.set_grad_enabled(backward):
        exact_x, exact_weight = (tensor.double().requires_grad_(backward) for tensor in (x, weight))
        exact = exact_x * torch.rsqrt(exact_x.square().mean(-1, keepdim=True) + EPS) * exact_weight
        x, weight = (tensor.requires_grad_(backward) for tensor in (x, weight))
        with nullcontext() if backward else part.witness():
            y = norm(x, weight)
        pairs = [("y", y, exact)]
        if backward:
            wanted = torch.autograd.grad(exact, (exact_x, exact_weight), dy.double())
            # As in the timing: a backward that is compiled at its first run is compiled for a kept graph.
            with part.witness():
                gradients = torch.autograd.grad(y, (x, weight), dy.clone(), retain_graph=True)
            pairs += zip(("dx", "dweight"), gradients, wanted, strict=True)
    for which, value, exact in pairs:
        value, exact = value.detach().double(), exact.detach()
        off = float((value - exact).abs().max() / exact.abs().max())
        if not off <= TOLERANCE[dtype]:
            raise ValueError(f"{which} is off by {off:.2g} of its largest value")


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
    from normtune.tuner.timing.protocol import timed_launches
    from normtune.tuner.timing.timing import Captured

    words = (-(-footprint // 8),)
    copied = (Buffer("source", words, "float32", "input"), Buffer("target", words, "float32", "output"))
    count = 1 + timed_launches(footprint)
    slices = timer.arena.slices(buffers, count)
    copies = timer.arena.slices(copied, count)
    graphs = {"copy": Captured(timer, lambda t: memory.copy(t["source"], t["target"]), copies, 1)}
    # A side's outputs live as long as its graph, else it would write to the same memory again, in the cache.
    outputs: list[Any] = []
    for side, function in functions.items():
        try:
            made = [_launched(calls(function, tensors, timer.stream), timer.stream) for tensors in slices]
            torch.cuda.synchronize()
            graphs[side] = Captured(timer, lambda call: outputs.append(call["call"]()), made, 1)
        except Exception as error:
            raise SideFailedError(side, error) from error
    return timer.rounds_of(graphs, ROUNDS)


def _launched(call: Callable[[], Any], stream: Any) -> dict[str, Callable[[], Any]]:
    """A launch that has run once, so that it compiles nothing when it is captured."""
    import torch

    with torch.cuda.stream(stream):
        call()
    return {"call": call}


def buffers_of(problem: Any, name: str) -> list[Any]:
    """What a pass of RMSNorm reads."""
    from normtune.kernels.problem import Buffer

    shape = (problem.rows, problem.hidden)
    buffers = [Buffer("x", shape, problem.dtype, "input"), Buffer("weight", shape[1:], problem.dtype, "weight")]
    return buffers + [Buffer("dy", shape, problem.dtype, "input")] * (name == "backward")


def calls_of(name: str) -> Calls:
    """Launches of a norm on one slice: the forward, or the backward of a forward that has run."""
    if name == "forward":
        return lambda norm, tensors, stream: without_gradients(lambda: norm(tensors["x"], tensors["weight"]))
    return lambda norm, tensors, stream: gradients(
        lambda given: (norm(given["x"], given["weight"]),), tensors, ("x", "weight"), ("dy",), stream
    )


def without_gradients(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call under no_grad."""
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
