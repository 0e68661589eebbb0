"""The part of a timing matrix at some of its problems."""

from collections.abc import Sequence
from dataclasses import replace

from normtune.heuristics.regret.matrix import TimingMatrix


def of_problems(matrix: TimingMatrix, places: Sequence[int]) -> TimingMatrix:
    """The matrix of the problems with these indices only, with their weights."""
    indices = list(places)
    rounds = matrix.rounds
    return replace(
        matrix,
        problems=tuple(matrix.problems[index] for index in indices),
        regret=matrix.regret[indices],
        usable=matrix.usable[indices],
        rounds=rounds and rounds._replace(labels=rounds.labels[indices], places=rounds.places[indices]),
        weights=matrix.weight[indices],
        excluded=None if matrix.excluded is None else matrix.excluded[indices],
        untimed=None if matrix.untimed is None else matrix.untimed[indices],
        luck=None if matrix.luck is None else matrix.luck[indices],
        times=None,
    )
