"""fused_add_rms_norm as operations, one for each order of rounding.

In: nothing. Out: `OPERATIONS` by the name of the order.
"""

from functools import partial

from normtune.kernels.fused_add_rms_norm.composed import Formula
from normtune.kernels.fused_add_rms_norm.spec import fused_add_rms_norm_backward, fused_add_rms_norm_forward
from normtune.kernels.rms_norm.operation import columns_alone, normalizing

_operation = partial(
    normalizing,
    forward=fused_add_rms_norm_forward,
    backward=fused_add_rms_norm_backward,
    like={"s": "residual", "dx": "s"},
    in_place={"y": "x", "s": "residual"},
    shared={"residual": "dx"},
    columns_alone=partial(columns_alone, rows="s"),
)
OPERATIONS = {
    "float32": _operation(name="fused_add_rms_norm", formula=Formula()),
    "sum": _operation(name="fused_add_rms_norm_rounded_sum", flags={"sum_in_float32": False}, formula=Formula(True)),
    "llama": _operation(
        name="fused_add_rms_norm_llama",
        flags={"sum_in_float32": False, "product_in_float32": False},
        formula=Formula(True, True),
        columns_alone=partial(columns_alone, rows="s", rounds_product=True),
    ),
}
