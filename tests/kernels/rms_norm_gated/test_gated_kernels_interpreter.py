"""Numbers, masks, strides and groups of the gated kernels, run by Triton's interpreter."""

import random
from collections import namedtuple

import pytest
import torch
import triton
import triton.language as tl

from normtune.kernels.call import run
from normtune.kernels.operator import operator
from normtune.kernels.problem import MAX_ROWS
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.rms_norm_gated.kernels import row_offsets
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import assert_within, calls_of, nan_outputs, outputs_of, referenced
from normtune.tuner.plan.plan import candidates
from normtune.tuner.timing.gate import compare

pytestmark = [pytest.mark.interpreter, pytest.mark.usefixtures("counted_loops", "rounded_bfloat16")]

# Three multiprocessors, so that a fixed grid loops over few rows; an architecture without dependent launches.
TARGET = TARGETS["sm_80"]._replace(sms=3)
SHAPES = [(1, 1), (7, 64), (33, 100), (1, 77), (19, 1), (6, 1000)]
DTYPES = ("float32", "float16", "bfloat16")
MODES = ("", "gate_first", "no_gate")
KEYS = [
    *(("rms_norm_gated_forward", mode) for mode in MODES),
    ("rms_norm_gated_forward", "no_rstd"),
    *(("rms_norm_gated_forward", f"{mode}+hugging_face".lstrip("+")) for mode in MODES),
    *(("rms_norm_gated_backward", mode) for mode in MODES),
    ("rms_norm_gated_backward", "no_dweight+gate_first"),
]


def launches_of(spec, problem):
    """One legal config of each schedule of the full space, and of its rows in held chunks, with its launch."""
    kept, _ = candidates(spec, spec.space("full", problem, TARGET), problem, TARGET)
    random.Random(problem.hidden).shuffle(kept)
    return {(config.schedule, launch.held): (config, launch) for config, launch in kept}.values()


@pytest.mark.parametrize(
    ("key", "shape", "dtype"),
    [
        (key, shape, DTYPES[(number + other) % 3])  # each mode in each dtype, and each dtype at each shape
        for number, key in enumerate(KEYS)
        for other, shape in enumerate(SHAPES)
    ],
    ids=str,
)
@pytest.mark.slow
def test_outputs_are_within_rounding(key, shape, dtype):
    rows, hidden = shape
    spec = operator(key[0])
    problem = spec.problem(rows, hidden, dtype, key[1])
    inputs, expected = referenced(spec, problem, rows)
    for config, launch in launches_of(spec, problem):
        assert_within(outputs_of(spec, problem, launch, inputs), expected, f"{config}")


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_schedule_reads_groups_and_rows_of_two_strides(direction, mode):
    """The reference of each group is that of its rows alone."""
    outer, inner, groups, hidden = 3, 2, 5, 36
    spec = operator(f"rms_norm_gated_{direction}")
    problem = spec.problem(outer * inner * groups, hidden, "float32", mode)
    of_group = problem._replace(rows=outer * inner)
    generator = torch.Generator().manual_seed(1)
    inputs = [spec.references().inputs(of_group, generator, torch.device("cpu"), True) for _ in range(groups)]
    expected = [spec.references().reference(of_group, one, 1e-6, 0.25) for one in inputs]
    tensors = {}
    for name in inputs[0]:
        stacked = torch.stack([one[name] for one in inputs], dim=-2 if name != "rstd" else -1)
        if inputs[0][name].dim() == 2:
            wide = torch.full((outer, inner + 1, groups + 2, hidden + 4), float("nan"))
            wide[:, :inner, :groups, :hidden] = stacked.view(outer, inner, groups, hidden)
            stacked = wide[:, :inner, :groups, :hidden]
        tensors[name] = stacked if name != "rstd" else stacked.contiguous().view(-1)
    for config, launch in launches_of(spec, problem):
        outputs = nan_outputs(spec, problem)
        if "dweight" in outputs:
            outputs["dweight"] = torch.full((groups, hidden), float("nan"))
        run(calls_of(spec, problem, launch._replace(alignment=4), tensors | outputs))
        for group in range(groups):
            found = {
                name: tensor[group]
                if name == "dweight"
                else tensor.view(outer * inner, groups, -1)[:, group].squeeze(-1)
                for name, tensor in outputs.items()
            }
            found = {name: tensor.reshape(expected[group][name].value.shape) for name, tensor in found.items()}
            found = {name: tensor.contiguous() for name, tensor in found.items()}
            assert_within(found, expected[group], f"{config}, group {group}")


@pytest.mark.one_in(7)
@pytest.mark.parametrize("mode", [*MODES, "no_rstd", "hugging_face", "gate_first+hugging_face"])
@pytest.mark.parametrize(
    ("hidden", "block_row", "chunks"),
    [(48, 4, 3), (75, 1, 5), (36, 2, 3), (800, 2, 7), (17, 8, 2), (33, 8, 3)],
)
def test_held_chunks_give_what_a_whole_tile_gives(hidden, block_row, chunks, mode):
    """Up to the order of the sum; a last block of rows and a last chunk of columns are cut."""
    spec = operator("rms_norm_gated_forward")
    config = RMSNormConfig("block_row" if block_row > 1 else "row", block_row, 1)
    for rows in (1, 5, 2 * block_row + 1):
        problem = spec.problem(rows, hidden, "float16", mode)
        inputs, expected = referenced(spec, problem, rows)
        found = []
        for least in (0, 16):
            launch = spec.launch(config._replace(block_col=least), problem, TARGET)
            assert launch.chunks == (chunks if least else 0)
            found.append(outputs_of(spec, problem, launch, inputs))
        whole, held = found
        compare(held, expected)
        assert (whole["y"] != held["y"]).float().mean() <= 1e-2  # a last bit of the sum decides few roundings
        if "rstd" in whole:
            torch.testing.assert_close(held["rstd"], whole["rstd"], rtol=1e-6, atol=0)


_Place = namedtuple("_Place", "inner i_group")


@triton.jit
def _offsets_kernel(out_ptr, first, inner, s_outer, s_inner, s_group):
    o_row = tl.full([4], 4, tl.int64) * first + tl.arange(0, 4)
    args = _Place(inner, tl.program_id(0))
    tl.store(out_ptr + tl.arange(0, 4), row_offsets(args, o_row, (s_outer, s_inner, s_group), 1))


def test_offsets_of_the_last_rows_are_beyond_32_bits():
    out = torch.zeros(4, dtype=torch.int64)
    first, inner, s_outer, s_inner = MAX_ROWS // 4 - 1, 24, 24 * 65536, 65536
    _offsets_kernel[(1,)](out, first, inner, s_outer, s_inner, 128)
    rows = range(4 * first, 4 * first + 4)
    assert out.tolist() == [row // inner * s_outer + row % inner * s_inner for row in rows]
    assert out[-1] > 2**45
