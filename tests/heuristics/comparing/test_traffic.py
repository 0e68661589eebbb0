"""Parts of the plane by bytes moved: the edges of each, and their names."""

import pytest

from normtune.heuristics.comparing.difference import part_name, part_of
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem


@pytest.mark.parametrize(
    ("rows", "hidden", "expected"),
    [
        # x and y in bfloat16, weight, and rstd in float32: 4 rows hidden + 2 hidden + 4 rows bytes.
        (255, 1024, 0),  # 1,047,548 of 1,048,576
        (256, 1024, 1),
        (30_659, 512, 1),  # 62,913,292 of 62,914,560
        (30_660, 512, 2),
    ],
)
def test_edges(rows: int, hidden: int, expected: int) -> None:
    problem = Problem.of("rms_norm_forward", rows, hidden, "bfloat16")
    assert part_of(operator("rms_norm_forward"), problem, 60 << 20) == expected


def test_names_have_the_size_of_the_cache() -> None:
    assert [part_name(which, 60 << 20) for which in (0, 1, 2)] == [
        "to 1 MB moved",
        "1 to 60 MB",
        "over 60 MB, the L2",
    ]
