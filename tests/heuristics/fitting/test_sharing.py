"""Number of leaves of a function of its own, if its data are fewer than those of the function it could share."""

from types import SimpleNamespace

import pytest

from normtune.heuristics.fitting.sharing import least_legal, leaves_of_its_own


def of(problems: int) -> SimpleNamespace:
    return SimpleNamespace(problems=tuple((rows, 64) for rows in range(1, problems + 1)))


def donor(leaves: int, problems: int) -> SimpleNamespace:
    return SimpleNamespace(figures=SimpleNamespace(leaves=leaves, loss=SimpleNamespace(problems=problems)))


@pytest.mark.parametrize(
    ("problems", "leaves", "lent", "allowed"),
    [
        (418, 32, 418, 32),  # measured as widely: as many
        (500, 32, 418, 32),  # never more
        (62, 32, 418, 6),  # one for ten problems
        (330, 32, 418, 32),  # ten problems each are there
        (12, 6, 12, 6),  # a small grid measured as widely
        (6, 6, 12, 3),  # as many problems each as the donor's, where that is more
        (2, 6, 40, 1),
    ],
)
def test_leaves_for_as_many_problems_each_or_for_ten(problems: int, leaves: int, lent: int, allowed: int) -> None:
    assert leaves_of_its_own(of(problems), donor(leaves, lent)) == allowed


def test_more_leaves_only_where_fewer_are_not_legal() -> None:
    optima = SimpleNamespace(least=lambda leaves: None if leaves < 4 else 0)
    assert [least_legal(optima, count, 6) for count in (1, 4, 5)] == [4, 4, 5]
    assert least_legal(optima, 1, 3) is None
