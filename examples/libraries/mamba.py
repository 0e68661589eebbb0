"""Mamba-2's gated RMSNorm of 8 groups, and its layer norm, as they are; `HAS_Z` is of triton.heuristics.

git clone https://github.com/state-spaces/mamba   # commit e9594ce
PYTHONPATH=mamba/mamba_ssm/ops/triton normtune inspect examples/libraries/mamba.py
"""

from typing import Annotated, Any

import layernorm_gated
import torch
from torch.nn import functional as F

from normtune import Config, IllegalConfigError, kernel_operator

GROUPS = 8


class WarpConfig(Config):
    """What the launcher computes from the length of a row."""

    num_warps: Annotated[int, "warps a program."] = 4


ARGUMENTS = {"config": WarpConfig, "space": {"num_warps": (1, 2, 4, 8, 16)}, "scalars": {"eps": 1e-5}}


def gated(x: Any, weight: Any, z: Any, eps: float) -> Any:
    """Y, and rstd of one group after the other."""
    rstd = torch.rsqrt(x.unflatten(1, (GROUPS, -1)).square().mean(2) + eps)
    return x * rstd.repeat_interleave(x.shape[1] // GROUPS, 1) * weight * F.silu(z), rstd.T.flatten()


@kernel_operator(
    **ARGUMENTS,
    buffers={
        **{"x": "input", "weight": "weight", "z": "input"},
        **{"y": "output", "rstd": f"output {GROUPS}*rows float32"},
    },
    reference=gated,
    max_hidden=65536,
)
def mamba_rms_norm_gated(x: Any, weight: Any, z: Any, eps: float) -> Any:
    """A program a group."""
    if x.shape[1] % GROUPS:
        raise IllegalConfigError(f"{x.shape[1]} columns are not {GROUPS} groups")
    group = x.shape[1] // GROUPS
    y, _, rstd = layernorm_gated._layer_norm_fwd(x, weight, None, eps, z, group_size=group, is_rms_norm=True)
    return y, rstd


@kernel_operator(
    **ARGUMENTS,
    buffers={"x": "input", "weight": "weight", "bias": "weight", "y": "output"},
    reference=lambda x, weight, bias, eps: F.layer_norm(x, weight.shape, weight, bias, eps),
    max_hidden=16384,  # 64 KB of float32
)
def mamba_layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    """A program a row."""
    return layernorm_gated._layer_norm_fwd(x, weight, bias, eps)[0]
