"""All timing matrices of one device.

In: its measurements. Out: a `TimingMatrix` for each operator, variant and dtype with times, and notes: on the others,
and on measurements of outdated kernels.
"""

from typing import TYPE_CHECKING

import numpy as np

from normtune.errors import UsageError
from normtune.heuristics.regret.legality import registered
from normtune.heuristics.regret.matrix import MISSING, TimingMatrix, timing_matrix
from normtune.kernels.fingerprint import changed
from normtune.kernels.problem import AXES
from normtune.kernels.target import target_for
from normtune.results.terminal import printable

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence
    from normtune.results.records import Device

# An empty launch takes more than half a microsecond.
_LEAST_NANOSECONDS = 200


def matrices_of(current: "Evidence", device: "Device") -> tuple[list[TimingMatrix], list[str]]:
    """Timing matrices of all operators, variants and dtypes with times, and a note for each without."""
    target = target_for(device.target, device.sms)
    matrices, notes = [], []
    for key in current.measured_keys():
        known = registered(key)
        matrix = timing_matrix(current, known.spec, key, target) if known else None
        if matrix:
            matrices.append(matrix)
        else:
            why = "no config has times" if known else "it is not registered so, install what brings it"
            notes.append(printable(f"{key}: {why}"))
    return matrices, notes


def check_times(current: "Evidence", matrix: TimingMatrix) -> None:
    """Refuse times that cannot be nanoseconds.

    Args:
        current: the source of the matrix.
        matrix: its rounds are checked.

    Raises:
        UsageError: most times are shorter than any launch, or most rounds give all of three or more configs one time.
            An alias, a config with the launch of another one, has its time and is none of these.
    """
    part = current.part(matrix.key)
    typical = np.median(np.concatenate(part["samples"][part["status"] == "ok"].tolist()))
    subject, expected = f"times of {matrix.key}", "expected nanoseconds, were microseconds given?"
    if typical < _LEAST_NANOSECONDS:
        raise UsageError(f"{subject} are {typical:g} ns, shorter than any kernel's: {expected}")
    if matrix.rounds:
        logs = matrix.rounds.logs
        problems, configs = (
            {name: place for place, name in enumerate(names)}
            for names in (matrix.problems, (config.to_json() for config in matrix.configs))
        )
        own = np.zeros(matrix.usable.shape, np.bool_)
        for *shape, config in zip(*(part[name] for name in (*AXES, "config")), strict=True):
            if (place := problems.get(tuple(shape))) is not None and config in configs:
                own[place, configs[config]] = True
        timed = (logs != MISSING) & own[:, :, None]
        many = timed.sum(axis=1) >= 3
        high, low = np.where(timed, logs, MISSING).max(axis=1), np.where(timed, logs, -MISSING - 1).min(axis=1)
        equal = (many & (high == low)).sum()
        if 2 * equal > many.sum():
            raise UsageError(f"{subject} are the same for all configs in {equal} of {many.sum()} rounds: {expected}")


def older(everything: "Evidence", current: "Evidence") -> list[str]:
    """A note on measurements that are left out because newer ones of changed kernels exist."""
    count = len(everything.frame) - len(current.frame)
    return [f"left out {count} measurements of older kernels: `normtune sweep --stale` repeats them"] if count else []


def outdated(everything: "Evidence", current: "Evidence") -> list[str]:
    """Notes on measurements that are left out, and on kernels that changed since the measurements.

    Args:
        everything: the measurements of one device.
        current: those of the newest kernels among them.
    """
    advice = "`normtune sweep --stale` measures them again"
    names = changed(current.fingerprints())
    return older(everything, current) + [f"the kernels of {name} changed since: {advice}" for name in names]
