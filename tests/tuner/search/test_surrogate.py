"""The Gaussian process of `plane`: its fit, and its draws against the formulas of an exact one."""

import math

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from normtune.tuner.search import surrogate
from normtune.tuner.search.kernel import JITTER, LEVEL, Kernel
from normtune.tuner.search.surrogate import SLOW, Surrogate

SIDE = np.linspace(0, 1, 6)
DISTANCES = [abs(SIDE[:, None] - SIDE), abs(SIDE[:, None] - SIDE), 1 - np.eye(3), np.array([[0.0, 0.5], [0.5, 0.0]])]
GRID = np.stack(np.meshgrid(range(6), range(6), range(3), indexing="ij"), axis=-1).reshape(-1, 3)


def cells(shape, numbers):
    """Codes of configs, by number, at a shape: its own size is the last axis."""
    return np.column_stack([GRID[numbers], np.full(len(numbers), shape)])


def truth(shape, numbers):
    """A sum of two bowls, whose centres move with the shape, and an effect of each config; none is slow."""
    first, second, third = (GRID[numbers, axis] for axis in range(3))
    own = np.random.default_rng(1).normal(0, 0.06, len(GRID))[numbers]
    return 0.02 * (first - 2 - shape) ** 2 + 0.015 * (second - 3) ** 2 + 0.05 * (third == 1) + own + 5 * shape


def learned(count, seed=0):
    process, random = Surrogate(DISTANCES, 2), np.random.default_rng(seed)
    for shape in (0, 1):
        numbers = random.permutation(len(GRID))[:count]
        for part in np.array_split(numbers, 3):
            process.add(cells(shape, part), part, shape, truth(shape, part))
            process.prepare()
    return process


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


def test_draws_have_the_mean_and_deviation_of_an_exact_process():
    process = learned(30)
    p, kernel = process.parameters, process._kernel
    codes, shapes, configs = process._codes, process._places, process._configs
    numbers = np.setdiff1d(np.arange(len(GRID)), np.flatnonzero(process._place_of >= 0))[:20]
    known = np.flatnonzero(process._place_of >= 0)
    here = [n for n in known if not ((process._place_of[n] == configs) & (shapes == 0)).any()][:5]
    numbers = np.concatenate([numbers, np.array(here, np.int64)])

    def smooth(left, right):
        return p.process**2 * np.exp(kernel.indicators(left) @ kernel.table(p) @ kernel.indicators(right).T)

    targets = process._targets()
    covariance = smooth(codes, codes) + p.config**2 * (configs[:, None] == configs)
    covariance += LEVEL**2 * (shapes[:, None] == shapes) + (p.error**2 + JITTER) * np.eye(len(codes))
    asked = cells(0, numbers)
    across = smooth(asked, codes) + LEVEL**2 * (shapes == 0)
    across += p.config**2 * (process._place_of[numbers][:, None] == configs)
    mean = targets.mean() + across @ np.linalg.solve(covariance, targets - targets.mean())
    variance = (
        p.process**2 + p.config**2 + LEVEL**2 + p.error**2 - (across * np.linalg.solve(covariance, across.T).T).sum(1)
    )
    drawn = process.draws(asked, numbers, 0, 20_000, np.random.default_rng(3))
    assert np.allclose(drawn.mean(axis=0), mean, atol=0.01)
    assert np.allclose(drawn.std(axis=0), np.sqrt(variance), rtol=0.05)


def test_what_was_not_measured_is_predicted_and_errors_are_as_large_as_said():
    process = learned(45)
    errors, misses = [], []
    for shape in (0, 1):
        own = {c for c, s in zip(process._configs.tolist(), process._places.tolist(), strict=True) if s == shape}
        places = process._known(np.arange(len(GRID)))
        numbers = np.array([n for n, place in enumerate(places.tolist()) if place not in own])
        drawn = process.draws(cells(shape, numbers), numbers, shape, 400, np.random.default_rng(0))
        targets = truth(shape, numbers) - process._logs[process._places == shape].min()
        misses.append(np.corrcoef(drawn.mean(axis=0), targets)[0, 1])
        fine = targets < SLOW
        errors.append(((drawn.mean(axis=0) - targets) / drawn.std(axis=0))[fine])
    assert min(misses) > 0.8
    inside = np.abs(np.concatenate(errors)) < 1.28
    assert 0.65 < inside.mean() < 0.95


def test_a_config_that_is_fast_at_one_shape_is_expected_to_be_fast_at_another():
    process = learned(60)
    seen = process._places == 0
    known = np.array([n for n in range(len(GRID)) if (process._place_of[n] == process._configs[seen]).any()])
    known = np.array([n for n in known if not (process._place_of[n] == process._configs[~seen]).any()])
    own = np.random.default_rng(1).normal(0, 0.06, len(GRID))
    with_effect = process.draws(cells(1, known), known, 1, 400, np.random.default_rng(0)).mean(axis=0)
    unknown = np.arange(1000, 1000 + len(known))  # the same knobs, as if of configs without a time
    without = process.draws(cells(1, known), unknown, 1, 400, np.random.default_rng(0)).mean(axis=0)
    assert np.corrcoef(with_effect - without, own[known])[0, 1] > 0.7


def test_projected_on_few_points_it_predicts_nearly_as_well(monkeypatch):
    exact = learned(90)
    monkeypatch.setattr(surrogate, "MOST_POINTS", 40)
    few = learned(90)
    numbers = np.arange(len(GRID))
    means = [
        one.draws(cells(0, numbers), numbers, 0, 400, np.random.default_rng(0)).mean(axis=0) for one in (exact, few)
    ]
    assert len(few._points) == 40 and len(exact._points) > 100
    assert np.corrcoef(*means)[0, 1] > 0.97


def test_learning_in_parts_is_learning_at_once(monkeypatch):
    monkeypatch.setattr(surrogate, "MOST_POINTS", 40)
    monkeypatch.setattr(surrogate, "ANEW", 100.0)
    monkeypatch.setattr(surrogate, "AGAIN", 100.0)
    parts = learned(90)
    at_once = Surrogate(DISTANCES, 2)
    at_once._values = parts._values
    at_once._fitted = 1_000_000
    at_once._codes, at_once._places, at_once._logs = parts._codes, parts._places, parts._logs
    at_once._configs, at_once._place_of, at_once.distinct = parts._configs, parts._place_of, parts.distinct
    for name in ("_table", "_points", "_root", "_config_variance", "_error_variance", "_built"):
        setattr(at_once, name, getattr(parts, name))
    width = parts._information.shape[0]
    at_once._information = np.diag([1.0] * (width - 2) + [LEVEL**-2] * 2)
    at_once._features, at_once._sums = np.zeros((0, width - 2)), np.zeros((parts.distinct, width))
    at_once._counts = np.zeros(parts.distinct)
    at_once._take()
    assert np.allclose(at_once._information, parts._information, rtol=1e-6, atol=1e-6 * parts._information.max())
    assert np.allclose(at_once._sums, parts._sums)


def test_a_slow_time_counts_as_less_slow_and_keeps_its_rank():
    logs = np.array([0.0, 0.2, SLOW, 2 * SLOW, 10.0])
    bent = Surrogate.bent(logs)
    assert np.array_equal(bent[:3], logs[:3]) and (np.diff(bent) > 0).all() and bent[-1] < 0.25 * logs[-1]


@pytest.mark.parametrize("seed", range(3))
def test_the_same_times_give_the_same_draws(seed):
    numbers = np.arange(20)
    one, other = (learned(20, seed).draws(cells(0, numbers), numbers, 0, 5, np.random.default_rng(0)) for _ in range(2))
    assert np.array_equal(one, other)
