"""Rows of several programs, each of which reads all of it: the bits of one program a row, also in place."""

import pytest
import torch

import normtune
from normtune.kernels.call import run
from normtune.kernels.operator import operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.target import TARGETS
from normtune.tests.kernels.launching import calls_of, nan_outputs

pytestmark = pytest.mark.interpreter

NAMES = ("rms_norm_forward", "fused_add_rms_norm_forward", "rms_norm_gated_forward")
TARGET = TARGETS["sm_80"]


def outputs(spec, schedule, problem, inputs, block_col=0):
    """All outputs under a schedule, and the grid."""
    launch = spec.launch(RMSNormConfig(schedule, 1, 4, 1, 1, block_col=block_col), problem, TARGET)
    written = nan_outputs(spec, problem)
    (call,) = calls_of(spec, problem, launch, inputs | written, offset=0.5)
    run([call])
    return written, call.grid


@pytest.mark.slow
@pytest.mark.parametrize(("hidden", "programs"), [(1024, (2, 2, 2)), (1500, (3, 3, 3)), (4099, (9, 9, 3))])
@pytest.mark.parametrize("key", [(name, variant) for name in NAMES for variant in operator(name).variants])
def test_parts_have_the_bits_of_whole_rows(key, hidden, programs):
    spec = operator(key[0])
    for (rows, dtype), count in zip(((1, "float32"), (3, "float16"), (20, "float16")), programs, strict=True):
        problem = spec.problem(rows, hidden, dtype, key[1])
        inputs = spec.references().inputs(problem, torch.Generator().manual_seed(hidden), torch.device("cpu"), True)
        (whole, _), (parts, grid) = (outputs(spec, name, problem, inputs) for name in ("row", "parts"))
        assert grid == (rows, count)
        for name, tensor in whole.items():
            torch.testing.assert_close(parts[name], tensor, rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "block_col", "programs"),
    [
        (1024, 1024, (2, 2, 2)),  # half of the one chunk each
        (4099, 1024, (5, 5, 2)),  # a chunk each, the last of three columns; three, and two
        (5120, 1024, (10, 10, 2)),  # half of a chunk each; two, of which one does not exist
        (6144, 2048, (12, 12, 2)),  # a quarter of a chunk each; two
    ],
)
@pytest.mark.parametrize("key", [(name, variant) for name in NAMES[:2] for variant in operator(name).variants])
def test_parts_in_chunks_have_the_bits_of_split(key, hidden, block_col, programs):
    spec = operator(key[0])
    for (rows, dtype), count in zip(((1, "float32"), (3, "float16"), (40, "float16")), programs, strict=True):
        problem = spec.problem(rows, hidden, dtype, key[1])
        inputs = spec.references().inputs(problem, torch.Generator().manual_seed(hidden), torch.device("cpu"), True)
        (whole, _), (parts, grid) = (outputs(spec, name, problem, inputs, block_col) for name in ("split", "parts"))
        assert grid == (rows, count)
        for name, tensor in whole.items():
            torch.testing.assert_close(parts[name], tensor, rtol=0, atol=0, equal_nan=True)


def test_parts_in_chunks_are_split_launches_but_for_the_part():
    spec = operator("rms_norm_forward")
    for rows in (1, 54, 1 << 20):
        split, parts = (
            spec.launch(RMSNormConfig(name, 1, 8, 1, 1, block_col=4096), spec.problem(rows, 20480, "float32"), TARGET)
            for name in ("split", "parts")
        )
        assert parts.in_place == split and parts.row_sum == split.row_sum
        assert (parts.slice_col > 0) == (rows < 1 << 20)


def test_as_many_programs_as_fill_the_gpu_share_a_row():
    spec = operator("rms_norm_forward")
    for rows, per_sm, programs in (
        (1, 1, 16),
        (8, 1, 8),
        (8, 2, 16),
        (33, 1, 2),
        (64, 2, 2),
        (66, 1, 1),
        (1 << 20, 4, 1),
    ):
        launch = spec.launch(RMSNormConfig("parts", 1, 4, 1, per_sm), spec.problem(rows, 16384, "bfloat16"), TARGET)
        assert launch.slice_col == (16384 // programs if programs > 1 else 0), rows
        assert launch.grid == rows


@pytest.mark.parametrize("norm_before_gate", [True, False])
def test_groups_of_rows_have_several_programs(write_table, norm_before_gate):
    x, z = (torch.randn(3, 2048, generator=torch.Generator().manual_seed(seed)) for seed in range(2))
    weight = torch.randn(2048, generator=torch.Generator().manual_seed(2))
    options = {"group_size": 1024, "norm_before_gate": norm_before_gate}
    found = []
    try:
        for table in (None, write_table(False)):
            normtune.use_table(table)
            found.append(normtune.rms_norm_gated(x, weight, z, **options))
    finally:
        normtune.use_table()
    torch.testing.assert_close(*found)


def test_a_call_in_place_has_one_program_a_row(write_table):
    x, residual = (torch.randn(4, 1500, generator=torch.Generator().manual_seed(seed)) for seed in range(2))
    weight = torch.randn(1500, generator=torch.Generator().manual_seed(2))
    try:
        normtune.use_table(write_table(False))
        for _ in range(2):  # new, and kept
            wanted = normtune.fused_add_rms_norm(x, residual, weight)
            found = normtune.fused_add_rms_norm(x.clone(), residual.clone(), weight, in_place=True)
            for one, other in zip(found, wanted, strict=True):
                assert torch.equal(one, other)
    finally:
        normtune.use_table()
