"""The Gaussian process of `plane`: its fit, and its draws against the formulas of an exact one."""

import math

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from normtune.tuner.search.plane import gp
from normtune.tuner.search.plane.features import at_values
from normtune.tuner.search.plane.gp import JITTER, LEVEL, SLOW, Kernel, Points, Surrogate, bent, near, solved

SIDE = np.linspace(0, 1, 6)
GRID = np.stack(np.meshgrid(range(6), range(6), range(3), indexing="ij"), axis=-1).reshape(-1, 3)
# One size with two values, two numbers of programs, and three knobs. Each config of the grid is there twice.
DISTANCES = [np.array([[0.0, 0.5], [0.5, 0.0]])] * 2 + [abs(SIDE[:, None] - SIDE)] * 2 + [1 - np.eye(3)]
SIZES, KNOBS = np.array([[0], [1]]), np.tile(GRID, (2, 1))
KERNEL = Kernel(DISTANCES, at_values(SIZES, [2]), at_values(KNOBS, [6, 6, 3]))


def grids(shape, numbers):
    """The rank of the number of programs of configs at a shape."""
    return (numbers + shape) % 2


def points(shapes, numbers):
    return Points(np.asarray(shapes), grids(np.asarray(shapes), numbers), numbers)


def codes_of(some):
    """The values of points on all axes."""
    return np.column_stack([SIZES[some.shapes], some.grids, KNOBS[some.configs]])


def expected(process, shape, numbers):
    """The posterior of configs at a shape, from all that the process has learned."""
    return process.posterior(shape, grids(shape, numbers), numbers)


def truth(shape, numbers):
    """A sum of two bowls, whose centres move with the shape, and an effect of each config; none is slow."""
    first, second, third = (GRID[numbers, axis] for axis in range(3))
    own = np.random.default_rng(1).normal(0, 0.06, len(GRID))[numbers]
    return 0.02 * (first - 2 - shape) ** 2 + 0.015 * (second - 3) ** 2 + 0.05 * (third == 1) + own + 5 * shape


def learned(count, seed=0):
    process, random = Surrogate(KERNEL), np.random.default_rng(seed)
    for shape in (0, 1):
        numbers = random.permutation(len(GRID))[:count]
        for part in np.array_split(numbers, 3):
            process.add(shape, grids(shape, part), part, truth(shape, part))
            expected(process, shape, part)  # fits the parameters
    return process


def times(process, shape):
    """The configs with a time at a shape."""
    return set(process.points.configs[process.points.shapes == shape].tolist())


def test_the_fit_follows_the_gradient_of_the_density(monkeypatch):
    captured = []
    monkeypatch.setattr(gp, "minimize", lambda objective, start, **_: captured.append(objective) or _Result(start))
    random = np.random.default_rng(2)
    numbers = random.permutation(len(GRID))[:25]
    # Each config is there twice, at two shapes.
    at = points(numbers % 2, numbers)
    twice = Points(*(np.concatenate(pair) for pair in zip(at, points(1 - at.shapes, numbers), strict=True)))
    KERNEL.fitted(twice, np.tile(truth(0, numbers), 2))
    for _ in range(3):
        at = KERNEL.prior + random.normal(0, 0.4, len(KERNEL.prior))
        value, gradient = captured[0](at)
        assert math.isfinite(value)
        assert np.allclose(gradient, approx_fprime(at, lambda v: captured[0](v)[0], 1e-6), rtol=1e-3, atol=1e-3)


class _Result:
    def __init__(self, x):
        self.x = x


def test_the_posterior_is_that_of_an_exact_process():
    process = learned(30)
    known, targets = process.points, process.targets
    weights, lengths, (of_process, of_config, of_error) = np.split(np.exp(process.kernel.logs), [5, 10])
    materns = [np.sqrt(3) * distance / length for distance, length in zip(DISTANCES, lengths, strict=True)]
    tables = [
        (1 + weight * (1 + scaled) * np.exp(-scaled)) / (1 + weight)
        for weight, scaled in zip(weights, materns, strict=True)
    ]
    numbers = np.array([number for number in range(len(GRID)) if number not in known.configs][:20])
    elsewhere = sorted(times(process, 1) - times(process, 0))[:5]
    asked = points(np.zeros(len(numbers) + 5, np.int64), np.concatenate([numbers, np.array(elsewhere, np.int64)]))

    def smooth(left, right):
        """As the formula says, from the codes of all points."""
        codes = zip(tables, codes_of(left).T, codes_of(right).T, strict=True)
        factors = math.prod(table[own[:, None], other] for table, own, other in codes)
        same = (left.configs[:, None] == right.configs, left.shapes[:, None] == right.shapes)
        return of_process**2 * factors + of_config**2 * same[0] + LEVEL**2 * same[1]

    covariance = smooth(known, known) + (of_error**2 + JITTER) * np.eye(len(targets))
    across = smooth(asked, known)
    mean = targets.mean() + across @ np.linalg.solve(covariance, targets - targets.mean())
    own = (of_error**2 + JITTER) * np.eye(len(mean))
    left = smooth(asked, asked) + own - across @ np.linalg.solve(covariance, across.T)
    found = expected(process, 0, asked.configs)
    assert np.allclose(found.mean, mean, atol=1e-6)
    assert np.allclose(found.deviation, np.sqrt(np.diag(left)), rtol=1e-4)
    drawn = found.draws(np.arange(len(mean)), 20_000, np.random.default_rng(3))
    assert np.allclose(drawn.mean(axis=0), mean, atol=0.01)
    assert np.allclose(np.cov(drawn.T), left, atol=0.03 * np.diag(left).max())


def test_what_was_not_measured_is_predicted_and_errors_are_as_large_as_said():
    process = learned(45)
    errors, likenesses = [], []
    for shape in (0, 1):
        numbers = np.array(sorted(set(range(len(GRID))) - times(process, shape)))
        found = expected(process, shape, numbers)
        targets = truth(shape, numbers) - process.logs[process.points.shapes == shape].min()
        likenesses.append(np.corrcoef(found.mean, targets)[0, 1])
        errors.append(((found.mean - targets) / found.deviation)[targets < SLOW])
    assert min(likenesses) > 0.8
    inside = np.abs(np.concatenate(errors)) < 1.28
    assert 0.65 < inside.mean() < 0.95


def test_a_config_that_is_fast_at_one_shape_is_expected_to_be_fast_at_another():
    process = learned(60)
    known = np.array(sorted(times(process, 0) - times(process, 1)))
    own = np.random.default_rng(1).normal(0, 0.06, len(GRID))
    with_effect = expected(process, 1, known).mean
    without = expected(process, 1, known + len(GRID)).mean  # the same knobs, of configs without a time
    assert np.corrcoef(with_effect - without, own[known])[0, 1] > 0.7


def test_of_times_that_say_equally_much_the_first_are_used(monkeypatch):
    process = learned(60)
    targets = np.random.default_rng(2).integers(0, 3, len(process)).astype(float)  # many are equal
    said = process.kernel.likeness[:, 1][process.points.shapes] - gp.BY_SLOWNESS * targets
    order = np.argsort(np.where(process.points.shapes == 1, 0.0, -said), kind="stable")
    for most in (1, 50, 63, 90, len(process) - 1):
        monkeypatch.setattr(gp, "MOST_POINTS", most)
        assert near(process.points, 1, targets, process.kernel).tolist() == sorted(order[:most].tolist())


def test_from_its_own_and_the_fastest_times_it_predicts_nearly_as_well(monkeypatch):
    process, numbers = learned(60), np.arange(len(GRID))
    exact = expected(process, 0, numbers)
    monkeypatch.setattr(gp, "MOST_POINTS", 90)
    few = expected(process, 0, numbers)
    targets, shapes = process.targets, process.points.shapes
    used = near(process.points, 0, targets, process.kernel)
    assert len(used) == 90 and (shapes[used] == 0).sum() == 60
    others = targets[shapes == 1]
    assert targets[used[shapes[used] == 1]].max() <= np.sort(others)[29]
    assert np.corrcoef(exact.mean, few.mean)[0, 1] > 0.97
    assert few.deviation.mean() > exact.deviation.mean()


def test_a_slow_time_counts_as_less_slow_and_keeps_its_rank():
    logs = np.array([0.0, 0.2, SLOW, 2 * SLOW, 10.0])
    found = bent(logs)
    assert np.array_equal(found[:3], logs[:3]) and (np.diff(found) > 0).all() and found[-1] < 0.25 * logs[-1]


@pytest.mark.parametrize("seed", range(3))
def test_the_same_times_give_the_same_draws(seed):
    numbers = np.arange(20)
    one, other = (expected(learned(20, seed), 0, numbers).draws(numbers, 5, np.random.default_rng(0)) for _ in range(2))
    assert np.array_equal(one, other)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 100])
def test_a_triangular_system_is_solved_in_blocks_of_rows(count):
    random = np.random.default_rng(count)
    root = random.normal(size=(count, count))
    lower, right = np.linalg.cholesky(root @ root.T + np.eye(count)), random.normal(size=(count, 5))
    assert np.allclose(solved(lower, right), np.linalg.solve(lower, right), rtol=1e-7, atol=1e-10)
