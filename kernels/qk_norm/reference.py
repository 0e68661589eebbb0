"""The float64 reference of `qk_norm` and its backward, and inputs for their checks.

In: a problem, a generator and tensors. Out: inputs, and for each output the exact value and its tolerance. The bounds
are those of docs/measuring.md, "The gate": the norm may be rounded either way, and its rotation with it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from normtune.kernels.mode import Dweight, Product
from normtune.kernels.problem import Problem
from normtune.kernels.qk_norm.launch import (
    BACKWARD,
    Heads,
    Place,
    Positions,
    Rotary,
    RotationProducts,
    Tables,
    heads_of,
)
from normtune.kernels.rms_norm import reference as of_rms_norm
from normtune.kernels.rounding import FLOAT32_EPSILON, Expected, unit_in_last_place

# A tolerance below the distance of any two numbers.
_NOTHING = 1e-300


def inputs(problem: Problem, generator: torch.Generator, device: torch.device, hostile: bool) -> dict[str, Tensor]:
    """Fresh inputs of a problem on `device`; arguments as in `rms_norm.reference.inputs`.

    Returns:
        `qkv` (rows, heads * hidden), two weights (hidden,) and, unless the variant leaves them out, `cos` and `sin` of
        random angles and `positions` (rows,) in random order; for the backward also `dout`.
    """
    heads, rows = heads_of(problem), problem.rows
    every = of_rms_norm.inputs(problem._replace(rows=rows * heads.written), generator, device, hostile)
    dtype = every["x"].dtype
    other = 1 + 0.5 * torch.randn(problem.hidden, generator=generator, device=device)
    tensors = {"qkv": every["x"].view(rows, -1), "weight_q": every["weight"], "weight_k": other.to(dtype)}
    if heads.rotary:
        angles = 7 * torch.rand(rows, heads.table_columns, generator=generator, device=device)
        tensors |= {"cos": angles.cos().to(dtype), "sin": angles.sin().to(dtype)}
        if Positions.of(problem) is Positions.GIVEN:
            tensors["positions"] = torch.randint(rows, (rows,), generator=generator, device=device)
    if problem.key.family == BACKWARD:
        dout = torch.randn(tensors["qkv"].shape, generator=generator, device=device)
        return {"dout": dout.to(dtype), **tensors}
    return tensors


def reference(problem: Problem, tensors: Mapping[str, Tensor], eps: float, offset: float) -> dict[str, Expected]:
    """Exact outputs of a problem in float64; arguments as in `rms_norm.reference.reference`.

    Returns:
        The fused tensor, `qkv` or `out`; of the backward `dqkv` and, unless the variant leaves it out, `dweights`.
    """
    if problem.key.family == BACKWARD:
        return _gradients(problem, tensors, eps, offset)
    heads, dtype = heads_of(problem), tensors["qkv"].dtype
    every = tensors["qkv"].double().view(problem.rows, heads.written, problem.hidden)
    end = heads.heads_q + heads.heads_k
    x = every[:, :end]
    weight = _weights(heads, tensors, offset)
    xhat = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    norm = xhat * weight
    tolerance = unit_in_last_place(norm, dtype) + 8 * FLOAT32_EPSILON * norm.abs()
    if Product.of(problem) is Product.ROUNDED:
        tolerance = tolerance + unit_in_last_place(xhat, dtype) * weight.abs()
    if heads.rotary:
        norm, tolerance = _rotated(problem, norm, tolerance, tensors, dtype)
    values = every[:, end:]
    value = torch.cat([norm, values], 1).view(problem.rows, -1)
    allowed = torch.cat([tolerance, torch.full_like(values, _NOTHING)], 1).view(problem.rows, -1)
    return {"qkv" if Place.of(problem) is Place.IN_PLACE else "out": Expected(value, allowed)}


def _gradients(problem: Problem, tensors: Mapping[str, Tensor], eps: float, offset: float) -> dict[str, Expected]:
    heads, dtype = heads_of(problem), tensors["qkv"].dtype
    end = heads.heads_q + heads.heads_k
    every, gradients = (
        tensors[name].double().view(problem.rows, heads.written, problem.hidden) for name in ("qkv", "dout")
    )
    x, dy = every[:, :end], gradients[:, :end]
    size = dy.abs()  # of the terms of what follows, for float32's errors
    if heads.rotary:
        partners, sign = _partners(problem, dy.device)
        cos, sin = (_of_elements(problem, tensors[name].double(), tensors.get("positions")) for name in ("cos", "sin"))
        head, rest = dy[..., : heads.rotary], dy[..., heads.rotary :]
        # The sine is that of the other element, to which this one has contributed.
        of_element, of_partner = head * cos, (head * sin)[..., partners]
        size = torch.cat([of_element.abs() + of_partner.abs(), rest.abs()], -1)
        dy = torch.cat([of_element - sign * of_partner, rest], -1)
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    xhat, weight = x * rstd, _weights(heads, tensors, offset)
    dx = rstd * (dy * weight - xhat * (dy * weight * xhat).mean(-1, keepdim=True))
    size_of_dx = size * weight.abs()
    terms = rstd * (size_of_dx + xhat.abs() * (size_of_dx * xhat.abs()).mean(-1, keepdim=True))
    allowed = unit_in_last_place(dx, dtype) + 16 * FLOAT32_EPSILON * terms
    value = torch.cat([dx, gradients[:, end:]], 1).view(problem.rows, -1)
    tolerance = torch.cat([allowed, torch.full_like(every[:, end:], _NOTHING)], 1).view(problem.rows, -1)
    expected = {"dqkv": Expected(value, tolerance)}
    if Dweight.of(problem) is Dweight.COMPUTED:
        depth = 16 + (problem.rows * heads.written).bit_length()
        parts = (slice(0, heads.heads_q), slice(heads.heads_q, end))
        sums = torch.stack([(dy * xhat)[:, part].sum((0, 1)) for part in parts])
        errors = torch.stack([(size * xhat.abs())[:, part].sum((0, 1)) for part in parts])
        expected["dweights"] = Expected(
            sums, unit_in_last_place(sums, torch.float32) + depth * FLOAT32_EPSILON * errors
        )
    return expected


def _weights(heads: Heads, tensors: Mapping[str, Tensor], offset: float) -> Tensor:
    """(heads, head) weight + offset of each head."""
    counts = {"weight_q": heads.heads_q, "weight_k": heads.heads_k}
    return torch.cat([(tensors[name].double() + offset).expand(count, -1) for name, count in counts.items()])


def _partners(problem: Problem, device: torch.device) -> tuple[Tensor, Tensor]:
    """The other element of each rotated one's pair, and the sign of its share."""
    rotary = heads_of(problem).rotary
    partners = torch.arange(rotary, device=device)
    if Rotary.of(problem) is Rotary.NEOX:
        partners = partners.roll(rotary // 2)
        is_second = partners >= rotary // 2
    else:
        partners = partners ^ 1
        is_second = partners % 2 == 1
    return partners, torch.where(is_second, -1.0, 1.0).double()


def _rotated(
    problem: Problem, norm: Tensor, tolerance: Tensor, tensors: Mapping[str, Tensor], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Value and tolerance of rotated heads, of those of the norm."""
    cos, sin = (_of_elements(problem, tensors[name].double(), tensors.get("positions")) for name in ("cos", "sin"))
    partners, sign = _partners(problem, norm.device)
    rotary = heads_of(problem).rotary
    head, rest = norm[..., :rotary], norm[..., rotary:]
    of_element, of_partner = head * cos, head[..., partners] * sin
    value = of_element + sign * of_partner
    error = tolerance[..., :rotary]
    allowed = error * cos.abs() + error[..., partners] * sin.abs() + unit_in_last_place(value, dtype)
    allowed += 4 * FLOAT32_EPSILON * (of_element.abs() + of_partner.abs())
    if RotationProducts.of(problem) is RotationProducts.ROUNDED:
        allowed += unit_in_last_place(of_element, dtype) + unit_in_last_place(of_partner, dtype)
    return torch.cat([value, rest], -1), torch.cat([allowed, tolerance[..., rotary:]], -1)


def _of_elements(problem: Problem, table: Tensor, positions: Tensor | None) -> Tensor:
    """(rows, 1, rotary) values of a table, one for each rotated element."""
    rows = table if positions is None else table[positions]
    if Tables.of(problem) is Tables.PAIRS:
        rows = torch.cat([rows, rows], -1) if Rotary.of(problem) is Rotary.NEOX else rows.repeat_interleave(2, -1)
    return rows[:, None]
