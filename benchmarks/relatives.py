"""The relatives of RMSNorm beside their peers, and beside a plain copy of as many bytes: kernel time, cold.

    python benchmarks/relatives.py [--cases gated,fp8_row] [--shapes 4096x4096,64x4096] [--dtypes bfloat16]
                                   [--budget SECONDS]

A case is a call as users make it: `fused_add`, `gated`, `fp8_static`, `fp8_row`, `fp8_block`, `fp8_transpose`
(static, in both layouts), and the backward of the first two. Every installed peer takes part: Inductor with the plain
formula, `chain` (RMSNorm of torch, then torch's other operations), Liger-Kernel, quack, flash-linear-attention. All
sides are checked against float64 first, get the same number of samples, and are resumed, as in `benchmarks/peers.py`.
`benchmarks/relatives_report.py` makes the table.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from normtune.benchmarks.peers import is_done, keep_newest, run
from normtune.benchmarks.peers_report import key_of, read
from normtune.benchmarks.sides import EPS, OURS, Side, compiled, triton_ran

# Decode and training; the sizes of Qwen3-Next's gate; FP8 up to 400 MB.
SHAPES = {
    "fused_add": ((1, 4096), (64, 4096), (2048, 5120), (4096, 2880), (4096, 4096), (16384, 2048), (32768, 4096)),
    "gated": ((24, 128), (1536, 128), (65536, 64), (4096, 4096), (262144, 192), (1449144, 128)),
    "fp8": ((1, 4096), (64, 4096), (4096, 4096), (8192, 2880), (8192, 8192), (32768, 4096)),
}
# Largest error over the largest value: FP8 rounds to 4 bits, and a scaled value by half a step of 32 at 448.
TOLERANCE = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 2e-5}
FP8_TOLERANCE = 0.04

Tensors = Mapping[str, Any]
# Tensors by name to results.
Function = Callable[[Tensors], tuple[Any, ...]]


class Case(NamedTuple):
    """A call of normtune, and what others have in its place.

    Attributes:
        operator, variant: of normtune, whose bytes a perfect kernel moves.
        shapes: one of `SHAPES`.
        rows_of, columns_of: names of the tensors of the shape of x and of weight.
        sides: makers by name; one that raises ImportError takes no part.
        exact: tensors in float64 to what `readable` makes of the results.
        readable: results and tensors to those that are compared.
        inputs: names of the tensors that get a gradient: the case is the backward.
        outer: names of the gradients of the results.
        tolerance: of the comparison; None for that of the dtype.
    """

    operator: str
    variant: str
    shapes: str
    rows_of: tuple[str, ...]
    columns_of: tuple[str, ...]
    sides: Mapping[str, Callable[[], Side]]
    exact: Function
    readable: Callable[[tuple[Any, ...], Tensors], tuple[Any, ...]] = lambda results, tensors: results
    inputs: tuple[str, ...] = ()
    outer: tuple[str, ...] = ()
    tolerance: float | None = None


def main() -> None:
    """Measure the missing problems and print."""
    start = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--shapes", help="only these, as 4096x4096,64x4096")
    parser.add_argument("--dtypes", default="bfloat16")
    parser.add_argument("--budget", type=float, help="begin no problem after so many seconds")
    parser.add_argument("--out", type=Path, help="default: relatives.jsonl in the results of this GPU")
    options = parser.parse_args()
    if unknown := set(options.cases.split(",")) - set(CASES):
        raise SystemExit(f"unknown case {min(unknown)!r}: expected some of {', '.join(CASES)}")

    from normtune.benchmarks import beside, places
    from normtune.tuner.device.cuda import CudaEngine

    engine = CudaEngine(0)
    out = options.out or places.folder_of(engine.device.name) / "relatives.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    known = {key_of(cell): cell for cell in read(out)}
    left = []
    for name in options.cases.split(","):
        there = installed(CASES[name])
        shapes = SHAPES[CASES[name].shapes]
        if options.shapes:
            shapes = tuple(tuple(map(int, shape.split("x"))) for shape in options.shapes.split(","))
        for dtype in options.dtypes.split(","):
            for rows, hidden in shapes:
                key = (name, dtype, rows, hidden)
                identity = beside.identity_of(engine.target, *problem_of(*key))
                if not is_done(known.get(key), there, identity):
                    left.append((key, there))
    failed = run(left, out, options.budget, start, lambda key, sides: measure(engine, *key, sides))
    engine.close()
    keep_newest(out)
    if failed:
        raise SystemExit(f"normtune failed at {len(failed)} problems: {', '.join(failed)}")


def installed(case: Case) -> dict[str, Side]:
    """The sides of a case that are installed, normtune first."""
    import normtune

    found = {OURS: Side(normtune.__version__, lambda rows, hidden: _ours(case))}
    for name, make in case.sides.items():
        try:
            found[name] = make()
        except ImportError as error:
            print(f"{name} takes no part in {case.operator}: {error}")
    return found


def problem_of(name: str, dtype: str, rows: int, hidden: int) -> tuple[Any, Any]:
    """The operator of a case and the problem."""
    from normtune.kernels.operator import operator

    spec = operator(CASES[name].operator)
    return spec, spec.problem(rows, hidden, dtype, CASES[name].variant)


def buffers_of(case: Case, dtype: str, rows: int, hidden: int) -> list[Any]:
    """What a launch of a case reads; FP8's given scale is one more."""
    from normtune.kernels.problem import Buffer

    buffers = [Buffer(name, (rows, hidden), dtype, "input") for name in case.rows_of]
    return buffers + [Buffer(name, (hidden,), dtype, "weight") for name in case.columns_of]


def measure(engine: Any, name: str, dtype: str, rows: int, hidden: int, sides: dict[str, Side]) -> dict[str, Any]:
    """One problem of a case, as `beside.measure`."""
    from normtune.benchmarks import beside

    case = CASES[name]

    def calls(function: Function, tensors: dict[str, Any], stream: Any) -> Callable[[], Any]:
        if case.inputs:
            return beside.gradients(function, tensors, case.inputs, case.outer, stream)
        return beside.without_gradients(lambda: function(tensors))

    spec, problem = problem_of(name, dtype, rows, hidden)
    found = beside.compare(
        engine,
        spec,
        problem,
        buffers_of(case, dtype, rows, hidden),
        calls,
        lambda function, part: check(function, part, case, dtype, rows, hidden),
        sides,
    )
    return {"pass": name, "dtype": dtype, "rows": rows, "hidden": hidden, "bytes": spec.bytes_moved(problem), **found}


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
        results = function(given)
        wanted = case.exact(exact)
        if case.inputs:
            pairs = ((results, given), (wanted, exact))
            results, wanted = (
                torch.autograd.grad(
                    made,
                    [of[name] for name in case.inputs],
                    [of[name].clone() for name in case.outer],
                    retain_graph=True,
                )
                for made, of in pairs
            )
        results = case.readable(results, tensors)
    for place, (value, right) in enumerate(zip(results, wanted, strict=True)):
        off = float((value.detach().double() - right.detach()).abs().max() / right.detach().abs().max())
        if not off <= (case.tolerance or TOLERANCE[dtype]):
            raise ValueError(f"result {place} is off by {off:.2g} of its largest value")


def _norm(x: Any, weight: Any) -> Any:
    """RMSNorm in x's dtype, which is a wide one."""
    import torch

    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def _plain_fused_add(given: Tensors) -> tuple[Any, ...]:
    total = (given["x"].float() + given["residual"].float()).to(given["x"].dtype)
    return _norm(total.float(), given["weight"].float()).to(total.dtype), total


def _exact_fused_add(given: Tensors) -> tuple[Any, ...]:
    total = given["x"] + given["residual"]
    return _norm(total, given["weight"]), total


def _plain_gated(given: Tensors) -> tuple[Any, ...]:
    import torch

    gate = torch.nn.functional.silu(given["z"].float())
    return ((_norm(given["x"].float(), given["weight"].float()) * gate).to(given["x"].dtype),)


def _exact_gated(given: Tensors) -> tuple[Any, ...]:
    import torch

    return (_norm(given["x"], given["weight"]) * torch.nn.functional.silu(given["z"]),)


def _chained_gate(given: Tensors) -> tuple[Any, ...]:
    from torch.nn import functional

    x = given["x"]
    return (functional.rms_norm(x, x.shape[-1:], given["weight"], EPS) * functional.silu(given["z"]),)


def _exact_norm(given: Tensors) -> tuple[Any, ...]:
    return (_norm(given["x"], given["weight"]),)


def _exact_norms(given: Tensors) -> tuple[Any, ...]:
    return _exact_norm(given) * 2


@cache
def _scale(device: Any) -> Any:
    """The given scale of `fp8_static`: normal values times normal weights end below 32."""
    import torch

    return torch.full((1,), 32.0 / 448.0, device=device, dtype=torch.float32)


def _plain_fp8_static(given: Tensors) -> tuple[Any, ...]:
    import torch

    norm = _norm(given["x"].float(), given["weight"].float())
    scale = _scale(given["x"].device)
    return (norm / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale, norm.abs().max()


def _plain_fp8_transpose(given: Tensors) -> tuple[Any, ...]:
    q, scale, amax = _plain_fp8_static(given)
    return q, scale, amax, q.t().contiguous()


def _plain_fp8(block: int | None) -> Function:
    """FP8 with a scale for each row, or for each `block` columns of it, which divide it."""

    def plain(given: Tensors) -> tuple[Any, ...]:
        import torch

        norm = _norm(given["x"].float(), given["weight"].float())
        parts = norm.view(norm.shape[0], -1, block or norm.shape[1])
        scale = parts.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448.0
        q = (parts / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return q.view(norm.shape), scale.squeeze(-1)

    return plain


def _dequantized(results: tuple[Any, ...], tensors: Tensors) -> tuple[Any, ...]:
    q, scale = results[0].float(), results[1]
    parts = scale.shape[-1] if scale.dim() == 2 else 1
    wide = scale.repeat_interleave(-(-q.shape[1] // parts), 1)[:, : q.shape[1]] if scale.dim() == 2 else scale
    transposed = (results[3].float().t() * wide,) if len(results) > 3 else ()
    return (q * wide, *transposed)


def _ours(case: Case) -> Function:
    import normtune

    def quantized(scaling: str) -> Function:
        def call(given: Tensors) -> tuple[Any, ...]:
            is_static = scaling in ("static", "transpose")
            found = normtune.rms_norm_quantize_fp8(
                given["x"],
                given["weight"],
                EPS,
                scale=_scale(given["x"].device) if is_static else None,
                scaling="static" if is_static else scaling,
                return_amax=is_static,
                return_transpose=scaling == "transpose",
            )
            transposed = () if found.q_t is None else (found.amax, found.q_t)
            return found.q, found.scale, *transposed

        return call

    if case.operator.startswith("fused_add"):
        return lambda given: normtune.fused_add_rms_norm(given["x"], given["residual"], given["weight"], EPS)
    if case.operator.startswith("rms_norm_gated"):
        return lambda given: (normtune.rms_norm_gated(given["x"], given["weight"], given["z"], EPS),)
    return quantized(case.operator.rpartition("_")[2])


def _inductor(plain: Function) -> Callable[[], Side]:
    def make() -> Side:
        import torch

        return Side(torch.__version__, lambda rows, hidden: compiled(plain), triton_ran)

    return make


def _chain() -> Side:
    import torch

    return Side(torch.__version__, lambda rows, hidden: _chained_gate)


def _liger() -> Side:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    def make(rows: int, hidden: int) -> Function:
        return lambda given: LigerFusedAddRMSNormFunction.apply(
            given["x"], given["residual"], given["weight"], EPS, 0.0, "gemma", False
        )

    return Side(version("liger-kernel"), make)


def _quack() -> Side:
    from quack import rmsnorm

    def make(rows: int, hidden: int) -> Function:
        return lambda given: rmsnorm(given["x"], given["weight"], residual=given["residual"], eps=EPS, prenorm=True)

    return Side(version("quack-kernels"), make)


def _fla() -> Side:
    from fla.modules.norm.fused_norm_gate import rms_norm_gated

    def make(rows: int, hidden: int) -> Function:
        return lambda given: (rms_norm_gated(given["x"], given["z"], given["weight"], None, eps=EPS),)

    return Side(version("fla-core"), make)


def _cases() -> dict[str, Case]:
    fused = {"inductor": _inductor(_plain_fused_add), "liger": _liger, "quack": _quack}
    gated = {"inductor": _inductor(_plain_gated), "chain": _chain, "fla": _fla}
    add = Case(
        "fused_add_rms_norm_forward",
        "no_rstd",
        "fused_add",
        ("x", "residual"),
        ("weight",),
        fused,
        _exact_fused_add,
    )
    gate = Case("rms_norm_gated_forward", "no_rstd", "gated", ("x", "z"), ("weight",), gated, _exact_gated)
    cases = {
        "fused_add": add,
        "fused_add_backward": add._replace(
            operator="fused_add_rms_norm_backward",
            variant="",
            rows_of=("x", "residual", "dy", "ds"),
            inputs=("x", "residual", "weight"),
            outer=("dy", "ds"),
        ),
        "gated": gate,
        "gated_backward": gate._replace(
            operator="rms_norm_gated_backward",
            variant="",
            rows_of=("x", "z", "dy"),
            inputs=("x", "z", "weight"),
            outer=("dy",),
        ),
    }
    plain: dict[str, Function] = {"static": _plain_fp8_static, "row": _plain_fp8(None), "block": _plain_fp8(128)}
    plain["transpose"] = _plain_fp8_transpose
    for scaling, formula in plain.items():
        cases[f"fp8_{scaling}"] = Case(
            f"rms_norm_quantize_fp8_{scaling}",
            "",
            "fp8",
            ("x",),
            ("weight",),
            {"inductor": _inductor(formula)},
            _exact_norms if scaling == "transpose" else _exact_norm,
            _dequantized,
            tolerance=FP8_TOLERANCE,
        )
    return cases


CASES = _cases()

if __name__ == "__main__":
    main()
