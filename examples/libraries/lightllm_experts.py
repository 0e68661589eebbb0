"""lightllm's choice of experts, as it is.

git clone https://github.com/ModelTC/lightllm   # commit fc72ffab
PYTHONPATH=lightllm/lightllm/common/fused_moe normtune inspect examples/libraries/lightllm_experts.py
"""

from typing import Annotated, Any

import softmax_topk
import torch

from normtune import Config, kernel_operator


class WarpConfig(Config):
    """What the launcher computes from the number of experts."""

    num_warps: Annotated[int, "warps a program."] = 1


def chosen(x: Any) -> Any:
    """Of equal probabilities the first, as by argmax."""
    values, index = torch.softmax(x, 1).sort(descending=True, stable=True)
    return values[:, :4] / values[:, :4].sum(1, keepdim=True), index[:, :4]


@kernel_operator(
    config=WarpConfig,
    space={"num_warps": (1, 2, 4, 8)},
    buffers={"x": "input", "weights": "output rows,4 float32", "experts": "output rows,4 int32"},
    reference=chosen,
    max_hidden=1024,
)
def lightllm_softmax_topk(x: Any) -> Any:
    """Four experts a row."""
    return softmax_topk.softmax_topk(x, 4, renorm=True)
