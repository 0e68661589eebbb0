"""RMSNorm of heads and their rotation in torch's operations: for tensors that the kernel does not take, and gradients.

In: tensors of any device, dtype float64 or shorter. Out: the fused tensor, or gradients of it and of the weights. All
arithmetic is in float32, or in float64 if the tensor is float64. Differentiable, in every mode of torch. Gradients are
those of the function without roundings.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from normtune.kernels.calling.fallback import compute_dtype, sum_of_rows
from normtune.kernels.key import Key
from normtune.kernels.mode import Dweight, Product
from normtune.kernels.problem import Problem
from normtune.kernels.qk_norm.modes import Heads, Place, Rotary, RotationProducts, Tables, heads_of


class Tensors(NamedTuple):
    """The tensors of a call.

    Attributes:
        qkv: (..., width), the heads of each token one behind another.
        weight_q, weight_k: (head,).
        cos, sin: (rows, columns), None without a rotation.
        positions: of qkv's leading shape; None where tables have a row for each token.
    """

    qkv: Tensor
    weight_q: Tensor
    weight_k: Tensor
    cos: Tensor | None = None
    sin: Tensor | None = None
    positions: Tensor | None = None


class ForwardDecomposition:
    """The formula of a forward.

    Args:
        key: of the operator; its dtype does not matter.
    """

    def __init__(self, key: Key) -> None:
        self._key = key

    def forward(self, *arguments: Any) -> tuple[Tensor, ...]:
        """Takes the fields of `Tensors`, eps and offset; returns the fused tensor, in place nothing."""
        *inputs, eps, offset = arguments
        tensors = Tensors(*inputs)
        problem = Problem(self._key, 1, tensors.weight_q.shape[0])
        fused = forward(problem, tensors, eps, offset)
        if Place.of(problem) is Place.NEW:
            return (fused,)
        end = heads_of(problem).written * problem.hidden
        tensors.qkv[..., :end].copy_(fused[..., :end])
        return ()


class BackwardDecomposition:
    """The formula of a backward; arguments as of `ForwardDecomposition`."""

    def __init__(self, key: Key) -> None:
        self._key = key

    def forward(self, dout: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
        """Takes the gradient of the fused tensor, the fields of `Tensors`, eps and offset.

        Returns:
            The gradient of qkv and, unless the key leaves it out, those of both weights, (2, head) in the wide dtype.
        """
        *inputs, eps, offset = arguments
        tensors = Tensors(*inputs)
        problem = Problem(self._key, 1, tensors.weight_q.shape[0])
        dqkv, dweights = backward(problem, dout, tensors, eps, offset)
        return (dqkv, dweights) if Dweight.of(problem) is Dweight.COMPUTED else (dqkv,)


def forward(problem: Problem, tensors: Tensors, eps: float, offset: float) -> Tensor:
    """A fused tensor with normalized, rotated query and key heads: contiguous, of qkv's dtype.

    The rows of the problem do not matter.
    """
    heads, every, dtype = heads_of(problem), _every_head(tensors.qkv, tensors), tensors.qkv.dtype
    end = heads.heads_q + heads.heads_k
    x = every[..., :end, :].to(compute_dtype(tensors.qkv))
    xhat = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    if Product.of(problem) is Product.ROUNDED:
        xhat = xhat.to(dtype).to(x.dtype)
    norm = (xhat * _weights(heads, tensors, x.dtype, offset)).to(dtype)
    if heads.rotary:
        cos, sin = _of_elements(problem, tensors, x.dtype)
        rotated = norm[..., : heads.rotary].to(x.dtype)
        of_element, of_partner = rotated * cos, _partners(problem, rotated) * sin
        if RotationProducts.of(problem) is RotationProducts.ROUNDED:
            of_element, of_partner = of_element.to(dtype).to(x.dtype), of_partner.to(dtype).to(x.dtype)
        norm = torch.cat([(of_element + of_partner).to(dtype), norm[..., heads.rotary :]], -1)
    return torch.cat([norm, every[..., end:, :]], -2).flatten(-2)


def backward(problem: Problem, dout: Tensor, tensors: Tensors, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    """Gradients of qkv and, (2, head), of the weights, from the gradient of the fused tensor of `forward`."""
    heads, wide = heads_of(problem), compute_dtype(tensors.qkv)
    end = heads.heads_q + heads.heads_k
    gradients = _every_head(dout, tensors)
    x, dy = _every_head(tensors.qkv, tensors)[..., :end, :].to(wide), gradients[..., :end, :].to(wide)
    if heads.rotary:
        cos, sin = _of_elements(problem, tensors, wide)
        rotated = dy[..., : heads.rotary]
        # The transpose of the rotation: `_partners` is antisymmetric.
        back = rotated * cos - _partners(problem, rotated * sin)
        dy = torch.cat([back, dy[..., heads.rotary :]], -1)
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    xhat = x * rstd
    sums = sum_of_rows(dy * xhat, 2)
    gradient = dy * _weights(heads, tensors, wide, offset)
    dx = rstd * (gradient - xhat * (gradient * xhat).mean(-1, keepdim=True))
    dqkv = torch.cat([dx.to(dout.dtype), gradients[..., end:, :]], -2).flatten(-2)
    return dqkv, torch.stack([sums[: heads.heads_q].sum(0), sums[heads.heads_q :].sum(0)])


def _every_head(fused: Tensor, tensors: Tensors) -> Tensor:
    """(..., heads, head), contiguous, because the order in which torch sums depends on strides."""
    return fused.contiguous().unflatten(-1, (-1, tensors.weight_q.shape[0]))


def _weights(heads: Heads, tensors: Tensors, dtype: torch.dtype, offset: float) -> Tensor:
    """(heads, head) weight + offset of each head."""
    of_q = tensors.weight_q.to(dtype).expand(heads.heads_q, -1)
    return torch.cat([of_q, tensors.weight_k.to(dtype).expand(heads.heads_k, -1)]) + offset


def _of_elements(problem: Problem, tensors: Tensors, dtype: torch.dtype) -> list[Tensor]:
    """Cosines and sines (..., 1, rotary), one for each rotated element of a token."""
    of_elements = []
    for table in (tensors.cos, tensors.sin):
        assert table is not None
        shape = (*tensors.qkv.shape[:-1], table.shape[-1])
        rows = table.view(shape) if tensors.positions is None else table[tensors.positions.long()]
        if Tables.of(problem) is Tables.PAIRS:
            rows = torch.cat([rows, rows], -1) if Rotary.of(problem) is Rotary.NEOX else rows.repeat_interleave(2, -1)
        of_elements.append(rows.to(dtype).unsqueeze(-2))
    return of_elements


def _partners(problem: Problem, rotated: Tensor) -> Tensor:
    """The other element of each pair, negated for the first one."""
    if Rotary.of(problem) is Rotary.NEOX:
        first, second = rotated.chunk(2, -1)
        return torch.cat([-second, first], -1)
    first, second = rotated[..., ::2], rotated[..., 1::2]
    return torch.stack([-second, first], -1).flatten(-2)
