"""The float64 reference of the operators of gated RMSNorm, and inputs for their checks.

In: a problem, a generator and tensors. Out: inputs, and for each output the exact value and its tolerance. Bounds are
those of RMSNorm (docs/measuring.md, "The gate"), and of the gate: float32's exponential of z errs by |z| units more.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from normtune.kernels.mode import Dweight, Rstd
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm import reference as plain
from normtune.kernels.rms_norm_gated.launch import Gate, Order, Roundings
from normtune.kernels.rounding import FLOAT32_EPSILON, RSTD_UNITS, Expected, unit_in_last_place

_ROUNDINGS = 8 * FLOAT32_EPSILON
# Where exp(-z) overflows in float32 silu and its derivative are zero, and less than this in float64.
_UNDERFLOW = 2.0**-119
# Keeps a tolerance of zero from dividing zero.
_LEAST = 2.0**-160


def inputs(problem: Problem, generator: torch.Generator, device: torch.device, hostile: bool) -> dict[str, Tensor]:
    """Fresh inputs of a problem on `device`; arguments as in `rms_norm.reference.inputs`.

    Hostile inputs also have gates that are zero, nearly shut and wide open.

    Returns:
        `x` and `z` (rows, hidden), `weight` (hidden,), and for the backward also `dy` (rows, hidden) and `rstd`
        (rows,).
    """
    tensors = plain.inputs(problem, generator, device, hostile)
    dtype = tensors["x"].dtype
    shape = (problem.rows, problem.hidden)
    if Gate.of(problem) is Gate.PRESENT:
        z = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        if hostile:
            # In float16 gradients of rows of zeros, a thousand times those of others, leave no room for a wide gate.
            widest = 4.0 if dtype == torch.float16 else 60.0
            z[1::7, 1 + shape[1] // 2 :] = 0.0
            z[2::7] = (30.0 * z[2::7]).clamp_(-60.0, widest)
            z[5::7, shape[1] // 2 :] = -60.0
        tensors["z"] = z.to(dtype)
    if problem.operator == "rms_norm_gated_backward":
        tensors["dy"] = torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)
        u = _GateFactors.of(problem, tensors).before * tensors["x"].double()
        tensors["rstd"] = torch.rsqrt(u.square().mean(dim=1) + 1e-6).float()
    return tensors


class _GateFactors(NamedTuple):
    """Factors of the gate where x enters and where y leaves, one of them 1, and float32's relative error of each."""

    before: Tensor
    after: Tensor
    error: Tensor
    derivative: Tensor
    derivative_error: Tensor

    @classmethod
    def of(cls, problem: Problem, tensors: Mapping[str, Tensor]) -> "_GateFactors":
        one = torch.ones_like(tensors["x"], dtype=torch.float64)
        none = torch.zeros_like(one)
        if Gate.of(problem) is Gate.NONE:
            return cls(one, one, none, none, none)
        z = tensors["z"].double()
        sigmoid = torch.sigmoid(z)
        silu, derivative = z * sigmoid, sigmoid * (1 + z * (1 - sigmoid))
        exponent = FLOAT32_EPSILON * z.abs() * (1 - sigmoid)
        error = _ROUNDINGS + exponent
        terms = sigmoid * (1 + z.abs() * (1 - sigmoid))
        derivative_error = 2 * terms * (_ROUNDINGS + exponent) + FLOAT32_EPSILON * sigmoid * z.abs().clamp(max=20)
        before, after = (silu, one) if Order.of(problem) is Order.GATE_FIRST else (one, silu)
        return cls(before, after, error, derivative, derivative_error)


def reference(problem: Problem, tensors: Mapping[str, Tensor], eps: float, offset: float) -> dict[str, Expected]:
    """Exact outputs of a problem in float64; arguments as in `rms_norm.reference.reference`.

    Returns:
        Forward `y` and `rstd`, backward `dx`, `dz` and `dweight`. With the roundings of `hugging_face`, y is what these
        give, and its tolerance is zero unless float32's arithmetic before a rounding decides which way it goes.
    """
    gate = _GateFactors.of(problem, tensors)
    weight = tensors["weight"].double() + offset
    if problem.operator == "rms_norm_gated_forward":
        return _forward(problem, tensors, gate, weight, eps)
    return _backward(problem, tensors, gate, weight)


def _forward(
    problem: Problem, tensors: Mapping[str, Tensor], gate: _GateFactors, weight: Tensor, eps: float
) -> dict[str, Expected]:
    x = tensors["x"]
    u = x.double() * gate.before
    square = u.square()
    # The error of u is that of the gate before the norm, and reaches rstd by its mean.
    of_u = gate.error if Order.of(problem) is Order.GATE_FIRST else torch.zeros_like(gate.error)
    of_rstd = (square * of_u).mean(dim=1) / (square.mean(dim=1) + eps)
    rstd = torch.rsqrt(square.mean(dim=1) + eps)
    xhat = u * rstd[:, None]
    if Roundings.of(problem) is Roundings.HUGGING_FACE:
        error = _ROUNDINGS + of_u + of_rstd[:, None]
        y = _rounded(xhat, error, weight, tensors, gate)
    else:
        value = xhat * weight * gate.after
        error = _ROUNDINGS + gate.error + of_rstd[:, None]
        tiny = _UNDERFLOW * weight.abs() * rstd[:, None] * torch.maximum(u.abs(), x.double().abs())
        y = Expected(value, unit_in_last_place(value, x.dtype) + error * value.abs() + tiny)
    if Rstd.of(problem) is Rstd.NONE:
        return {"y": y}
    return {"y": y, "rstd": Expected(rstd, RSTD_UNITS * unit_in_last_place(rstd, torch.float32) + of_rstd * rstd)}


def _rounded(
    xhat: Tensor, error: Tensor, weight: Tensor, tensors: Mapping[str, Tensor], gate: _GateFactors
) -> Expected:
    """The y with the normalized values and their product with the weight rounded, and how far float32 moves it."""
    dtype, weight_dtype = tensors["x"].dtype, tensors["weight"].dtype

    def after_gate(of_xhat: float, of_product: float, of_gate: float) -> Tensor:
        product = (xhat * (1 + of_xhat * error)).to(dtype).double() * weight
        product = (product * (1 + of_product * FLOAT32_EPSILON)).to(weight_dtype).double()
        # A product of rounded values, which float32 rounds and the dtype of y after it.
        return (product * gate.after * (1 + of_gate * (gate.error + FLOAT32_EPSILON))).float().to(dtype).double()

    value = after_gate(0.0, 0.0, 0.0)
    signs = (-1.0, 1.0)
    ends = [after_gate(*corner) for corner in torch.cartesian_prod(*[torch.tensor(signs)] * 3).tolist()]
    furthest = torch.stack([(end - value).abs() for end in ends]).amax(dim=0)
    return Expected(value, furthest + _UNDERFLOW * (xhat * weight).abs() + _LEAST)


def _backward(
    problem: Problem, tensors: Mapping[str, Tensor], gate: _GateFactors, weight: Tensor
) -> dict[str, Expected]:
    dtype = tensors["x"].dtype
    x, dy, rstd = tensors["x"].double(), tensors["dy"].double(), tensors["rstd"].double()[:, None]
    xhat = x * gate.before * rstd
    product = dy * gate.after
    gradient = product * weight
    pairs = gradient * xhat
    of_mean = (pairs.abs() * (_ROUNDINGS + gate.error)).mean(dim=1, keepdim=True)
    du = rstd * (gradient - xhat * pairs.mean(dim=1, keepdim=True))
    size = rstd.abs()  # timing has normal values, of either sign
    terms = size * (gradient.abs() + xhat.abs() * pairs.abs().mean(dim=1, keepdim=True))
    of_du = (_ROUNDINGS + gate.error) * terms + size * xhat.abs() * of_mean
    tiny = _UNDERFLOW * (1 + (dy * weight).abs()) * (1 + size) * (1 + x.abs()) * (1 + size * x.abs())
    dx = du * gate.before
    with_errors = {"dx": (dx, of_du * gate.before.abs() + gate.error * dx.abs() + tiny)}
    if Gate.of(problem) is Gate.PRESENT:
        if Order.of(problem) is Order.GATE_FIRST:
            factor, of_factor = du * x, of_du * x.abs()
        else:
            factor = dy * xhat * weight
            of_factor = _ROUNDINGS * factor.abs()
        dz = factor * gate.derivative
        error = of_factor * gate.derivative.abs() + factor.abs() * gate.derivative_error + _ROUNDINGS * dz.abs()
        with_errors["dz"] = (dz, error + tiny)
    expected = {
        name: Expected(value, unit_in_last_place(value, dtype) + error) for name, (value, error) in with_errors.items()
    }
    if Dweight.of(problem) is Dweight.COMPUTED:
        part = product * xhat
        dweight = part.sum(dim=0)
        depth = 8 + max(problem.rows - 1, 0).bit_length()
        error = ((FLOAT32_EPSILON * depth + gate.error) * part.abs() + tiny).sum(dim=0)
        expected["dweight"] = Expected(dweight, unit_in_last_place(dweight, tensors["weight"].dtype) + error)
    return expected
