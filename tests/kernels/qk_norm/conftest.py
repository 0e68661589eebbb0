"""Others' formulas in plain torch, and fused tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


def rotated_halves(x: Tensor) -> Tensor:
    """(-second half, first half), as transformers' rotate_half."""
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)


def rotated_neighbours(x: Tensor) -> Tensor:
    """Each pair (a, b) as (-b, a)."""
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


@pytest.fixture(scope="session")
def by_hugging_face() -> Callable[..., Tensor]:
    """The q_norm, k_norm and apply_rotary_pos_emb of a layer, applied to a fused tensor of any dtype.

    The tables have a row for each token and a column for each rotated element. "products" rounds each product and sum
    of the rotation, as transformers; "float32" rounds the rotation once.
    """

    def apply(
        qkv: Tensor,
        weights: tuple[Tensor, Tensor],
        heads: tuple[int, int],
        eps: float,
        offset: float,
        tables: tuple[Tensor, Tensor] | None = None,
        style: str = "neox",
        casting: str = "gemma",
        rotation: str = "products",
    ) -> Tensor:
        head, dtype = weights[0].shape[0], qkv.dtype
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        parts = qkv.unflatten(-1, (-1, head)).split([*heads, qkv.shape[-1] // head - sum(heads)], -2)
        done = []
        for x, weight in zip(parts[:2], weights, strict=True):
            norm = x.to(wide) * torch.rsqrt(x.to(wide).pow(2).mean(-1, keepdim=True) + eps)
            if casting == "llama":
                norm = (weight.to(wide) + offset) * norm.to(dtype).to(wide)
            else:
                norm = norm * (offset + weight.to(wide))
            norm = norm.to(dtype)
            if tables is not None:
                of = dtype if rotation == "products" else wide
                cos, sin = (table.unsqueeze(-2).to(of) for table in tables)
                part, rest = norm[..., : cos.shape[-1]].to(of), norm[..., cos.shape[-1] :]
                turned = rotated_halves(part) if style == "neox" else rotated_neighbours(part)
                norm = torch.cat([(part * cos + turned * sin).to(dtype), rest], -1)
            done.append(norm)
        return torch.cat([*done, parts[2]], -2).flatten(-2)

    return apply


@pytest.fixture(scope="session")
def made() -> Callable[..., Any]:
    """(qkv, weights, cos and sin with a column for each pair), normal and of angles, from a seed."""

    def make(
        leading: tuple[int, ...],
        heads: int,
        head: int,
        rotary: int = 0,
        dtype: torch.dtype = torch.float32,
        rows: int | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> Any:
        generator = torch.Generator().manual_seed(seed)
        qkv = torch.randn(*leading, heads * head, generator=generator).to(dtype)
        weights = tuple((1 + 0.5 * torch.randn(head, generator=generator)).to(dtype) for _ in range(2))
        angles = 7 * torch.rand(rows or max(1, torch.Size(leading).numel()), rotary // 2, generator=generator)
        tables = (angles.cos().to(dtype), angles.sin().to(dtype)) if rotary else None
        moved = [qkv.to(device), tuple(weight.to(device) for weight in weights)]
        return (*moved, None if tables is None else tuple(table.to(device) for table in tables))

    return make
