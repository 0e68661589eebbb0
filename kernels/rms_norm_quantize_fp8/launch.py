"""Modes, layout of scales and launches of the quantizing kernels. Part of the kernels' fingerprint.

Each scaling is an operator, because their buffers differ: `static` reads the scale, `row`, `block` and `tensor` write
it, and `transpose` is `static` with a second output. All else is a mode. For an unmeasured mode a table uses the plain
operator's function: only a stored norm and a residual add memory traffic.

In: config, problem, target. Out: a launch, or `IllegalConfigError` with the reason. Pure arithmetic, no torch, no
triton.
"""

from typing import NamedTuple

from normtune.kernels.config import Config
from normtune.kernels.mode import Mode, Product
from normtune.kernels.operator import IllegalConfigError
from normtune.kernels.problem import Problem
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import Launch, split, tile
from normtune.kernels.transpose_fp8 import launch as transposition
from normtune.kernels.transpose_fp8.launch import TransposeLaunch
from normtune.kernels.transpose_fp8.operator import TransposeConfig

# Columns that share a scale in `block`; the last block of a row may be shorter.
BLOCK = 128
# Bytes of the rows of column-major scales are a multiple, for NVIDIA's tensor memory accelerator.
PADDING = 16
# Blocks of a row whose bytes are a word of `UE8M0_PACKED`.
WORD = 4


def blocks_of(hidden: int) -> int:
    """Number of blocks, and scales, in a row."""
    return -(-hidden // BLOCK)


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

    @property
    def largest(self) -> float:
        """Its largest finite value."""
        return LARGEST[self.dtype]


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


class ScaleFormat(Mode):
    """The scales of `row` and `block`: float32, or powers of two, as float32 or as the bytes of their exponents."""

    FLOAT32 = ""
    UE8M0 = "ue8m0"
    UE8M0_BYTES = "ue8m0_bytes"
    UE8M0_PACKED = "ue8m0_packed"

    @property
    def has_bytes(self) -> bool:
        """Whether a scale is stored as a byte."""
        return self in (ScaleFormat.UE8M0_BYTES, ScaleFormat.UE8M0_PACKED)

    @property
    def padding(self) -> int:
        """Number of which the rows of column-major scales are a multiple: of bytes, or of words and float32."""
        return PADDING if self is ScaleFormat.UE8M0_BYTES else PADDING // 4

    def padded_rows(self, rows: int) -> int:
        """Rows of column-major scales including the padding, which holds zeros."""
        return -(-rows // self.padding) * self.padding

    def padded_blocks(self, blocks: int) -> int:
        """Scales of a row including those that fill its last word, which are zeros."""
        return -(-blocks // WORD) * WORD if self is ScaleFormat.UE8M0_PACKED else blocks


_OF_ALL = (QuantizedDtype, Norm, Product, NormOutput, Residual, RstdOutput)
MODES: dict[str, tuple[type[Mode], ...]] = {
    "static": (*_OF_ALL, Amax),
    "row": (*_OF_ALL, ScaleFormat),
    "block": (*_OF_ALL, ScaleLayout, ScaleFormat),
    "tensor": _OF_ALL,
}


def operator_name(kind: str) -> str:
    """The name of the operator of a scaling, or of `TRANSPOSE`."""
    return f"{FAMILY}_{kind}"


def scaling_of(problem: Problem) -> str:
    """The scaling of a problem of one of the operators, one of `SCALINGS`."""
    kind = problem.operator.removeprefix(f"{FAMILY}_")
    return "static" if kind == TRANSPOSE else kind


# As in RMSNorm's forward: with more elements, spills cost more than any shape gains.
MAX_ELEMENTS_PER_THREAD = 128
# The first CUDA architecture with instructions that convert to FP8 (PTX ISA, `cvt`).
_FIRST_SM = 89
# AMD's CDNA 3 converts to the fnuz dtypes in hardware; it also runs the OCP dtypes, converted in software.
_FNUZ_TARGETS = ("gfx942",)


def resolve(config: Config, problem: Problem, target: Target, alignment: int | None = None) -> Launch:
    """The launch of an operator that does not transpose; errors as in `tile`.

    Schedules are `row`, `block_row`, `parts`, `persistent` and `split`.
    """
    _check_target(QuantizedDtype.of(problem).dtype, target)
    if config.schedule == "split":
        launch = split(config, problem, target, alignment)
        if scaling_of(problem) == "block" and launch.block_col % BLOCK and launch.chunks > 1:
            raise IllegalConfigError(f"chunks of {launch.block_col} columns cut blocks of {BLOCK}")
        launch = launch._replace(looped=False, grid=problem.rows, num_stages=1, row_layout=None)
    elif config.schedule in ("row", "block_row", "parts", "persistent"):
        streamed = 1 if Residual.of(problem) is Residual.NONE else 2
        launch = tile(config, problem, target, alignment, MAX_ELEMENTS_PER_THREAD, streamed)
        # A whole row is loaded in the layout of its FP8 store, 16 values a thread; a part in the default layout.
        launch = launch._replace(row_layout=None)
    else:
        raise IllegalConfigError(f"schedule {config.schedule!r} does not exist for {problem.operator}")
    return launch


class TransposingLaunch(NamedTuple):
    """A launch of the operator that also transposes.

    Attributes:
        norm: launch of the normalizing kernel.
        transpose: the launch after it.
        workspace: none.
    """

    norm: Launch
    transpose: TransposeLaunch
    workspace: int = 0

    @property
    def grid(self) -> int:
        """Programs of the kernel that normalizes."""
        return self.norm.grid

    @property
    def binary(self) -> "TransposingLaunch":
        """This launch without the fields that the binary does not depend on."""
        return TransposingLaunch(self.norm.binary, self.transpose.binary)

    @property
    def row_sum(self) -> Launch:
        """The summation order of `norm`; a transposition sums nothing."""
        return self.norm.row_sum


def resolve_transposing(
    config: Config, problem: Problem, target: Target, alignment: int | None = None
) -> TransposingLaunch:
    """The launch of the operator that also transposes; errors as in `resolve`."""
    of_transpose = TransposeConfig(config.transpose_row, config.transpose_col, config.transpose_warps)
    transpose = transposition.resolve(of_transpose, problem, target, alignment)
    return TransposingLaunch(resolve(config, problem, target, alignment), transpose)


def _check_target(dtype: str, target: Target) -> None:
    """Raise IllegalConfigError for a target without conversions to the FP8 dtype."""
    number = target.name.removeprefix("sm_")
    is_cuda = number != target.name
    if is_cuda and int(number) < _FIRST_SM:
        raise IllegalConfigError(f"{dtype} needs sm_{_FIRST_SM} or newer, this is {target.name}")
    if dtype.endswith("fnuz") and target.name not in _FNUZ_TARGETS:
        raise IllegalConfigError(f"{dtype} has no instructions on {target.name}")
