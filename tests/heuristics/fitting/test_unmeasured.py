"""Choices of tables and rules on the shapes of Liger-Kernel #1238, against its published times."""

import json

import pytest

from normtune.benchmarks import unmeasured

DATA = json.loads(unmeasured.DATA.read_text())


def test_the_published_times_are_all_there() -> None:
    assert len(DATA["cells"]) == 2 * 4 * 5
    found = unmeasured.cells(DATA)
    assert len(found) == 2 * 4 * 4 and {hidden for _, _, hidden, _, _ in found} == {64, 128, 256, 512}
    # 4096 x 64: backward 0.069 to 0.021 ms, both 0.075 to 0.024 ms.
    assert (unmeasured.BACKWARD, 4096, 64, 0.069, 0.021) in found
    forward = next(cell for cell in found if cell[:3] == (unmeasured.FORWARD, 4096, 64))
    assert forward[3:] == pytest.approx((0.006, 0.003))


def test_the_portable_table_takes_blocks_of_rows_where_they_were_faster() -> None:
    found = {(who, name): (count, right, mean) for who, name, count, right, mean, _ in unmeasured.compare(DATA)}
    assert found["portable table", unmeasured.BACKWARD] == (16, 16, 0)
    # Liger's switch at 32768 rows and 256 columns misses all but three of the shapes.
    assert found["Liger's rule", unmeasured.BACKWARD][:2] == (16, 3)
    assert found["portable table", unmeasured.FORWARD][2] < found["Liger's rule", unmeasured.FORWARD][2]
