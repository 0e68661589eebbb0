"""RMSNorm of normtune beside that of its peers: torch's fused one, Inductor, Liger-Kernel and quack, kernel time, cold.

    python benchmarks/peers.py [--peers torch,liger] [--shapes 4096x4096,1x8192] [--passes forward] [--dtypes float32]

Every peer that is installed takes part; Inductor compiles for seconds at each shape. For each problem all sides are
checked against float64, then timed in the same shuffled rounds by normtune's protocol (docs/design.md, "Timing
protocol"), a plain copy of as many bytes beside them; all get as many samples. A forward runs under no_grad, a backward
through autograd, without its forward. Each problem is written down once it is done, and the same command goes on with
the others. `benchmarks/peers_report.py` makes the tables.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
BLOCKS, ROUNDS = 5, 4
EPS = 1e-6
DTYPES = ("bfloat16", "float32")
PASSES = ("forward", "backward")
# Decode; normalized queries and keys; hidden sizes that are odd or no power of two; models in training; wide rows.
SHAPES = (
    *((1, 1024), (1, 4096), (1, 8192), (8, 4096), (32, 7168), (64, 2048), (128, 4096), (256, 8192), (512, 5120)),
    *((4096, 64), (4096, 128), (32768, 64), (32768, 128), (262144, 128), (65536, 192), (131072, 256)),
    *((1024, 1000), (4096, 1003), (2048, 4097), (8192, 2880), (4096, 6656), (16384, 1152)),
    *((1024, 2048), (4096, 1024), (4096, 2048), (4096, 3072), (4096, 4096), (4096, 5120), (4096, 7168), (4096, 8192)),
    *((8192, 3584), (8192, 4096), (16384, 2048), (16384, 4096), (16384, 7168), (32768, 1024), (32768, 4096)),
    *((1024, 16384), (4096, 12288), (4096, 16384), (8192, 16384), (1024, 32768), (4096, 32768), (8192, 32768)),
)

Norm = Callable[[Any, Any], Any]


def main() -> None:
    """Measure what is missing and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="only these, as torch,inductor,liger,quack")
    parser.add_argument("--shapes", help="only these, as 4096x4096,1x8192")
    parser.add_argument("--passes", default=",".join(PASSES))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--out", type=Path, help="default: peers.jsonl in the results of this GPU")
    options = parser.parse_args()

    from normtune.heuristics.locate import slug
    from normtune.tuner.cuda import CudaEngine

    engine = CudaEngine(0)
    out = options.out or FOLDER / slug(engine.device.name) / "peers.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    peers = installed(options.peers.split(",") if options.peers else None)
    shapes = SHAPES
    if options.shapes:
        shapes = tuple(tuple(map(int, shape.split("x"))) for shape in options.shapes.split(","))
    done = {key_of(cell): cell for cell in read(out)}
    for dtype in options.dtypes.split(","):
        for rows, hidden in shapes:
            for name in options.passes.split(","):
                known = done.get((name, dtype, rows, hidden))
                if known and set(peers) <= set(known["sides"]):
                    continue
                cell = measure(engine, name, dtype, rows, hidden, peers)
                with out.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
                told = {side: found.get("median_us", found.get("failed")) for side, found in cell["sides"].items()}
                print(name, dtype, f"{rows} x {hidden}", told, flush=True)
    engine.close()


def key_of(cell: dict[str, Any]) -> tuple[str, str, int, int]:
    """The problem of a cell."""
    return cell["pass"], cell["dtype"], cell["rows"], cell["hidden"]


def read(path: Path) -> list[dict[str, Any]]:
    """All cells of a file, the newest of each problem; a line that was cut off by a kill is left out."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            cell = json.loads(line)
        except ValueError:
            continue
        found[key_of(cell)] = cell
    return list(found.values())


def installed(names: list[str] | None) -> dict[str, tuple[str, Callable[[int], Norm]]]:
    """The sides: name to version and a function of hidden that makes the norm; normtune's own is always there."""
    import normtune

    made: dict[str, tuple[str, Callable[[int], Norm]]] = {
        "normtune": (normtune.__version__, lambda hidden: lambda x, weight: normtune.rms_norm(x, weight, EPS))
    }
    for name, make in PEERS.items():
        if names is not None and name not in names:
            continue
        try:
            made[name] = make()
        except ImportError as error:
            print(f"{name} takes no part: {error}")
    for name in set(names or ()) - set(PEERS):
        raise SystemExit(f"unknown peer {name!r}: expected some of {', '.join(PEERS)}")
    return made


def _torch() -> tuple[str, Callable[[int], Norm]]:
    import torch
    from torch.nn.functional import rms_norm

    return torch.__version__, lambda hidden: lambda x, weight: rms_norm(x, (hidden,), weight, EPS)


def _inductor() -> tuple[str, Callable[[int], Norm]]:
    import torch
    from torch._functorch import config as functorch_config

    def plain(x: Any, weight: Any) -> Any:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight.float()).to(x.dtype)

    # A backward that is captured runs more than once.
    functorch_config.donated_buffer = False

    def make(hidden: int) -> Norm:
        torch._dynamo.reset()  # each shape is compiled for itself
        return torch.compile(plain, dynamic=False)

    return torch.__version__, make


def _liger() -> tuple[str, Callable[[int], Norm]]:
    from importlib.metadata import version

    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    # In place, as its module does by default: the gradient of x takes the place of that of y.
    return version("liger-kernel"), lambda hidden: lambda x, weight: LigerRMSNormFunction.apply(x, weight, EPS)


def _quack() -> tuple[str, Callable[[int], Norm]]:
    from importlib.metadata import version

    from quack import rmsnorm

    return version("quack-kernels"), lambda hidden: lambda x, weight: rmsnorm(x, weight, eps=EPS)


PEERS: dict[str, Callable[[], tuple[str, Callable[[int], Norm]]]] = {
    "torch": _torch,
    "inductor": _inductor,
    "liger": _liger,
    "quack": _quack,
}


def measure(engine: Any, name: str, dtype: str, rows: int, hidden: int, peers: dict[str, Any]) -> dict[str, Any]:
    """One problem: samples of every side and of the copy, or why a side has none."""
    import torch

    from normtune.kernels.operator import operator

    spec = operator(f"rms_norm_{name}")
    problem = spec.problem(rows, hidden, dtype, "no_rstd" if name == "forward" else "")
    sides: dict[str, dict[str, Any]] = {side: {"version": version} for side, (version, _) in peers.items()}
    norms = {}
    for side, (_, make) in peers.items():
        try:
            norms[side] = make(hidden)
            check(norms[side], name, dtype, rows, hidden)
        # Whatever a peer throws is its own result.
        except Exception as error:
            norms.pop(side, None)
            sides[side]["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
    samples = timed(engine.ready(), problem, spec.bytes_moved(problem), name, norms)
    for side, times in samples.items():
        sides.setdefault(side, {})
        sides[side] |= {"median_us": round(float(torch.tensor(times).double().median()) / 1e3, 3), "samples_ns": times}
    clock = {"device": engine.device.name, "software": engine.software}
    return {"pass": name, "dtype": dtype, "rows": rows, "hidden": hidden, "sides": sides} | clock


def check(norm: Norm, name: str, dtype: str, rows: int, hidden: int) -> None:
    """Compare with float64, loosely: peers round at other places."""
    import torch

    kind = getattr(torch, dtype)
    x, dy = (torch.randn(min(rows, 512), hidden, device="cuda", dtype=kind) for _ in range(2))
    weight = torch.randn(hidden, device="cuda", dtype=kind)
    tolerance = {"bfloat16": 2e-2, "float32": 2e-5}[dtype]
    with torch.set_grad_enabled(name == "backward"):
        exact_x, exact_weight = (tensor.double().requires_grad_(name == "backward") for tensor in (x, weight))
        exact = exact_x * torch.rsqrt(exact_x.square().mean(-1, keepdim=True) + EPS) * exact_weight
        x, weight = (tensor.requires_grad_(name == "backward") for tensor in (x, weight))
        y = norm(x, weight)
        pairs = [(y, exact)]
        if name == "backward":
            wanted = torch.autograd.grad(exact, (exact_x, exact_weight), dy.double())
            pairs = list(zip(torch.autograd.grad(y, (x, weight), dy.clone()), wanted, strict=True))
    for found, wanted in pairs:
        off = (found.double() - wanted).abs().max() / wanted.abs().max()
        if not off <= tolerance:
            raise ValueError(f"off by {off:.2g} of the largest value")


def timed(timer: Any, problem: Any, footprint: int, name: str, norms: dict[str, Norm]) -> dict[str, list[int]]:
    """Nanoseconds of each side and of the copy, in the same rounds."""
    import torch

    from normtune.kernels.problem import Buffer
    from normtune.tuner import memory
    from normtune.tuner.protocol import timed_launches
    from normtune.tuner.timing import Captured

    shape = (problem.rows, problem.hidden)
    buffers = [Buffer("x", shape, problem.dtype, "input"), Buffer("weight", shape[1:], problem.dtype, "weight")]
    buffers += [Buffer("dy", shape, problem.dtype, "input")] * (name == "backward")
    words = (-(-footprint // 8),)
    copied = (Buffer("source", words, "float32", "input"), Buffer("target", words, "float32", "output"))
    count = 1 + timed_launches(footprint)
    times: dict[str, list[int]] = {side: [] for side in ("copy", *norms)}
    for _ in range(BLOCKS):
        torch.cuda.empty_cache()
        slices = timer.arena.slices(buffers, count)
        copies = timer.arena.slices(copied, count)
        graphs = {"copy": Captured(timer, lambda t: memory.copy(t["source"], t["target"]), copies, 1)}
        # What a side allocates lives as long as its graph, or it would write where it wrote before, into the cache.
        outputs: list[Any] = []
        for side, norm in norms.items():
            made = [calls(norm, tensors, name, timer.stream) for tensors in slices]
            torch.cuda.synchronize()
            graphs[side] = Captured(timer, lambda call, kept=outputs: kept.append(call["call"]()), made, 1)
        for side, found in timer.rounds_of(graphs, ROUNDS).items():
            times[side] += found
    return times


def calls(norm: Norm, tensors: dict[str, Any], name: str, stream: Any) -> dict[str, Any]:
    """What is launched on one slice: the forward, or the backward of a forward that has run."""
    import torch

    x, weight = tensors["x"], tensors["weight"]
    if name == "forward":

        def call() -> Any:
            with torch.no_grad():
                return norm(x, weight)
    else:
        x, weight, dy = x.detach().requires_grad_(), weight.detach().requires_grad_(), tensors["dy"].clone()
        with torch.cuda.stream(stream):  # the engine runs a backward on the stream of its forward
            y = norm(x, weight)

        def call() -> Any:
            return torch.autograd.grad(y, (x, weight), dy, retain_graph=True)

    with torch.cuda.stream(stream):
        call()
    return {"call": call}


if __name__ == "__main__":
    main()
