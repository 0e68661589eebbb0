"""The Cholesky factor of a covariance, and what is solved with it, in blocks of rows.

Nearly all of the work is products of matrices, during which numpy lets other threads run; scipy's functions of whole
matrices keep them waiting. A triangular solve for 400 rows takes two thirds of the time of scipy's, too.
"""

import numpy as np
from scipy.linalg import LinAlgError
from scipy.linalg.lapack import dpotrf, dtrtri

from normtune.tuner.search.plane.moves import Array

# Rows of a block: with half or twice as many a solve takes longer.
_ROWS = 32


class Cholesky:
    """The factor of a positive definite matrix, (n, n).

    Attributes:
        lower: the factor, (n, n).

    Raises:
        LinAlgError: the matrix is not positive definite.
    """

    def __init__(self, matrix: Array) -> None:
        count = len(matrix)
        self._blocks = [slice(start, min(start + _ROWS, count)) for start in range(0, count, _ROWS)]
        self._inverses: list[Array] = []  # of the blocks on the diagonal of the factor
        self.lower = lower = np.zeros_like(matrix)
        for rows in self._blocks:
            before, after = slice(rows.start), slice(rows.stop, None)
            rest = matrix[rows.start :, rows] - lower[rows.start :, before] @ lower[rows, before].T
            lower[rows, rows], failed = dpotrf(rest[: rows.stop - rows.start], lower=1)
            if failed:
                raise LinAlgError("the matrix is not positive definite")
            self._inverses.append(dtrtri(lower[rows, rows], lower=1)[0])
            np.matmul(rest[rows.stop - rows.start :], self._inverses[-1].T, out=lower[after, rows])

    def solve(self, right: Array) -> Array:
        """The solution x of lower x = right, (n, columns)."""
        solved = np.empty_like(right)
        for rows, inverse in zip(self._blocks, self._inverses, strict=True):
            before = slice(rows.start)
            np.matmul(inverse, right[rows] - self.lower[rows, before] @ solved[before], out=solved[rows])
        return solved
