"""Kernels of Conch by its own launchers, as they are: norms in place, 8-bit outputs, rotary embedding by positions."""

from typing import Annotated

import torch
from conch.kernels.activation import silu_and_mul
from conch.kernels.embedding import rotary_embedding
from conch.kernels.normalization import gemma_rms_norm, rms_norm
from conch.kernels.quantization import fp8, int8
from torch.nn import functional as F

from normtune import Config, IllegalConfigError, kernel_operator
from normtune.kernels.rounding import Expected, unit_in_last_place

HEAD = 64


class WarpConfig(Config):
    """What the launchers leave to Triton."""

    num_warps: Annotated[int, "warps a program."] = 4


def tuned(function, buffers, reference, **more):
    """Declare a launcher of Conch's, whose operator has its name."""
    arguments = {"config": WarpConfig, "space": {"num_warps": (1, 4, 16)}, "buffers": buffers, "reference": reference}
    return kernel_operator(**(arguments | more))(function)


def conch_rms_norm(y, x, weight, epsilon):
    rms_norm.rms_norm_launcher(y, x, weight, epsilon)


def conch_fused_add_rms_norm(x, residual, weight, epsilon):
    rms_norm.fused_add_rms_norm_launcher(x, residual, weight, epsilon)


def added(x, residual, weight, epsilon, dtype):
    total = (x + residual).to(dtype).double()
    return F.rms_norm(total, weight.shape, weight, epsilon), x + residual


def conch_gemma_rms_norm(x, weight, epsilon):
    gemma_rms_norm.gemma_rms_norm_inplace_launcher(x, weight, epsilon)


def conch_silu_and_mul(y, x):
    silu_and_mul.silu_and_mul_launcher(y, x)


def conch_static_fp8(y, x, scale):
    fp8.static_scaled_fp8_quant_launcher(y, x, scale)


def conch_static_int8(y, x, scale):
    int8.static_scaled_int8_quant_launcher(y, x, scale)


def scaled(problem, generator, device):
    """Values of which a few are beyond the largest; the scale is a power of two, so quotients are exact."""
    x = 100 * torch.randn((problem.rows, problem.hidden), generator=generator, device=device)
    return {"x": x.to(getattr(torch, problem.dtype)), "scale": torch.full((1,), 0.5, device=device)}


def conch_rotary(positions, q, k, cache):
    if k.shape[1] % HEAD:
        raise IllegalConfigError(f"expected heads of {HEAD}")
    rotary_embedding.rotary_embedding_launcher(positions, q, k, HEAD, cache)


def positions(problem, generator, device):
    def normal(*shape):
        return torch.randn(shape, generator=generator, device=device).to(getattr(torch, problem.dtype))

    found = torch.randint(512, (problem.rows,), generator=generator, device=device)
    heads = {"q": normal(problem.rows, problem.hidden), "k": normal(problem.rows, problem.hidden // 4)}
    return {"positions": found, "cache": normal(512, HEAD), **heads}


def rotated(positions, q, k, cache, dtype):
    return tuple(turned(x, *cache[positions][:, None].chunk(2, 2), dtype) for x in (q, k))


def turned(x, cos, sin, dtype):
    """Both products may be rounded before their sum, which may cancel."""
    first, second = x.unflatten(1, (-1, 2, HEAD // 2)).unbind(2)
    pairs = [(first * cos, -second * sin), (second * cos, first * sin)]
    bounds = [sum(unit_in_last_place(one, dtype) for one in (*pair, sum(pair))) for pair in pairs]
    return Expected(torch.stack(list(map(sum, pairs)), 2).flatten(1), torch.stack(bounds, 2).flatten(1))


EPSILON = {"scalars": {"epsilon": 1e-6}}
SCALED = {"x": "input", "scale": "weight 1 float32"}
tuned(
    conch_rms_norm,
    {"y": "output", "x": "input", "weight": "weight"},
    lambda x, weight, epsilon: F.rms_norm(x, weight.shape, weight, epsilon),
    **EPSILON,
    tolerance={"y": 2.0},
)
tuned(
    conch_fused_add_rms_norm,
    {"x": "in-out", "residual": "in-out", "weight": "weight"},
    added,
    **EPSILON,
    tolerance={"x": 2.0},
)
tuned(
    conch_gemma_rms_norm,
    {"x": "in-out", "weight": "weight"},
    lambda x, weight, epsilon: F.rms_norm(x, weight.shape, 1 + weight, epsilon),
    **EPSILON,
)
tuned(
    conch_silu_and_mul,
    {"y": "output", "x": "input rows,2*hidden"},
    lambda x: F.silu(x.chunk(2, 1)[0]) * x.chunk(2, 1)[1],
    tolerance={"y": 2.0},
)
tuned(
    conch_static_fp8,
    {"y": "output float8_e4m3fn", **SCALED},
    lambda x, scale: (x / scale).clamp(-448, 448),
    inputs=scaled,
)
tuned(
    conch_static_int8,
    {"y": "output int8", **SCALED},
    lambda x, scale: (x / scale).clamp(-128, 127).trunc(),
    inputs=scaled,
)
tuned(
    conch_rotary,
    {"positions": "input rows int64", "q": "in-out", "k": "in-out rows,hidden/4", "cache": f"weight 512,{HEAD}"},
    rotated,
    inputs=positions,
)
