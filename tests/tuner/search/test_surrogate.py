"""The Gaussian process of `plane`: its fit, and its draws against the formulas of an exact one."""

import math

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from normtune.tuner.search import surrogate
from normtune.tuner.search.kernel import JITTER, LEVEL, Kernel
from normtune.tuner.search.surrogate import SLOW, Surrogate

SIDE = np.linspace(0, 1, 6)
DISTANCES = [np.array([[0.0, 0.5], [0.5, 0.0]]), abs(SIDE[:, None] - SIDE), abs(SIDE[:, None] - SIDE), 1 - np.eye(3)]
GRID = np.stack(np.meshgrid(range(6), range(6), range(3), indexing="ij"), axis=-1).reshape(-1, 3)


def cells(shape, numbers):
    """Codes of configs, by number, at a shape: its own size is the first axis."""
    return np.column_stack([np.full(len(numbers), shape), GRID[numbers]])


def truth(shape, numbers):
    """A sum of two bowls, whose centres move with the shape, and an effect of each config; none is slow."""
    first, second, third = (GRID[numbers, axis] for axis in range(3))
    own = np.random.default_rng(1).normal(0, 0.06, len(GRID))[numbers]
    return 0.02 * (first - 2 - shape) ** 2 + 0.015 * (second - 3) ** 2 + 0.05 * (third == 1) + own + 5 * shape


def learned(count, seed=0):
    process, random = Surrogate(DISTANCES, np.array([[0], [1]])), np.random.default_rng(seed)
    for shape in (0, 1):
        numbers = random.permutation(len(GRID))[:count]
        for part in np.array_split(numbers, 3):
            process.add(cells(shape, part), part, shape, truth(shape, part))
            process.posterior(cells(shape, part), part, shape)  # fits the parameters
    return process


def times(process, shape):
    """The configs with a time at a shape."""
    return set(process._configs[process._places == shape].tolist())


def test_the_fit_follows_the_gradient_of_the_density(monkeypatch):
    captured = []
    monkeypatch.setattr(
        "normtune.tuner.search.kernel.minimize",
        lambda objective, start, **_: captured.append(objective) or _Result(start),
    )
    kernel, random = Kernel(DISTANCES), np.random.default_rng(2)
    numbers = random.permutation(len(GRID))[:25]
    kernel.fitted(cells(0, numbers), numbers // 2, numbers % 2, truth(0, numbers), kernel.prior)
    for _ in range(3):
        at = kernel.prior + random.normal(0, 0.4, len(kernel.prior))
        value, gradient = captured[0](at)
        assert math.isfinite(value)
        assert np.allclose(gradient, approx_fprime(at, lambda v: captured[0](v)[0], 1e-6), rtol=1e-3, atol=1e-3)


class _Result:
    def __init__(self, x):
        self.x = x


def test_the_posterior_is_that_of_an_exact_process():
    process = learned(30)
    p, kernel = process.parameters, process._kernel
    codes, shapes, configs = process._codes, process._places, process._configs
    numbers = np.array([number for number in range(len(GRID)) if not process.has(number)][:20])
    elsewhere = sorted(times(process, 1) - times(process, 0))[:5]
    numbers = np.concatenate([numbers, np.array(elsewhere, np.int64)])

    def smooth(left, right):
        return p.process**2 * np.exp(kernel.indicators(left) @ kernel.table(p) @ kernel.indicators(right).T)

    targets = process._targets()
    covariance = smooth(codes, codes) + p.config**2 * (configs[:, None] == configs)
    covariance += LEVEL**2 * (shapes[:, None] == shapes) + (p.error**2 + JITTER) * np.eye(len(codes))
    asked = cells(0, numbers)
    across = smooth(asked, codes) + LEVEL**2 * (shapes == 0) + p.config**2 * (numbers[:, None] == configs)
    mean = targets.mean() + across @ np.linalg.solve(covariance, targets - targets.mean())
    own = (p.config**2 + p.error**2 + JITTER) * np.eye(len(numbers))
    left = smooth(asked, asked) + LEVEL**2 + own - across @ np.linalg.solve(covariance, across.T)
    found = process.posterior(asked, numbers, 0)
    assert np.allclose(found.mean, mean, atol=1e-6)
    assert np.allclose(found.deviation, np.sqrt(np.diag(left)), rtol=1e-4)
    drawn = found.draws(np.arange(len(numbers)), 20_000, np.random.default_rng(3))
    assert np.allclose(drawn.mean(axis=0), mean, atol=0.01)
    assert np.allclose(np.cov(drawn.T), left, atol=0.03 * np.diag(left).max())


def test_what_was_not_measured_is_predicted_and_errors_are_as_large_as_said():
    process = learned(45)
    errors, likenesses = [], []
    for shape in (0, 1):
        numbers = np.array(sorted(set(range(len(GRID))) - times(process, shape)))
        found = process.posterior(cells(shape, numbers), numbers, shape)
        targets = truth(shape, numbers) - process._logs[process._places == shape].min()
        likenesses.append(np.corrcoef(found.mean, targets)[0, 1])
        errors.append(((found.mean - targets) / found.deviation)[targets < SLOW])
    assert min(likenesses) > 0.8
    inside = np.abs(np.concatenate(errors)) < 1.28
    assert 0.65 < inside.mean() < 0.95


def test_a_config_that_is_fast_at_one_shape_is_expected_to_be_fast_at_another():
    process = learned(60)
    known = np.array(sorted(times(process, 0) - times(process, 1)))
    own = np.random.default_rng(1).normal(0, 0.06, len(GRID))
    with_effect = process.posterior(cells(1, known), known, 1).mean
    unknown = np.arange(1000, 1000 + len(known))  # the same knobs, as if of configs without a time
    without = process.posterior(cells(1, known), unknown, 1).mean
    assert np.corrcoef(with_effect - without, own[known])[0, 1] > 0.7


def test_from_its_own_and_the_fastest_times_it_predicts_nearly_as_well(monkeypatch):
    process, numbers = learned(60), np.arange(len(GRID))
    exact = process.posterior(cells(0, numbers), numbers, 0)
    monkeypatch.setattr(surrogate, "MOST_POINTS", 90)
    few = process.posterior(cells(0, numbers), numbers, 0)
    used = process._near(0, process._targets(), process._kernel.table(process.parameters))
    assert len(used) == 90 and (process._places[used] == 0).sum() == 60
    others = process._targets()[process._places == 1]
    assert process._targets()[used[process._places[used] == 1]].max() <= np.sort(others)[29]
    assert np.corrcoef(exact.mean, few.mean)[0, 1] > 0.97
    assert few.deviation.mean() > exact.deviation.mean()


def test_a_slow_time_counts_as_less_slow_and_keeps_its_rank():
    logs = np.array([0.0, 0.2, SLOW, 2 * SLOW, 10.0])
    bent = Surrogate.bent(logs)
    assert np.array_equal(bent[:3], logs[:3]) and (np.diff(bent) > 0).all() and bent[-1] < 0.25 * logs[-1]


@pytest.mark.parametrize("seed", range(3))
def test_the_same_times_give_the_same_draws(seed):
    numbers = np.arange(20)
    one, other = (
        learned(20, seed).posterior(cells(0, numbers), numbers, 0).draws(numbers, 5, np.random.default_rng(0))
        for _ in range(2)
    )
    assert np.array_equal(one, other)
