"""Operators of torch's dispatcher, `torch.ops.normtune.NAME`.

In: a schema and Python functions. Out: the operator, which runs them on CPUs and GPUs, for compilers and for autograd.
"""

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "normtune"
# Operators live as long as this fragment: as long as the module.
_library = torch.library.Library(NAMESPACE, "DEF")


def define(
    name: str,
    schema: str,
    call: Callable[..., Any],
    shapes: Callable[..., Any],
    gradient: Callable[..., Any] | None = None,
    save: Callable[..., None] | None = None,
) -> Any:
    """The operator of that name.

    Args:
        name: in the namespace.
        schema: its arguments and results.
        call: of tensors with memory.
        shapes: of those without: makes results of the same kind.
        gradient: of (ctx, gradients of results); None for an operator without gradients.
        save: of (ctx, inputs, output), what `gradient` reads.
    """
    qualified = f"{NAMESPACE}::{name}"
    _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    for backend in ("CPU", "CUDA"):
        _library.impl(name, call, backend)
    torch.library.register_fake(qualified, shapes, lib=_library)
    if gradient:
        torch.library.register_autograd(qualified, gradient, setup_context=save, lib=_library)
    return getattr(torch.ops.normtune, name)
