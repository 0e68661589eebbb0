"""The Cholesky factor in blocks, beside numpy's."""

import numpy as np
import pytest
from scipy.linalg import LinAlgError

from normtune.tuner.search.plane.gp import Cholesky


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 100])
def test_the_factor_and_its_solution_are_those_of_numpy(count):
    random = np.random.default_rng(count)
    root = random.normal(size=(count, count))
    matrix, right = root @ root.T + np.eye(count), random.normal(size=(count, 5))
    found = Cholesky(matrix)
    expected = np.linalg.cholesky(matrix)
    assert np.allclose(found.lower, expected, rtol=1e-9, atol=1e-12)
    assert np.allclose(found.solve(right), np.linalg.solve(expected, right), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("place", [0, 40])
def test_a_matrix_that_is_not_positive_definite_is_refused(place):
    matrix = np.eye(50)
    matrix[place, place] = -1.0
    with pytest.raises(LinAlgError, match="not positive definite"):
        Cholesky(matrix)
