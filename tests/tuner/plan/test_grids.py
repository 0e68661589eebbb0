"""Grids: sizes, limits, and the user's replacements."""

import pytest

from normtune.errors import UsageError
from normtune.tuner.plan.grids import MAX_ELEMENTS, shapes, shapes_of


def test_sizes_of_the_grids():
    assert 160 <= len(shapes("default")) <= 175
    recording = shapes("recording")
    assert {rows for rows, _ in recording} == {2**power for power in range(19)} | {192, 320, 576, 768, 1536, 3072}
    for hidden in (
        *(64, 80, 96, 160, 384, 640, 896, 1152, 1536, 1792, 2304, 2560, 3584, 5120, 5632, 6144, 7168, 8704, 12288),
        *(12800, 15872, 18432, 20480, 22016, 25600, 28672, 29568, 32768),
    ):
        assert (1, hidden) in recording
    assert max(rows * hidden for rows, hidden in recording) == MAX_ELEMENTS


def test_a_replay_of_the_recording_has_every_default():
    assert set(shapes("default")) <= set(shapes("recording"))


def test_the_default_grid_is_an_even_sixth_of_the_recording():
    whole, sixth = shapes("recording"), shapes("default")
    assert abs(6 * len(sixth) - len(whole)) <= 8
    rows, hidden = (
        [sum(shape[axis] == size for shape in sixth) for size in sorted({*sizes})]
        for axis, sizes in enumerate(zip(*whole, strict=True))
    )
    assert min(rows) >= 2 and max(rows) <= 8  # each of the rows
    assert hidden[1::2] == [0] * 22 and min(hidden[::2]) >= 4 and max(hidden) <= 9  # every second size
    assert (1, 64) in sixth


def test_own_sizes():
    assert shapes("default", [3, 1, 3], [96]) == [(1, 96), (3, 96)]
    assert shapes("default", [5], None) == [(5, hidden) for _, hidden in shapes("default", [1], None)]
    rows, beside = zip(*shapes("default", [5], None), strict=True)
    counts, _ = zip(*shapes("default", None, [96]), strict=True)
    assert len(beside) == 16 and len(counts) == 13 and {*rows} == {5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("huge",), "unknown grid 'huge': expected one of default, recording"),
        (("default", [0], None), "rows has 0: expected positive integers"),
        (("default", None, [-64]), "hidden has -64"),
        (("default", [1.5], None), "rows has 1.5"),
        (("default", [], None), "the grid is empty"),
        (("default", [2**20], [2**12]), "the grid is empty"),
    ],
)
def test_bad_sizes_are_refused_by_name(arguments, message):
    with pytest.raises(UsageError, match=message):
        shapes(*arguments)


def test_shapes_of_a_file_are_taken_once_and_too_large_ones_apart(tmp_path):
    file = tmp_path / "model.csv"
    file.write_text("layer,rows,hidden\nq,4096,128\nx,65536,8192\nk,4096,128\nffn,1,7168\nall,65536,4096\n")
    assert shapes_of(file) == [("", "", [(4096, 128), (65536, 4096), (1, 7168)], [(65536, 8192)])]
    file.write_text("rows,hidden\n65536,8192\n")
    with pytest.raises(UsageError, match=r"every shape of .*model\.csv is too large, the first is 65536 x 8192"):
        shapes_of(file)
    file.write_text("rows,hidden\n1,64\n1,0\n")
    with pytest.raises(UsageError, match=r"model\.csv, line 3: hidden is '0'"):
        shapes_of(file)
