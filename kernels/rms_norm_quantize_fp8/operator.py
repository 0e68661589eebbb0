"""The quantizing operators: knobs, buffers, spaces, default configs and specs.

Out: registered `OperatorSpec`s, one for each scaling and one with a transposed result. The spaces are products of knob
values, not narrowed by measurements.
"""

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Annotated, NamedTuple

from normtune.kernels.config import Config
from normtune.kernels.operator import OperatorSpec, register
from normtune.kernels.problem import IN_OUT, INPUT, ITEMSIZE, OUTPUT, WEIGHT, Buffer, Problem
from normtune.kernels.rms_norm.operator import parts
from normtune.kernels.rms_norm_quantize_fp8.launch import (
    MAX_ELEMENTS_PER_THREAD,
    MODES,
    SCALINGS,
    TRANSPOSE,
    Amax,
    NormOutput,
    QuantizedDtype,
    Residual,
    RstdOutput,
    ScaleFormat,
    ScaleLayout,
    blocks_of,
    operator_name,
    resolve,
    resolve_transposing,
    scaling_of,
)
from normtune.kernels.target import Target
from normtune.kernels.tiles.launch import next_power_of_2
from normtune.kernels.tiles.trial import trial
from normtune.kernels.transpose_fp8.operator import configs as transpose_configs

MAX_HIDDEN = 65536


class _KnobValues(NamedTuple):
    """A space: the product of values of the knobs, within bounds on elements per thread.

    Attributes:
        rows, warps, stages, programs: values of the knobs.
        elements: least and most elements of a tile per thread.
        chunks: (columns, warps) of rows in chunks.
    """

    rows: tuple[int, ...]
    warps: tuple[int, ...]
    stages: tuple[int, ...]
    programs: tuple[int, ...]
    elements: tuple[int, int]
    chunks: tuple[tuple[int, int], ...]


_SPACES = {
    "default": _KnobValues(
        rows=(1, 2, 4, 8, 16),
        warps=(1, 2, 4, 8, 16, 32),
        stages=(1, 4),
        programs=(2, 8),
        elements=(4, 64),
        chunks=((1024, 4), (2048, 8), (4096, 16), (4096, 32), (8192, 32)),
    ),
    "full": _KnobValues(
        rows=(1, 2, 4, 8, 16, 32),
        warps=(1, 2, 4, 8, 16, 32),
        stages=(1, 2, 3, 4),
        programs=(1, 2, 4, 8, 16),
        elements=(1, 128),
        chunks=tuple(product((512, 1024, 2048, 4096, 8192), (1, 2, 4, 8, 16, 32))),
    ),
}
# With fewer rows a fixed grid has a row or two per program, and gains nothing (measured for RMSNorm's forward).
_LEAST_LOOPED_ROWS = 512


class QuantizeConfig(Config):
    """A config of RMSNorm with a quantized result."""

    schedule: Annotated[
        str,
        "row, block_row (block_row rows a program), parts (several programs a row, each writes a part), persistent (a "
        "fixed grid strides over the rows) or split.",
    ]
    block_row: Annotated[int, "rows a program holds at once."] = 1
    num_warps: Annotated[int, "warps a program."] = 4
    num_stages: Annotated[int, "depth of the software pipeline of the row loop."] = 1
    programs_per_sm: Annotated[
        int,
        "size of the fixed grid, or of that of parts, programs a multiprocessor; 0 where the grid follows the rows.",
    ] = 0
    block_col: Annotated[int, "columns a chunk in split."] = 0


class TransposingConfig(QuantizeConfig):
    """A config of RMSNorm with a quantized result, and of the launch that transposes it."""

    transpose_row: Annotated[int, "rows of a tile of the launch that transposes."] = 64
    transpose_col: Annotated[int, "columns of that tile."] = 64
    transpose_warps: Annotated[int, "warps of its programs."] = 4


def _buffers(problem: Problem) -> tuple[Buffer, ...]:
    """In the order of a call: inputs, then outputs. Block scales are one-dimensional: they have no row stride."""
    dtype, scaling, amax = QuantizedDtype.of(problem).dtype, scaling_of(problem), Amax.of(problem)
    buffers = [problem.buffer("x", "rows,hidden", INPUT), problem.buffer("weight", "hidden", WEIGHT)]
    if Residual.of(problem) is not Residual.NONE:
        buffers += [problem.buffer("residual", "rows,hidden", INPUT), problem.buffer("sum", "rows,hidden", OUTPUT)]
    buffers.append(problem.buffer("q", "rows,hidden", OUTPUT, dtype))
    scale_format = ScaleFormat.of(problem)
    stored = "uint8" if scale_format.has_bytes else "float32"
    if scaling == "row" and scale_format is not ScaleFormat.UE8M0_PACKED:
        buffers.append(problem.buffer("scale", "rows", OUTPUT, stored))
    elif scaling in ("row", "block"):
        is_column_major = ScaleLayout.of(problem) is ScaleLayout.COLUMN_MAJOR
        rows = scale_format.padded_rows(problem.rows) if is_column_major else problem.rows
        blocks = scale_format.padded_blocks(blocks_of(problem.hidden) if scaling == "block" else 1)
        buffers.append(Buffer("scale", (rows * blocks,), stored, OUTPUT))
    else:
        buffers.append(Buffer("scale", (1,), "float32", WEIGHT if scaling == "static" else OUTPUT))
        if amax is not Amax.NONE:
            buffers.append(Buffer("amax", (1,), "float32", IN_OUT if amax is Amax.IN_PLACE else OUTPUT))
    if NormOutput.of(problem) is NormOutput.STORED:
        buffers.append(problem.buffer("y", "rows,hidden", OUTPUT))
    if RstdOutput.of(problem) is RstdOutput.STORED:
        buffers.append(problem.buffer("rstd", "rows", OUTPUT, "float32"))
    if problem.operator == operator_name(TRANSPOSE):
        buffers.append(problem.buffer("q_t", "hidden,rows", OUTPUT, dtype))
    return tuple(buffers)


def _space(name: str, problem: Problem, target: Target) -> list[Config]:
    space = _SPACES[name]
    least, most = space.elements
    block_col, threads = next_power_of_2(problem.hidden), target.warp_size
    tiles = [
        (block_row, num_warps)
        for block_row, num_warps in product(space.rows, space.warps)
        if least <= block_row * block_col / (num_warps * threads) <= most
    ]
    chosen: list[Config] = []
    for block_row, num_warps in tiles:
        schedule = "row" if block_row == 1 else "block_row"
        chosen.append(QuantizeConfig(schedule, block_row, num_warps))
        if problem.rows >= _LEAST_LOOPED_ROWS or name == "full":
            chosen += [
                QuantizeConfig("persistent", block_row, num_warps, num_stages, per_sm)
                for num_stages, per_sm in product(space.stages, space.programs)
            ]
    of_parts = parts(problem, target, space.warps, (1, 2), space.elements)
    chosen += [QuantizeConfig("parts", 1, one.num_warps, 1, one.programs_per_sm) for one in of_parts]
    chosen += [
        QuantizeConfig("split", 1, num_warps, block_col=columns)
        for columns, num_warps in space.chunks
        if problem.hidden > columns >= 4 * threads * num_warps
    ]
    return sorted({*chosen, _default(problem, target)})


def _default(problem: Problem, target: Target) -> Config:
    """One row per program with 8 warps; more if a thread would hold over `MAX_ELEMENTS_PER_THREAD` elements."""
    warps = 8
    while next_power_of_2(problem.hidden) > MAX_ELEMENTS_PER_THREAD * warps * target.warp_size:
        warps *= 2
    return QuantizeConfig("row", 1, warps)


def _transposing_space(name: str, problem: Problem, target: Target) -> list[Config]:
    """Each quantizing config with the default transposition; the default with each one.

    Only what the first launch leaves in the cache affects the second.
    """
    chosen = [TransposingConfig(*config) for config in _space(name, problem, target)]
    default = _default(problem, target)
    chosen += [TransposingConfig(*default, *config) for config in transpose_configs(name, target)]
    return sorted({*chosen})


def _transposing_default(problem: Problem, target: Target) -> Config:
    return TransposingConfig(*_default(problem, target))


def _register(scaling: str) -> OperatorSpec:
    is_computed = scaling != "static"
    return register(
        OperatorSpec(
            name=operator_name(scaling),
            modes=MODES[scaling],
            config=QuantizeConfig,
            dtypes=tuple(ITEMSIZE),
            max_hidden=MAX_HIDDEN,
            buffers=_buffers,
            space=_space,
            resolve=resolve,
            trial=partial(trial, resolve),
            default_config=_default,
            kernel_calls="normtune.kernels.rms_norm_quantize_fp8.kernels:calls",
            reference_module="normtune.kernels.rms_norm_quantize_fp8.reference",
            wide_buffers=("weight",),
            scalars={"eps": 1e-6, "offset": 0.25, **({"least_amax": 1e-10} if is_computed else {})},
            is_default=False,
            limiting=(QuantizedDtype.E4M3FNUZ, Residual.WIDE, Amax.NONE),
            reference_bytes=230,
        )
    )


SPECS = {scaling: _register(scaling) for scaling in SCALINGS}
SPECS[TRANSPOSE] = register(
    replace(
        SPECS["static"],
        name=operator_name(TRANSPOSE),
        config=TransposingConfig,
        space=_transposing_space,
        resolve=resolve_transposing,
        trial=None,
        default_config=_transposing_default,
        kernel_calls="normtune.kernels.rms_norm_quantize_fp8.kernels:transposing_calls",
    )
)
