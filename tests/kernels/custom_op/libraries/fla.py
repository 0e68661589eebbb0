"""Autotuned kernels of flash-linear-attention by its own launchers, as they are."""

from typing import Annotated

import torch
from fla.modules.activations import ops as activations
from fla.modules.norm import l2norm, layernorm
from fla.ops.utils import logsumexp, softmax
from torch.nn import functional as F

from normtune import Config, kernel_operator


class TileConfig(Config):
    """What `triton.autotune` chooses for norms."""

    BT: Annotated[int, "rows a program, of up to 512 columns."] = 16
    num_warps: Annotated[int, "warps a program."] = 4


class BlockConfig(Config):
    """What `triton.autotune` chooses for activations."""

    B: Annotated[int, "elements a program."] = 1024
    num_warps: Annotated[int, "warps a program."] = 4


class WarpConfig(Config):
    """What `triton.autotune` chooses for sums of rows."""

    num_warps: Annotated[int, "warps a program."] = 4


def fla_l2norm(x):
    return l2norm.l2norm_fwd(x)


def fla_rms_norm(x, weight, eps):
    return layernorm.layer_norm_fwd(x, weight, None, eps, is_rms_norm=True)[0]


def fla_swish(x):
    return activations.swish_fwd(x)


def fla_swiglu(x, y):
    return activations.swiglu_fwd(x, y)


def fla_logsumexp(x):
    return logsumexp.logsumexp_fwd(x)


def fla_softmax(x):
    return softmax.softmax_fwd(x)


def length(x):
    return torch.rsqrt(x.square().sum(1) + 1e-6)


TILES = {"config": TileConfig, "space": {"BT": (8, 32), "num_warps": (1, 8)}}
BLOCKS = {"config": BlockConfig, "space": {"B": (512, 1024), "num_warps": (4, 8)}}
WARPS = {"config": WarpConfig, "space": {"num_warps": (1, 8)}}
NORM, LENGTHS = (
    {"x": "input", "weight": "weight", "y": "output"},
    {"x": "input", "y": "output", "rstd": "output rows float32"},
)
kernel_operator(**TILES, buffers=LENGTHS, reference=lambda x: (x * length(x)[:, None], length(x)))(fla_l2norm)
kernel_operator(
    **TILES,
    buffers=NORM,
    scalars={"eps": 1e-6},
    reference=lambda x, weight, eps: F.rms_norm(x, weight.shape, weight, eps),
)(fla_rms_norm)
kernel_operator(**BLOCKS, buffers={"x": "input", "y": "output"}, reference=lambda x: F.silu(x))(fla_swish)
kernel_operator(**BLOCKS, buffers={"x": "input", "y": "input", "z": "output"}, reference=lambda x, y: F.silu(x) * y)(
    fla_swiglu
)
kernel_operator(**WARPS, buffers={"x": "input", "z": "output rows float32"}, reference=lambda x: torch.logsumexp(x, 1))(
    fla_logsumexp
)
kernel_operator(**WARPS, buffers={"x": "input", "y": "output float32"}, reference=lambda x: torch.softmax(x, 1))(
    fla_softmax
)
