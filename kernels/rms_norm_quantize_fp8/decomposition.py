"""The operators composed of torch's operations, for tensors that the kernels do not support.

In: checked tensors of any device. Out: the outputs, with the formulas of the kernels: all arithmetic in float32.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from normtune.kernels.calling.fallback import transposed
from normtune.kernels.rms_norm_quantize_fp8.modes import QuantizeModes
from normtune.kernels.rms_norm_quantize_fp8.scales import BLOCK, blocks_of, padded_rows

OUTPUTS = ("sum", "q", "scale", "amax", "y", "rstd", "q_t")


class QuantizeDecomposition(NamedTuple):
    """The formula of an operation in these modes."""

    modes: QuantizeModes

    def forward(self, x: Tensor, weight: Tensor | None, *arguments: Any) -> list[Tensor]:
        """The outputs in the order of `OUTPUTS`; `arguments`: residual, scale and amax where the modes have them."""
        rest = list(arguments)
        residual = rest.pop(0).reshape(-1, x.shape[-1]) if self.modes.has_residual else None
        scale = rest.pop(0) if self.modes.scaling == "static" else None
        amax = rest.pop(0) if self.modes.has_amax and self.modes.accumulates else None
        results = outputs(self.modes, x.reshape(-1, x.shape[-1]), weight, residual, scale, *rest)
        if amax is not None:
            amax.copy_(torch.maximum(amax, results.pop("amax")))
        return [
            results[name].view(x.shape) if name in ("sum", "q", "y") else results[name]
            for name in OUTPUTS
            if name in results
        ]


def outputs(
    modes: QuantizeModes,
    x: Tensor,
    weight: Tensor | None,
    residual: Tensor | None,
    scale: Tensor | None,
    eps: float,
    offset: float,
    least_amax: float = 0.0,
) -> dict[str, Tensor]:
    """`q`, and those of `sum`, `scale`, `amax`, `y`, `rstd` and `q_t` that the modes have.

    `x` and `residual` are (rows, hidden); a weight that is None leaves rows normalized; `scale` (1,) is that of the
    scaling `static`.
    """
    by_name: dict[str, Tensor] = {}
    wide = x.float().contiguous()  # torch sums in an order that depends on strides
    if residual is not None:
        wide = wide + residual.float()
        by_name["sum"] = wide.to(x.dtype)
        if modes.rounds_sum:
            wide = by_name["sum"].float()
    squares = wide.square()
    # torch divides a single row among threads and would sum it in another order than one of several rows.
    means = (squares.expand(2, -1) if squares.shape[0] == 1 else squares).mean(-1, keepdim=True)[: squares.shape[0]]
    rstd = torch.rsqrt(means + eps)
    norm = wide * rstd
    if modes.rounds_product:
        norm = norm.to(x.dtype).float()
    if weight is not None:
        norm = norm * (weight.float() + offset)
    if modes.rounds_norm:
        norm = norm.to(x.dtype).float()
    if modes.has_rstd:
        by_name["rstd"] = rstd.reshape(-1)
    if modes.has_y:
        by_name["y"] = norm.to(x.dtype)
    if modes.has_amax:
        by_name["amax"] = norm.abs().amax().reshape(1) if norm.numel() else x.new_zeros(1, dtype=torch.float32)
    blocks = norm.unsqueeze(1)
    if modes.scaling == "block":
        hidden = norm.shape[1]
        blocks = torch.nn.functional.pad(norm, (0, -hidden % BLOCK)).view(-1, blocks_of(hidden), BLOCK)
    if modes.scaling == "static":
        assert scale is not None
        wide_scale = scale
    elif modes.scaling == "tensor":
        wide_scale = by_name["scale"] = by_name["amax"].clamp(min=least_amax) / modes.largest
    else:
        wide_scale = blocks.abs().amax(2, keepdim=True).clamp(min=least_amax) / modes.largest
        by_name["scale"] = stored(modes, wide_scale.squeeze(2))
    q = (blocks * wide_scale.reciprocal()).clamp(-modes.largest, modes.largest).to(getattr(torch, modes.q_dtype))
    by_name["q"] = q.flatten(1)[:, : norm.shape[1]].contiguous()
    if modes.has_transpose:
        by_name["q_t"] = transposed(by_name["q"])
    return by_name


def stored(modes: QuantizeModes, scale: Tensor) -> Tensor:
    """Scales (rows, blocks) flattened in memory order."""
    if modes.is_column_major:
        rows = scale.shape[0]
        scale = torch.nn.functional.pad(scale.T, (0, padded_rows(rows) - rows))
    return scale.reshape(-1)
