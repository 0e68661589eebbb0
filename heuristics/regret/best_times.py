"""The time of the best config of each problem in nanoseconds, and which measurements failed.

A timing matrix holds only ratios, because times of different runs are never compared. The times here weight problems
against one another, or bound a time that was not measured.
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.regret.matrix import TimingMatrix
from normtune.kernels.config import COPY
from normtune.results.statistics import summary

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence


# Column of the copy among the samples of a problem.
OF_COPY = -1


class BestTimes(NamedTuple):
    """Times behind a timing matrix of P problems and C configs.

    Attributes:
        best: int64 (P,), ns: median sample of the config of least regret, from the newest run that timed it.
        failed: bool (P, C): a measurement of the config on the problem failed, in any run.
        samples: by problem and column, int32, ns, of the newest run that timed the config; those of the copy have the
            column `OF_COPY`.
    """

    best: NDArray[np.int64]
    failed: NDArray[np.bool_]
    samples: dict[tuple[int, int], NDArray[np.int32]]


def best_times(evidence: "Evidence", matrix: TimingMatrix) -> BestTimes:
    """The best times of the problems of `matrix`, which was made from `evidence`."""
    part = evidence.part(matrix.key)
    part = part[part["status"] != "not_recorded"]
    order = {run.id: number for number, run in enumerate(evidence.runs)}
    problems = {shape: index for index, shape in enumerate(matrix.problems)}
    columns = {config.to_json(): index for index, config in enumerate(matrix.configs)} | {COPY.to_json(): OF_COPY}
    failed = np.zeros(matrix.usable.shape, np.bool_)
    newest: dict[tuple[int, int], tuple[int, list[NDArray[np.int32]]]] = {}
    fields = (part[name] for name in ("config", "run", "status", "samples"))
    for shape, config, run, status, samples in zip(evidence.shapes(part, matrix.key), *fields, strict=True):
        problem, column = problems.get(shape), columns.get(config)
        if problem is None or column is None:
            continue
        if status != "ok":
            if column != OF_COPY:
                failed[problem, column] = True
        elif order[run] > newest.get((problem, column), (-1, []))[0]:
            newest[problem, column] = order[run], [samples]
        elif order[run] == newest[problem, column][0]:
            newest[problem, column][1].append(samples)
    timed = np.zeros(matrix.usable.shape, np.bool_)
    samples = {place: np.concatenate(parts) for place, (_, parts) in newest.items()}
    own = [place for place in samples if place[1] != OF_COPY]
    timed[tuple(np.array(own, np.int64).reshape(-1, 2).T)] = True
    # An alias, a config with the launch of a measured one, has its regret but no samples.
    regret = np.where(timed & matrix.usable, matrix.regret, np.iinfo(np.int64).max)
    best = [summary(samples[problem, int(column)])[0] for problem, column in enumerate(regret.argmin(axis=1))]
    return BestTimes(np.array(best, np.int64), failed, samples)
