"""attorch's autotuned log-softmax, layer norm, RMSNorm and gated linear unit, as they are.

git clone https://github.com/BobMcDear/attorch   # commit 67c2772
PYTHONPATH=attorch normtune inspect examples/libraries/attorch.py
"""

from typing import Any

import torch
from attorch import glu_kernels as glu
from attorch import layer_norm_kernels as layer_norm
from attorch import rms_norm_kernels as rms_norm
from attorch import softmax_kernels as softmax
from attorch.glu_layer import GLUAutoGrad
from attorch.layer_norm_layer import LayerNormAutoGrad
from attorch.rms_norm_layer import RMSNormAutoGrad
from attorch.softmax_layers import SoftmaxAutoGrad
from torch.nn import functional as F

from normtune import from_autotuned, kernel_operator

# Forwards of autograd functions, whose kernels are in triton.autotune and triton.heuristics.
EPS = {"scalars": {"eps": 1e-6}}


@kernel_operator(
    **from_autotuned(softmax.softmax_forward_kernel),
    buffers={"x": "input", "y": "output"},
    reference=lambda x: torch.log_softmax(x, 1),
)
def attorch_log_softmax(x: Any) -> Any:
    """Several rows a program where they are short."""
    return SoftmaxAutoGrad.apply(x, False, True)


@kernel_operator(
    **from_autotuned(layer_norm.layer_norm_forward_kernel),
    **EPS,
    buffers={"x": "input", "w": "weight", "b": "weight", "y": "output"},
    reference=lambda x, w, b, eps: F.layer_norm(x, w.shape, w, b, eps),
)
def attorch_layer_norm(x: Any, w: Any, b: Any, eps: float) -> Any:
    """Without gradients it saves no statistics."""
    return LayerNormAutoGrad.apply(x, w, b, eps)


@kernel_operator(
    **from_autotuned(rms_norm.rms_norm_forward_kernel),
    **EPS,
    buffers={"x": "input", "w": "weight", "y": "output"},
    reference=lambda x, w, eps: F.rms_norm(x, w.shape, w, eps),
)
def attorch_rms_norm(x: Any, w: Any, eps: float) -> Any:
    """As the layer norm."""
    return RMSNormAutoGrad.apply(x, w, eps)


@kernel_operator(
    **from_autotuned(glu.glu_forward_kernel),
    buffers={"x": "input rows,2*hidden", "y": "output"},
    reference=lambda x: x.chunk(2, 1)[0] * F.silu(x.chunk(2, 1)[1]),
)
def attorch_swiglu(x: Any) -> Any:
    """Copies both halves before its kernel."""
    return GLUAutoGrad.apply(x, 1, "silu")
