"""What stored measurements must hold, wherever they come from.

In: the columns of measurements. Out: nothing, or a ValueError that says which value is wrong. Called before anything
is stored or handed on, so that the fit can rely on it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from normtune.kernels.config import Config
from normtune.results.records import STATUSES


def check_columns(columns: Mapping[str, Sequence[Any]]) -> None:
    """Check measurements, one an index of the columns.

    Samples exist just where the status is `ok`, are positive and have ascending round numbers; a failure has a reason;
    configs are canonical JSON; rows and hidden are positive.

    Args:
        columns: the columns of `Evidence.frame`.

    Raises:
        ValueError: one of these does not hold; the text names the first offending value.
    """
    for name in ("operator", "dtype", "run", "fingerprint"):
        if "" in set(columns[name]):
            raise ValueError(f"{name} is empty")
    for name in ("rows", "hidden"):
        least = min(columns[name], default=1)
        if least < 1:
            raise ValueError(f"{name} is {least}, expected a positive integer")
    for status in sorted(set(columns["status"]) - set(STATUSES)):
        raise ValueError(f"status is {status!r}, expected one of {', '.join(STATUSES)}")
    for text in sorted(set(columns["config"])):
        if Config.from_json(text).to_json() != text:
            raise ValueError(f"config is not canonical: {text!r}")
    _check_samples(columns)


def _check_samples(columns: Mapping[str, Sequence[Any]]) -> None:
    for index, (status, reason, rounds, samples) in enumerate(
        zip(columns["status"], columns["reason"], columns["rounds"], columns["samples"], strict=True)
    ):
        if len(rounds) != len(samples):
            raise ValueError(f"{len(samples)} samples have {len(rounds)} round numbers ({_name(columns, index)})")
        if (status == "ok") != bool(len(samples)):
            raise ValueError(f"status {status} with {len(samples)} samples ({_name(columns, index)})")
        if (status == "ok") == bool(reason):
            raise ValueError(f"status {status} with reason {reason!r} ({_name(columns, index)})")
    if not len(columns["status"]):
        return
    samples = np.concatenate([*columns["samples"]])
    if len(samples) and samples.min() < 1:
        raise ValueError(f"a sample is {samples.min()} ns, expected a positive time")
    rounds = np.concatenate([*columns["rounds"]])
    steps = np.diff(rounds, prepend=np.int32(-1))
    lengths = np.fromiter((len(part) for part in columns["rounds"]), np.int64, len(columns["rounds"]))
    starts = (np.cumsum(lengths) - lengths)[lengths > 0]
    if len(rounds) and rounds.min() < 0:
        raise ValueError(f"a round is {rounds.min()}, expected 0 or more")
    steps[starts] = 1
    if (steps < 1).any():
        raise ValueError("the rounds of a measurement do not ascend")


def _name(columns: Mapping[str, Sequence[Any]], index: int) -> str:
    """The measurement in words."""
    found = {name: columns[name][index] for name in ("operator", "dtype", "rows", "hidden", "config", "run")}
    return "{operator} {dtype} {rows} x {hidden} {config} of run {run}".format_map(found)
