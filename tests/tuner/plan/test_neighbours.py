"""The nearest measured points and the config that loses least at them, against a search of every point."""

import math

import numpy as np
import pytest

from normtune.kernels.config import COPY, Implementation
from normtune.tuner.plan.neighbours import MOST_LOSS, NeighbourLosses, Neighbours

POINTS = np.stack(np.meshgrid(range(7), range(5), indexing="ij"), axis=-1).reshape(-1, 2).astype(float)
MEASURED = np.random.default_rng(0).permutation(len(POINTS))[:15].tolist()
CONFIGS = [Implementation(name) for name in "abc"]


def nearest(index, others):
    """The nearest first, of equally near ones the first of the plane."""
    return sorted(others, key=lambda other: (math.dist(POINTS[index], POINTS[other]), other))


def added(near):
    for index in (*MEASURED, MEASURED[0]):
        near.add(index)
    return near


@pytest.mark.parametrize("most", [1, 4])
def test_the_neighbours_are_the_nearest_measured_points_in_whatever_order_they_were_measured(most):
    near = added(Neighbours(POINTS, most=most))
    assert np.flatnonzero(near.measured).tolist() == sorted(MEASURED)
    for index in range(len(POINTS)):
        expected = nearest(index, {*MEASURED} - {index})[:most]
        assert near.indices[index].tolist() == expected
        assert near.distances[index].tolist() == [math.dist(POINTS[index], POINTS[other]) for other in expected]


def direction(index, other):
    step = POINTS[other] - POINTS[index]
    axis = int(abs(step[1]) > abs(step[0]))
    return axis, bool(step[axis] > 0)


def test_without_a_number_they_are_the_nearest_of_each_direction():
    near = added(Neighbours(POINTS))
    for index in range(len(POINTS)):
        of_direction = {}
        for other in nearest(index, {*MEASURED} - {index}):
            of_direction.setdefault(direction(index, other), other)
        neighbours = near.indices[index]
        assert sorted(neighbours[neighbours >= 0].tolist()) == sorted(of_direction.values())
        assert (np.isinf(near.distances[index]) == (neighbours < 0)).all()


def test_weights_fall_with_the_distance_and_a_missing_neighbour_has_none():
    near = Neighbours(POINTS, soft=0.5, most=3)
    for index in (0, 1):
        near.add(index)
    assert near.weights(np.array([4])).tolist() == [pytest.approx([1 / 3.5 / (1 / 3.5 + 1 / 4.5), 3.5 / 8, 0])]


def test_the_answer_is_the_config_that_loses_least_at_the_neighbours():
    near = Neighbours(POINTS, soft=0.25, most=4)
    losses, random = NeighbourLosses(near), np.random.default_rng(1)
    times = {
        index: {CONFIGS[place]: float(np.exp(random.normal(0, 0.1))) for place in random.permutation(3)[:2].tolist()}
        for index in MEASURED
    }
    losses.learn(dict(list(times.items())[:9]))
    losses.learn({2: {COPY: 1.0}, 3: {}})
    for index, medians in list(times.items())[9:]:
        losses.learn({index: medians | {COPY: 0.1}})
    losses.learn({MEASURED[0]: times[MEASURED[1]]})  # measured again
    times[MEASURED[0]] = times[MEASURED[1]]
    assert np.flatnonzero(near.measured).tolist() == sorted(MEASURED)
    for index in range(len(POINTS)):
        weights = near.weights(np.array([index]))[0]
        predicted = {}
        for config in CONFIGS:
            parts = [
                min(MOST_LOSS, math.log(times[other].get(config, math.inf) / min(times[other].values())))
                for other in near.indices[index].tolist()
            ]
            predicted[config] = float(weights @ parts)
        answer = [*losses.columns][losses.answers[index]]
        assert predicted[answer] == pytest.approx(min(predicted.values()))
        assert losses.predicted[index] == pytest.approx(predicted[answer])
        if index in times:
            real = math.log(times[index].get(answer, math.inf) / min(times[index].values()))
            assert losses.real(np.array([index]))[0] == pytest.approx(real)
