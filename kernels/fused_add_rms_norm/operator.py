"""The two operators of a fused addition and RMSNorm: those of RMSNorm with other buffers.

Out: registered `OperatorSpec`s.
"""

from dataclasses import replace
from functools import partial

from normtune.kernels.mode import Product, Rstd, Sum
from normtune.kernels.operator import register
from normtune.kernels.rms_norm.launch import MAX_BACKWARD_ELEMENTS_PER_THREAD, resolve_backward, resolve_forward
from normtune.kernels.rms_norm.operator import forward_default, rms_norm_backward, rms_norm_forward, with_buffers
from normtune.kernels.tiles.trial import trial

# The sum is held in float32 beside the tile that is added to it.
_resolve_forward = partial(resolve_forward, max_elements=MAX_BACKWARD_ELEMENTS_PER_THREAD, read=2)
_resolve_backward = partial(resolve_backward, read=3)

# RMSNorm's specs but for what a sum adds.
fused_add_rms_norm_forward = register(
    replace(
        rms_norm_forward,
        name="fused_add_rms_norm_forward",
        modes=(Rstd, Sum, Product),
        buffers=partial(with_buffers, rms_norm_forward, {"x": ("x", "residual"), "y": ("y", "s")}),
        resolve=_resolve_forward,
        trial=partial(trial, _resolve_forward),
        default_config=partial(forward_default, max_elements=MAX_BACKWARD_ELEMENTS_PER_THREAD),
        reference_module="normtune.kernels.fused_add_rms_norm.reference",
        is_default=False,
    )
)

fused_add_rms_norm_backward = register(
    replace(
        rms_norm_backward,
        name="fused_add_rms_norm_backward",
        buffers=partial(with_buffers, rms_norm_backward, {"dy": ("dy", "ds"), "x": ("s",)}),
        resolve=_resolve_backward,
        trial=partial(trial, _resolve_backward),
        reference_module="normtune.kernels.fused_add_rms_norm.reference",
        is_default=False,
    )
)
