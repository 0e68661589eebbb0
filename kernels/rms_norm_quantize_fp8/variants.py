"""What a problem of these operators asks for, by the flags in its variant.

In: a problem. Out: `Work`; the flags of each operator. No torch, no triton.

Four operators, as the scale of each is another tensor with another role: read by `static`, written by `row` and
`block`, and by `tensor`, which has one more launch; and `transpose`, which is `static` with a second output and other
knobs. The rest are flags, each another binary of the same operator: a table may have a function for each, and answers
for one that was not measured with the plain operator's. That is a fair guess, as FP8 dtypes have one size and rounding
takes no memory traffic; only `with_y` and `with_residual` add traffic, which the buffers state.
"""

from functools import cache
from typing import NamedTuple

from normtune.kernels.operator import Flag
from normtune.kernels.problem import Problem

FAMILY = "rms_norm_quantize_fp8"
SCALINGS = ("static", "row", "block", "tensor")
# The operator whose scale is static and whose result is also transposed.
TRANSPOSE = "transpose"
# Columns that share a scale in `block`; the last block of a row may be shorter.
BLOCK = 128
# Rows of a column-major scale are padded to 16 bytes, as NVIDIA's tensor memory accelerator reads them.
PADDING = 4
# Largest finite values (OCP 8-bit Floating Point Specification, revision 1.0; for fnuz Noune et al., 8-bit Numerical
# Formats for Deep Neural Networks, 2022).
LARGEST = {
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2fnuz": 57344.0,
}
_OF_ALL = (
    Flag("is_e4m3", "e5m2"),
    Flag("is_ocp", "fnuz"),
    Flag("is_norm_wide", "rounded_norm"),
    Flag("is_product_wide", "rounded_product"),
    Flag("is_y_left_out", "with_y"),
    Flag("is_without_residual", "with_residual"),
    Flag("is_sum_wide", "rounded_sum"),
    Flag("is_rstd_left_out", "with_rstd"),
)
FLAGS = {
    "static": (*_OF_ALL, Flag("store_amax", "no_amax"), Flag("is_amax_new", "amax_in_place")),
    "row": _OF_ALL,
    "block": (*_OF_ALL, Flag("is_row_major", "column_major")),
    "tensor": _OF_ALL,
}


class Work(NamedTuple):
    """What a problem asks for.

    Attributes:
        scaling: one of `SCALINGS`.
        q_dtype: name of the dtype of the quantized tensor.
        rounds_product: whether x * rstd is rounded to the dtype of x before the weight multiplies it.
        rounds_norm: whether the norm is rounded to the dtype of x before it is scaled.
        has_y: whether the norm is a second output.
        has_residual: whether a residual is added first, and the sum is an output.
        rounds_sum: whether that sum is rounded to the dtype of x before it is normalized.
        has_amax: whether the largest magnitude of the norm over all rows is an output.
        is_column_major: whether scales of neighbouring rows are neighbours in memory.
        has_rstd: whether rstd of each row, which a backward reads, is an output.
        accumulates: whether that magnitude becomes the maximum of what the output has and of the norm.
        has_transpose: whether the quantized tensor is written transposed, too.
    """

    scaling: str
    q_dtype: str
    rounds_product: bool
    rounds_norm: bool
    has_y: bool
    has_residual: bool
    rounds_sum: bool
    has_amax: bool
    is_column_major: bool
    has_rstd: bool = False
    accumulates: bool = False
    has_transpose: bool = False

    @property
    def kind(self) -> str:
        """The end of the operator's name."""
        return TRANSPOSE if self.has_transpose else self.scaling

    @property
    def binary(self) -> "Work":
        """This work without what makes no binary of the kernel that normalizes."""
        return self._replace(accumulates=False, has_transpose=False)

    @property
    def largest(self) -> float:
        """Largest finite value of the quantized dtype."""
        return LARGEST[self.q_dtype]


def operator_name(kind: str) -> str:
    """The name of the operator of a scaling, or of `TRANSPOSE`."""
    return f"{FAMILY}_{kind}"


def work_of(problem: Problem) -> Work:
    """What a problem of one of the operators asks for."""
    return _work(problem.operator, problem.variant)


@cache
def _work(operator: str, variant: str) -> Work:
    off = set(variant.split("+"))
    kind = operator.removeprefix(f"{FAMILY}_")
    scaling = "static" if kind == TRANSPOSE else kind
    fnuz = "fnuz" if "fnuz" in off else ""
    return Work(
        scaling,
        f"float8_e5m2{fnuz}" if "e5m2" in off else f"float8_e4m3{fnuz or 'fn'}",
        "rounded_product" in off,
        "rounded_norm" in off,
        "with_y" in off,
        "with_residual" in off,
        "rounded_sum" in off,
        scaling == "tensor" or (scaling == "static" and "no_amax" not in off),
        "column_major" in off,
        "with_rstd" in off,
        "amax_in_place" in off,
        kind == TRANSPOSE,
    )


def variant_of(work: Work) -> str:
    """The variant of a problem that asks for this."""
    has = {
        "e5m2": "e5m2" in work.q_dtype,
        "fnuz": "fnuz" in work.q_dtype,
        "rounded_norm": work.rounds_norm,
        "rounded_product": work.rounds_product,
        "with_y": work.has_y,
        "with_residual": work.has_residual,
        "rounded_sum": work.rounds_sum,
        "with_rstd": work.has_rstd,
        "no_amax": not work.has_amax,
        "amax_in_place": work.accumulates,
        "column_major": work.is_column_major,
    }
    return "+".join(flag.off for flag in FLAGS[work.scaling] if has[flag.off])


def blocks_of(hidden: int) -> int:
    """Scales of a row in `block`."""
    return -(-hidden // BLOCK)


def padded_rows(rows: int) -> int:
    """Rows of a column-major scale with its padding, which holds zeros."""
    return -(-rows // PADDING) * PADDING
