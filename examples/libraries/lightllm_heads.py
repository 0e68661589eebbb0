"""lightllm's layer norm of heads, and its rotary embedding in place, as they are.

git clone https://github.com/ModelTC/lightllm   # commit fc72ffab
export PYTHONPATH=lightllm/lightllm/models/llama/triton_kernel:lightllm/lightllm/models/cohere/triton_kernels
normtune inspect examples/libraries/lightllm_heads.py
"""

from typing import Annotated, Any

import layernorm
import rotary_emb
import torch
from torch.nn import functional as F

from normtune import Config, IllegalConfigError, kernel_operator
from normtune.kernels.rounding import Expected, unit_in_last_place


class WarpConfig(Config):
    """What the launchers leave to Triton, or compute from the length of a head."""

    num_warps: Annotated[int, "warps a program."] = 4


ARGUMENTS = {"config": WarpConfig, "space": {"num_warps": (1, 2, 4, 8)}, "sizes": {"heads": (8, 32)}}


@kernel_operator(
    **ARGUMENTS,
    buffers={
        **{"x": "input rows,heads,hidden", "weight": "weight heads,hidden"},
        **{"y": "output rows,heads,hidden"},
    },
    scalars={"eps": 1e-5},
    reference=lambda x, weight, eps: F.layer_norm(x, x.shape[2:], eps=eps) * weight,
    max_hidden=1024,
)
def lightllm_head_layer_norm(x: Any, weight: Any, eps: float) -> Any:
    """A program a head."""
    return layernorm.layernorm_forward(x, weight, eps)


def rotated(x: Any, cos: Any, sin: Any, dtype: Any) -> Expected:
    """NeoX pairs, of which both products may be rounded before their sum, which may cancel."""
    terms = [x, torch.cat([-x.chunk(2, 2)[1], x.chunk(2, 2)[0]], 2)]
    terms = [one * factor.repeat(1, 2)[:, None] for one, factor in zip(terms, (cos, sin), strict=True)]
    bounds = [unit_in_last_place(one, dtype) for one in (*terms, sum(terms))]
    return Expected(sum(terms), sum(bounds))


@kernel_operator(
    **ARGUMENTS,
    buffers={
        **{"q": "in-out rows,heads,hidden", "k": "in-out rows,2,hidden"},
        **{"cos": "input rows,hidden/2", "sin": "input rows,hidden/2"},
    },
    reference=lambda q, k, cos, sin, dtype: (rotated(q, cos, sin, dtype), rotated(k, cos, sin, dtype)),
    max_hidden=256,
)
def lightllm_rotary(q: Any, k: Any, cos: Any, sin: Any) -> None:
    """16 positions of 4 heads a program."""
    if q.shape[2] & (q.shape[2] - 1):
        raise IllegalConfigError("the kernel takes heads of a power of two")
    rotary_emb.rotary_emb_fwd(q, k, cos, sin)
