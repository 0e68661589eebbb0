"""RMSNorm and its relatives as calls that are timed: shapes, formulas, and the sides of each.

Out: `CASES`. `beside` checks and times them. A side is imported when it is made.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

from normtune.benchmarks import sides
from normtune.benchmarks.sides import EPS, OURS, PEERS, Function, Side, Tensors, compiled, triton_ran

# RMSNorm: decode; normalized queries and keys; hidden sizes that are odd or no power of two; models in training; wide
# rows. Relatives: decode and training; the sizes of Qwen3-Next's gate; FP8 up to 400 MB.
SHAPES = {
    "rms_norm": (
        *((1, 1024), (1, 4096), (1, 8192), (8, 4096), (32, 7168), (64, 2048), (128, 4096), (256, 8192), (512, 5120)),
        *((4096, 64), (4096, 128), (32768, 64), (32768, 128), (262144, 128), (65536, 192), (131072, 256)),
        *((1024, 1000), (4096, 1003), (2048, 4097), (8192, 2880), (4096, 6656), (16384, 1152)),
        *((1024, 2048), (4096, 1024), (4096, 2048), (4096, 3072), (4096, 4096), (4096, 5120), (4096, 7168)),
        *((4096, 8192), (8192, 3584), (8192, 4096), (16384, 2048), (16384, 4096), (16384, 7168), (32768, 1024)),
        *((32768, 4096), (1024, 16384), (4096, 12288), (4096, 16384), (8192, 16384), (1024, 32768), (4096, 32768)),
        (8192, 32768),
    ),
    "fused_add": ((1, 4096), (64, 4096), (2048, 5120), (4096, 2880), (4096, 4096), (16384, 2048), (32768, 4096)),
    "gated": ((24, 128), (1536, 128), (65536, 64), (4096, 4096), (262144, 192), (1449144, 128)),
    "fp8": ((1, 4096), (64, 4096), (4096, 4096), (8192, 2880), (8192, 8192), (32768, 4096)),
}
SHAPES["fp8_block"] = tuple(shape for shape in SHAPES["fp8"] if shape[1] % 128 == 0)
# Largest error over the largest value: e4m3 has eight steps between two powers of two, and rounds by half of one.
FP8_TOLERANCE = 1 / 16


class Case(NamedTuple):
    """A call of normtune, and what others have in its place.

    Attributes:
        operator, variant: of normtune, whose bytes a perfect kernel moves.
        shapes: one of `SHAPES`.
        rows_of, columns_of: names of the tensors of the shape of x and of weight.
        sides: makers by name beside `ours`; one that raises ImportError takes no part.
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


def _norm(x: Any, weight: Any) -> Any:
    """RMSNorm, computed in the dtype of x."""
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


def ours(case: Case) -> Function:
    """The call of normtune."""
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

    if case.shapes == "rms_norm":
        return lambda given: (normtune.rms_norm(given["x"], given["weight"], EPS),)
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


def _side(told: str, function: Function, witness: Any = nullcontext) -> Side:
    """A side with one function for all shapes."""
    return Side(told, lambda rows, hidden: function, witness)


def _chain() -> Side:
    import torch

    return _side(torch.__version__, _chained_gate)


def _added(given: Tensors) -> tuple[Any, ...]:
    return given["x"], given["residual"], given["weight"]


def _liger() -> Side:
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

    norm = LigerFusedAddRMSNormFunction.apply
    return _side(version("liger-kernel"), lambda given: norm(*_added(given), EPS, 0.0, "gemma", False))


def _liger_cute() -> Side:
    told, norm = sides.liger_cute("fused_add_rms_norm")
    return _side(told, lambda given: norm(*_added(given), casting_mode="gemma"), sides.liger_is_strict)


def _quack() -> Side:
    from quack import rmsnorm

    def norm(given: Tensors) -> tuple[Any, ...]:
        return rmsnorm(given["x"], given["weight"], residual=given["residual"], eps=EPS, prenorm=True)

    return _side(version("quack-kernels"), norm)


def _fla() -> Side:
    from fla.modules.norm.fused_norm_gate import rms_norm_gated as norm

    return _side(version("fla-core"), lambda given: (norm(given["x"], given["z"], given["weight"], None, eps=EPS),))


def _cases() -> dict[str, Case]:
    fused = {"inductor": _inductor(_plain_fused_add), "liger": _liger, "liger_cute": _liger_cute, "quack": _quack}
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
    norm = Case("rms_norm_forward", "no_rstd", "rms_norm", ("x",), ("weight",), PEERS, _exact_norm)
    gate = Case("rms_norm_gated_forward", "no_rstd", "gated", ("x", "z"), ("weight",), gated, _exact_gated)
    cases = {
        "forward": norm,
        "backward": norm._replace(
            operator="rms_norm_backward", variant="", rows_of=("x", "dy"), inputs=("x", "weight"), outer=("dy",)
        ),
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
            "fp8_block" if scaling == "block" else "fp8",
            ("x",),
            ("weight",),
            {"inductor": _inductor(formula)},
            _exact_norms if scaling == "transpose" else _exact_norm,
            _dequantized,
            tolerance=FP8_TOLERANCE,
        )
    return cases


CASES = _cases()
RMS_NORM = ("forward", "backward")
RELATIVES = tuple(name for name in CASES if name not in RMS_NORM)


def installed(case: Case, names: Collection[str] | None = None) -> dict[str, Side]:
    """The sides of a case that are installed, normtune first; `names` are the wanted peers, None for all."""
    import normtune

    found = {OURS: _side(normtune.__version__, ours(case))}
    for name, make in case.sides.items():
        if names is None or name in names:
            try:
                found[name] = make()
            except ImportError as error:
                print(f"{name} takes no part in {case.operator}: {error}", file=sys.stderr)
    return found
