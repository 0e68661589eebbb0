"""The timing matrices of one device, with notes on the data that was left out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from normtune.errors import UsageError
from normtune.heuristics.regret.matrix import MISSING, TimingMatrix, timing_matrix
from normtune.heuristics.regret.specs import spec_of_key
from normtune.kernels.fingerprint import changed
from normtune.kernels.key import Key
from normtune.kernels.tablefile.header import UNPAIRED
from normtune.kernels.target import target_for
from normtune.results.terminal import printable

if TYPE_CHECKING:
    from normtune.results.evidence import Evidence
    from normtune.results.records import Device

# An empty launch takes more than half a microsecond.
_LEAST_NANOSECONDS = 200


def matrices_of(
    current: "Evidence", device: "Device", keys: Sequence[Key] | None = None
) -> tuple[list[TimingMatrix], list[str]]:
    """Timing matrices of keys with times, of all measured ones by default, and a note for each without."""
    target = target_for(device.target, device.sms)
    matrices, notes = [], []
    for key in current.measured_keys() if keys is None else keys:
        spec = spec_of_key(current, key)
        matrix = timing_matrix(current, spec, key, target) if spec else None
        if matrix:
            matrices.append(matrix)
        else:
            reason = (
                "no config has times" if spec else "operator or dtype is not registered: load the file that declares it"
            )
            notes.append(printable(f"{key}: {reason}"))
    return matrices, notes


def check_times(matrix: TimingMatrix) -> None:
    """Refuse a matrix of measurements whose times cannot be nanoseconds.

    Raises:
        UsageError: most times are shorter than any launch; or in most rounds with three or more measured configs, all
            have the same time.
    """
    if matrix.times is None:
        raise AssertionError("measurements have times")
    typical = np.median(np.concatenate([*matrix.times.samples.values()]))
    subject, expected = f"times of {matrix.key}", "expected nanoseconds, were microseconds given?"
    if typical < _LEAST_NANOSECONDS:
        raise UsageError(f"{subject} are {typical:g} ns, shorter than any kernel's: {expected}")
    if matrix.rounds:
        compared = equal = 0
        # An alias has the times of another config, so only configs with measurements of their own are compared.
        for places, has_samples in zip(matrix.rounds.places, matrix.times.has_samples(), strict=True):
            logs = matrix.rounds.logs[places[has_samples]]
            many = (logs != MISSING).sum(axis=0) >= 3
            high = logs.max(axis=0, initial=MISSING)
            low = np.where(logs == MISSING, -MISSING - 1, logs).min(axis=0, initial=-MISSING - 1)
            compared, equal = compared + int(many.sum()), equal + int((many & (high == low)).sum())
        if 2 * equal > compared:
            raise UsageError(f"{subject} are the same for all configs in {equal} of {compared} rounds: {expected}")


def older(everything: "Evidence", current: "Evidence") -> list[str]:
    """Notes on measurements left out of `current`, and on unpaired measurements in `current`."""
    foreign = int(everything.unpaired_rows().sum()) - int(current.unpaired_rows().sum())
    count = len(everything.frame) - len(current.frame) - foreign
    notes = [f"left out {count} measurements of older kernels: a sweep with --stale repeats them"] if count else []
    if foreign:
        notes.append(f"left out {foreign} unpaired measurements of operators that normtune measured")
    if names := ", ".join(current.unpaired()):
        notes.append(f"the times of {names} are {UNPAIRED}: their noise is unknown, and they prove no baseline")
    return notes


def outdated(everything: "Evidence", current: "Evidence") -> list[str]:
    """Notes on measurements left out of `current`, and on kernels that changed since it was measured."""
    advice = "a sweep with --stale measures them again"
    names = changed(current.fingerprints())
    return older(everything, current) + [f"the kernels of {name} changed since: {advice}" for name in names]
