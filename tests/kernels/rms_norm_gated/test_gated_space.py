"""Bounds of the gated spaces, what the compiler spills on both sides of them, and launches of held chunks."""

import pytest

from normtune.kernels.operator import IllegalConfigError, operator
from normtune.kernels.rms_norm.operator import RMSNormConfig
from normtune.kernels.rms_norm_gated.launch import held_chunk
from normtune.kernels.target import TARGETS
from normtune.kernels.tiles.launch import next_power_of_2
from normtune.tuner.compiling.pool import compile_all
from normtune.tuner.plan.binaries import Job
from normtune.tuner.plan.plan import candidates

FORWARD, BACKWARD = operator("rms_norm_gated_forward"), operator("rms_norm_gated_backward")
H200 = TARGETS["sm_90"]


def elements_of_a_row(launch, target):
    """Per thread, of a row in chunks."""
    return launch.chunks * launch.block_col // (launch.num_warps * target.warp_size)


@pytest.mark.parametrize("hidden", [2560, 4096, 5120, 8192, 16384, 32768, 65536])
def test_a_thread_holds_at_most_64_elements_of_a_row_in_chunks_and_a_program_a_tile_of_8192(hidden):
    for target in TARGETS.values():
        problem = BACKWARD.problem(4096, hidden, "bfloat16")
        kept, _ = candidates(BACKWARD, BACKWARD.space("default", problem, target), problem, target)
        split = [launch for config, launch in kept if config.schedule == "split"]
        assert split
        assert all(launch.block_row * launch.block_col <= 8192 for _, launch in kept if launch not in split)
        assert all(elements_of_a_row(launch, target) <= 64 for launch in split), target.name


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_is_left_out_stays_legal_and_in_the_full_space(dtype):
    target, problem = TARGETS["sm_90"], BACKWARD.problem(4096, 4096, dtype)
    left_out = RMSNormConfig("split", 1, 1, 1, 1, "dependent", 2048)
    assert elements_of_a_row(BACKWARD.launch(left_out, problem, target), target) == 128
    assert left_out in BACKWARD.space("full", problem, target)
    assert left_out not in BACKWARD.space("default", problem, target)


@pytest.mark.long
@pytest.mark.slow
def test_threads_spill_where_they_hold_more():
    target = TARGETS["sm_90"]
    jobs = {}
    for hidden in (2048, 4096):  # 64 and 128 elements of a row a thread
        problem = BACKWARD.problem(4096, hidden, "bfloat16")
        config = RMSNormConfig("split", 1, 1, 1, 1, "dependent", 1024)
        jobs[hidden] = Job(problem, BACKWARD.launch(config, problem, target))
    spilled = {
        compiled.job.problem.hidden: compiled.resources[0].spilled_bytes
        for compiled in compile_all(list(jobs.values()), "sm_90", workers=1, keep_assembly=True)
    }
    assert spilled[2048] <= 160 and spilled[4096] >= 800, spilled


def held_of(name, hidden, target=H200):
    """The configs of a space that hold rows in chunks, with their launches."""
    problem = FORWARD.problem(4096, hidden, "bfloat16")
    configs = FORWARD.space(name, problem, target)
    return {config: FORWARD.launch(config, problem, target) for config in configs if is_held(config)}


def is_held(config):
    return config.block_col > 0 and config.schedule != "split"


@pytest.mark.parametrize(
    ("hidden", "chunk"),
    [
        *((96, 32), (192, 64), (384, 128), (768, 256), (1536, 512), (2880, 1024), (3072, 1024), (5376, 512)),
        *((160, 32), (800, 128), (7168, 1024), (80, 16), (6144, 2048), (12288, 4096)),
        *((1, 0), (24, 0), (128, 0), (240, 0), (1000, 0), (8192, 0), (65535, 0)),
    ],
)
def test_rows_that_leave_a_tile_part_empty_are_held_in_chunks_too(hidden, chunk):
    for name, most in (("default", 30), ("full", 60)):
        held = held_of(name, hidden)
        assert {launch.block_col for launch in held.values()} == ({chunk} if chunk else set()) and len(held) <= most
        for launch in held.values():
            columns = launch.chunks * launch.block_col
            assert launch.held and hidden <= columns <= next_power_of_2(hidden) * 7 / 8
            assert launch.column_mask == (columns != hidden)
            assert launch.block_row * columns <= min(16384, 64 * 32 * launch.num_warps)


@pytest.mark.parametrize("least", [1, 4, 16])
def test_a_chunk_leaves_an_eighth_empty_at_most_unless_it_is_the_least(least):
    before = 0
    for hidden in [*range(1, 600), *range(600, 65536, 97)]:
        chunk = held_chunk(hidden, least)
        columns = -(-hidden // chunk) * chunk
        assert chunk >= min(least, next_power_of_2(hidden)) and columns >= before  # legality never returns
        assert 8 * columns <= 9 * hidden or chunk < 2 * least
        assert 8 * (-(-hidden // (2 * chunk)) * 2 * chunk) > 9 * hidden or chunk == next_power_of_2(hidden)
        before = columns


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_gpu_has_held_chunks_of_its_warps(target):
    held = held_of("default", 192, target)
    assert held
    for launch in held.values():
        assert launch.block_row * launch.block_col >= 2 * launch.num_warps * target.warp_size


def test_a_row_that_a_chunk_holds_is_a_whole_tile():
    for config in (RMSNormConfig("block_row", 8, 2, block_col=16), RMSNormConfig("row", 1, 2, block_col=16)):
        for hidden in (1, 16, 62, 64, 1000, 1024):
            problem = FORWARD.problem(4096, hidden, "bfloat16")
            whole = FORWARD.launch(config._replace(block_col=0), problem, H200)
            assert FORWARD.launch(config, problem, H200) == whole and not whole.held
        problem = FORWARD.problem(4096, 65, "bfloat16")
        assert FORWARD.launch(config, problem, H200).chunks == 5


def test_a_backward_in_held_chunks_streams_all_of_them():
    config = RMSNormConfig("persistent", 4, 4, 3, 2, "dependent", 16)
    launch = BACKWARD.launch(config, BACKWARD.problem(4096, 768, "bfloat16"), H200)
    assert (launch.chunks, launch.block_col, launch.block_row, launch.held) == (3, 256, 4, True)
    # Two more stages of dy, x and z, 768 columns in bfloat16 a row: 9 KB, of which 32 rows exceed 227 KB.
    wide = BACKWARD.launch(config._replace(block_row=32, num_warps=16), BACKWARD.problem(4096, 768, "bfloat16"), H200)
    assert wide.block_row == 16
    with pytest.raises(IllegalConfigError, match="bytes of pipeline buffers exceed"):
        BACKWARD.launch(config._replace(block_row=1, num_warps=32), BACKWARD.problem(4096, 24576, "bfloat16"), H200)


def test_held_chunks_work_on_a_row_alike_at_all_numbers_of_rows():
    config = RMSNormConfig("block_row", 8, 1, block_col=64)
    launches = [FORWARD.launch(config, FORWARD.problem(rows, 192, "bfloat16"), H200) for rows in (1, 7, 8, 1 << 30)]
    assert len({launch.row_sum for launch in launches}) == 1
    assert [launch.grid for launch in launches] == [1, 1, 1, 1 << 27]


@pytest.mark.parametrize(
    ("config", "hidden", "message"),
    [
        (RMSNormConfig("row", 1, 1, block_col=16), 3072, "32 elements a thread exceed 21"),
        (RMSNormConfig("row", 1, 64, block_col=1024), 3072, "2048 threads exceed 1024"),
    ],
)
def test_chunks_that_cannot_be_held_are_illegal(config, hidden, message):
    with pytest.raises(IllegalConfigError, match=message):
        FORWARD.launch(config, FORWARD.problem(4096, hidden, "bfloat16"), H200)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("block_col", [1, 16, 64, 512, 4096])
@pytest.mark.parametrize(("block_row", "warps"), [(1, 1), (4, 1), (16, 2), (32, 16)])
@pytest.mark.parametrize("stages", [0, 1, 4])
def test_what_cannot_be_held_stays_illegal_as_rows_grow_longer(block_row, warps, block_col, stages):
    """`stages` of the backward; 0 stands for the forward, which has no loop."""
    spec, config = FORWARD, RMSNormConfig("block_row", block_row, warps, block_col=block_col)
    if stages:
        spec, config = BACKWARD, RMSNormConfig("persistent", block_row, warps, stages, 2, "reduce", block_col)
    legal = []
    for hidden in [*range(1, 200), *range(200, 65536, 97)]:
        try:
            launch = spec.launch(config, spec.problem(64, hidden, "float32"), H200)
        except IllegalConfigError:
            legal.append(False)
            continue
        legal.append(True)
        columns = max(1, launch.chunks) * launch.block_col
        assert hidden <= columns and launch.block_row * columns <= 64 * 32 * warps
    assert legal == sorted(legal, reverse=True) and legal[0] and not legal[-1]
