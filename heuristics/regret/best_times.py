"""The times behind a timing matrix in nanoseconds, and which measurements failed.

A timing matrix holds only ratios, because times of different runs are never compared. The times here weight problems
against one another, or bound a time that was not measured.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.measurements import MeasuredShape
from normtune.kernels.config import COPY, Config
from normtune.results.statistics import summary

# Column of the copy among the samples of a problem.
OF_COPY = -1


class BestTimes(NamedTuple):
    """Times behind a timing matrix of P problems and C configs.

    Attributes:
        best: int64 (P,), ns: median sample of the config of least regret, from the newest run that timed it.
        failed: bool (P, C): a measurement of the config on the problem failed, in any run.
        samples: by problem and column, int32, ns, of the newest run that timed the config; those of the copy have the
            column `OF_COPY`. An alias, a config with the launch of a measured one, has none.
    """

    best: NDArray[np.int64]
    failed: NDArray[np.bool_]
    samples: dict[tuple[int, int], NDArray[np.int32]]

    def has_samples(self) -> NDArray[np.bool_]:
        """Bool (P, C): the config has samples of its own."""
        timed = np.zeros(self.failed.shape, np.bool_)
        timed[tuple(np.array([place for place in self.samples if place[1] != OF_COPY]).T)] = True
        return timed


def best_times(
    shapes: Sequence[MeasuredShape], configs: Sequence[Config], regret: NDArray[np.int64], usable: NDArray[np.bool_]
) -> BestTimes:
    """The times of problems in the order of a matrix, each with a config that has a time; see `TimingMatrix`."""
    columns = {config: column for column, config in enumerate(configs)} | {COPY: OF_COPY}
    samples = {
        (problem, columns[config]): times
        for problem, measured in enumerate(shapes)
        for config, times in measured.samples.items()
        if config in columns
    }
    failed = np.array([[config in measured.broken for config in configs] for measured in shapes])
    times = BestTimes(np.zeros(len(shapes), np.int64), failed, samples)
    least = np.where(times.has_samples() & usable, regret, np.iinfo(np.int64).max).argmin(axis=1)
    times.best[:] = [summary(samples[place])[0] for place in enumerate(least.tolist())]
    return times
