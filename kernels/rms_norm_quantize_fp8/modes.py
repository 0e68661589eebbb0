"""The quantizing operators and their modes. No torch, no triton. Part of the kernels' fingerprint.

Each scaling is an operator, because their buffers differ: `static` reads the scale, `row`, `block` and `tensor` write
it, and `transpose` is `static` with a second output. All else is a mode. For an unmeasured mode a table uses the plain
operator's function: only a stored norm and a residual add memory traffic.
"""

from functools import cache
from typing import NamedTuple

from normtune.kernels.mode import Mode
from normtune.kernels.problem import Problem
from normtune.kernels.rms_norm.modes import Product

FAMILY = "rms_norm_quantize_fp8"
SCALINGS = ("static", "row", "block", "tensor")
# The operator with a static scale and a transposed second output.
TRANSPOSE = "transpose"
# Largest finite values (OCP 8-bit Floating Point Specification, revision 1.0; for fnuz Noune et al., 8-bit Numerical
# Formats for Deep Neural Networks, 2022).
LARGEST = {
    "float8_e4m3fn": 448.0,
    "float8_e5m2": 57344.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2fnuz": 57344.0,
}


class QuantizedDtype(Mode):
    """The dtype of the quantized tensor."""

    E4M3FN = ""
    E5M2 = "e5m2"
    E4M3FNUZ = "fnuz"
    E5M2FNUZ = "e5m2+fnuz"

    @property
    def dtype(self) -> str:
        """Name of the dtype, a key of `LARGEST`."""
        return f"float8_{self.name.lower()}"


class Norm(Mode):
    """Whether the norm is rounded to the dtype of x before it is scaled."""

    FLOAT32 = ""
    ROUNDED = "rounded_norm"


class NormOutput(Mode):
    """Whether the norm is a second output."""

    NONE = ""
    STORED = "with_y"


class Residual(Mode):
    """Whether a residual is added first, and x + residual is an output, which is normalized as it is returned."""

    NONE = ""
    WIDE = "with_residual"
    ROUNDED = "with_residual+rounded_sum"


class RstdOutput(Mode):
    """Whether the rstd of each row, for a backward, is an output."""

    NONE = ""
    STORED = "with_rstd"


class Amax(Mode):
    """The amax of `static`: a new output, none, or an output that accumulates the maximum."""

    NEW = ""
    NONE = "no_amax"
    IN_PLACE = "amax_in_place"


class ScaleLayout(Mode):
    """Whether the scales of `block` are contiguous along a row or along a column."""

    ROW_MAJOR = ""
    COLUMN_MAJOR = "column_major"


_OF_ALL = (QuantizedDtype, Norm, Product, NormOutput, Residual, RstdOutput)
MODES: dict[str, tuple[type[Mode], ...]] = {
    "static": (*_OF_ALL, Amax),
    "row": _OF_ALL,
    "block": (*_OF_ALL, ScaleLayout),
    "tensor": _OF_ALL,
}


class QuantizeModes(NamedTuple):
    """The modes of a problem as one constant argument of the kernels.

    Attributes:
        scaling: one of `SCALINGS`.
        q_dtype: name of the dtype of the quantized tensor.
        has_amax: whether the largest magnitude of the norm over all rows is an output.
        accumulates: whether the output becomes the maximum of itself and that magnitude.
        has_transpose: whether the transposed quantized tensor is also an output.
    """

    scaling: str
    q_dtype: str
    rounds_product: bool
    rounds_norm: bool
    has_y: bool
    has_residual: bool
    rounds_sum: bool
    has_rstd: bool
    has_amax: bool
    is_column_major: bool
    accumulates: bool
    has_transpose: bool

    @property
    def binary(self) -> "QuantizeModes":
        """These modes without those that do not change the binary of the normalizing kernel."""
        return self._replace(accumulates=False, has_transpose=False)

    @property
    def largest(self) -> float:
        """Largest finite value of the quantized dtype."""
        return LARGEST[self.q_dtype]


def operator_name(kind: str) -> str:
    """The name of the operator of a scaling, or of `TRANSPOSE`."""
    return f"{FAMILY}_{kind}"


def modes_of(problem: Problem) -> QuantizeModes:
    """The modes of a problem of one of the operators."""
    return _modes_of(problem.operator, problem.variant)


@cache
def _modes_of(operator: str, variant: str) -> QuantizeModes:
    problem = Problem.of(operator, 1, 1, "float32", variant)
    has_transpose = operator == operator_name(TRANSPOSE)
    scaling = "static" if has_transpose else operator.removeprefix(f"{FAMILY}_")
    residual, amax = Residual.of(problem), Amax.of(problem)
    return QuantizeModes(
        scaling=scaling,
        q_dtype=QuantizedDtype.of(problem).dtype,
        rounds_product=Product.of(problem) is Product.ROUNDED,
        rounds_norm=Norm.of(problem) is Norm.ROUNDED,
        has_y=NormOutput.of(problem) is NormOutput.STORED,
        has_residual=residual is not Residual.NONE,
        rounds_sum=residual is Residual.ROUNDED,
        has_rstd=RstdOutput.of(problem) is RstdOutput.STORED,
        has_amax=scaling == "tensor" or (scaling == "static" and amax is not Amax.NONE),
        is_column_major=ScaleLayout.of(problem) is ScaleLayout.COLUMN_MAJOR,
        accumulates=amax is Amax.IN_PLACE,
        has_transpose=has_transpose,
    )
