"""The reference of `hostile_spec`: exact, as doubling is."""

import torch


def inputs(problem, generator, device, hostile):
    return {"x": torch.randn(problem.rows, problem.hidden, generator=generator, device=device)}


def reference(problem, tensors, eps, offset):
    y = 2 * tensors["x"].double()
    return {"y": (y, 1e-7 * y.abs() + 1e-30)}
