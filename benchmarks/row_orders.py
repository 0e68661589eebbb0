"""What batch invariance must cost with the orders of sums that launches have, and would cost if schedules shared one.

In: a shipped recording; schedules whose configs are taken to sum a row in one order. Out: for each function of RMSNorm,
the mean loss in percent if each hidden size has the best single order, beside the best config of each shape: a bound of
the batch-invariant function from below, without limits of leaves. No GPU.

    python benchmarks/row_orders.py nvidia-h200 [--shared cluster_8,split ...]
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from normtune.heuristics.fitting.batch_invariant import bounded
from normtune.heuristics.fitting.pipeline import used
from normtune.heuristics.regret.best_times import best_times
from normtune.heuristics.regret.legality import Legality
from normtune.heuristics.regret.matrix import TimingMatrix, timing_matrix
from normtune.heuristics.regret.weights import DECADES, Weighting
from normtune.heuristics.solver.bins import bins
from normtune.heuristics.solver.row_classes import RowClasses
from normtune.kernels.key import Key
from normtune.kernels.operator import operator
from normtune.kernels.target import target_for
from normtune.results.evidence import Evidence
from normtune.results.exchange.recording import load_recording

OPERATORS, DTYPES = ("rms_norm_backward", "rms_norm_forward"), ("bfloat16", "float16", "float32")
_NEVER = np.iinfo(np.int64).max


def loss(matrix: TimingMatrix, orders: dict[int, NDArray[np.int64]]) -> float:
    """Mean loss in percent with the best order of each hidden size.

    Args:
        matrix: with bounds of missing times.
        orders: by hidden size, int64 (C,): a number for the order of each config; -1 without one.
    """
    regret, lost = np.where(matrix.usable, matrix.regret, _NEVER), 0
    for hidden, of_configs in orders.items():
        rows = [index for index, shape in enumerate(matrix.problems) if shape[1] == hidden]
        best = [regret[rows][:, of_configs == order].min(axis=1) for order in {*of_configs} - {-1}]
        lost += min(int(each @ matrix.weight[rows]) for each in best if (each < _NEVER).all())
    return lost / int(matrix.weight.sum()) / 1e4


def losses(data: Evidence, key: Key, shared: list[list[str]]) -> list[float]:
    """The loss of a function with the orders that its launches have, then with each list of schedules in one order."""
    spec, (device,) = operator(key.operator), data.devices()
    target = target_for(device.target, device.sms)
    timed = timing_matrix(data, spec, key, target)
    assert timed
    matrix, legality = Weighting(DECADES).weighted(spec, timed), Legality(spec, target, (key.dtype,), (key.variant,))
    filled = bounded(matrix, best_times(data, matrix), legality)
    in_bins = bins(filled, legality)
    classes, axis = RowClasses(legality).of(in_bins, {shape[1] for shape in matrix.problems}), in_bins.axes[1]
    orders = {hidden: classes[: len(filled.configs), axis.bin(hidden)] for _, hidden in matrix.problems}
    schedules = np.array([config.schedule for config in filled.configs])
    one = [
        {size: np.where(np.isin(schedules, names) & (of >= 0), classes.max() + 1, of) for size, of in orders.items()}
        for names in shared
    ]
    return [loss(filled, each) for each in (orders, *one)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording")
    parser.add_argument("--shared", nargs="*", default=[], metavar="SCHEDULES", help="each with commas")
    options = parser.parse_args()
    data = used(load_recording(options.recording, None))
    shared = [names.split(",") for names in options.shared]
    print("operator", "dtype", "today", *options.shared, sep=" | ")
    for name in OPERATORS:
        for dtype in DTYPES:
            key = Key.parse(name, dtype)
            if len(data.part(key)):
                print(name, dtype, *(f"{each:.2f}" for each in losses(data, key, shared)), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
