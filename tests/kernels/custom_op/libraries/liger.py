"""Kernels of Liger-Kernel by its own launchers, as they are."""

from typing import Annotated

import torch
from liger_kernel.ops import geglu, layer_norm, rms_norm, softmax, swiglu
from torch.nn import functional as F

from normtune import Config, kernel_operator


class WarpConfig(Config):
    """What the launchers choose by `calculate_settings`."""

    num_warps: Annotated[int, "warps a program."] = 4


def tuned(function, buffers, reference, **more):
    """Declare a launcher of Liger's, whose operator has its name."""
    space = {"num_warps": (1, 4, 16)}
    arguments = {"config": WarpConfig, "space": space, "buffers": buffers, "reference": reference}
    return kernel_operator(**(arguments | more))(function)


def liger_rms_norm(X, W, eps):
    Y, _, RSTD, *_ = rms_norm.rms_norm_forward(X, W, eps, 0.0, "llama", None)
    return Y, RSTD


def normalized(X, W, eps):
    rstd = torch.rsqrt(X.square().mean(1) + eps)
    return X * rstd[:, None] * W, rstd


def liger_swiglu(a, b):
    return swiglu.swiglu_forward(a, b)[2]


def liger_geglu(a, b):
    return geglu.geglu_forward(a, b)[2]


def liger_layer_norm(X, W, B):
    return layer_norm.layer_norm_forward(X, W, B, 1e-6)[0]


def liger_softmax(x):
    return softmax._softmax_forward(x)[0]


# What rounds on the way is up to 1.5 units in the last place off.
NORM = {"X": "input", "W": "weight", "Y": "output", "RSTD": "output rows float32"}
GATED = {"a": "input", "b": "input", "c": "output"}
WITH_BIAS = {"X": "input", "W": "weight", "B": "weight", "Y": "output"}
tuned(liger_rms_norm, NORM, normalized, scalars={"eps": 1e-6}, tolerance={"Y": 2.0})
tuned(liger_swiglu, GATED, lambda a, b: F.silu(a) * b, tolerance={"c": 2.0})
tuned(liger_geglu, GATED, lambda a, b: F.gelu(a, approximate="tanh") * b, tolerance={"c": 2.0})
tuned(liger_layer_norm, WITH_BIAS, lambda X, W, B: F.layer_norm(X, X.shape[1:], W, B, 1e-6))
tuned(liger_softmax, {"x": "input", "y": "output"}, lambda x: torch.softmax(x, 1))
