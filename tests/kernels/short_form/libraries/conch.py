"""Kernels of Conch by its own launchers, as they are: norms in place, 8-bit outputs, rotary embedding by positions."""

from typing import Annotated

import torch
from conch.kernels.activation import silu_and_mul
from conch.kernels.embedding import rotary_embedding
from conch.kernels.normalization import gemma_rms_norm, rms_norm
from conch.kernels.quantization import fp8, int8
from torch.nn import functional as F

from normtune import Config, kernel_operator

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
    x = 64 * torch.randn((problem.rows, problem.hidden), generator=generator, device=device)
    return {"x": x.to(getattr(torch, problem.dtype)), "scale": torch.full((1,), 0.5, device=device)}


def conch_rotary(positions, q, k, cache):
    rotary_embedding.rotary_embedding_launcher(positions, q, k, HEAD, cache)


def positions(problem, generator, device):
    def normal(*shape):
        return torch.randn(shape, generator=generator, device=device).to(getattr(torch, problem.dtype))

    found = torch.randint(512, (problem.rows,), generator=generator, device=device)
    q, k = (normal(problem.rows, heads * HEAD) for heads in (8, 2))
    return {"positions": found, "q": q, "k": k, "cache": normal(512, HEAD)}


NORM = {"scalars": {"epsilon": 1e-6}, "tolerance": {"y": 2.0}}
