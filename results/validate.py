"""Checks of measurements and runs, before they are stored or fitted, whatever their source.

In: the columns of measurements, and runs. Out: nothing, or a ValueError that names the wrong value.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from normtune.kernels.config import check_values
from normtune.kernels.key import is_operator, is_variant
from normtune.kernels.operator import read_config
from normtune.kernels.problem import MAX_ROWS
from normtune.kernels.target import MOST_SMS
from normtune.results.records import STATUSES, Run
from normtune.results.regimes import REGIMES
from normtune.results.runs import check_started

_MOST_BYTES = 1 << 50
# What names are, by their column: a rule, and what a message says of it.
_NAMES: tuple[tuple[str, Callable[[str], object], str], ...] = (
    ("operator", is_operator, "words joined by dots, as my_op or my_op.heads=8, of at most 200 characters"),
    ("variant", is_variant, "words joined by +"),
    ("dtype", is_variant, "a word, as bfloat16"),
    ("run", re.compile("[A-Za-z0-9].*").match, "an id that begins with a letter or digit"),
)
_MOST_DIGEST = 32


def check_runs(runs: Iterable[Run]) -> None:
    """Check runs from outside of normtune.

    Raises:
        ValueError: a regime is unknown, a start is not a date, or a number of a device is impossible for a GPU.
    """
    for run in runs:
        if run.regime not in REGIMES:
            raise ValueError(f"a run has times of regime {run.regime[:40]!r}, known are {', '.join(REGIMES)}")
        check_started(run.started)
        device = run.device
        if not 1 <= device.sms <= MOST_SMS:
            raise ValueError(f"sms of a device is {str(device.sms)[:20]}, expected 1 to {MOST_SMS}")
        for name in ("l2_bytes", "memory_bytes"):
            if not 0 <= getattr(device, name) <= _MOST_BYTES:
                raise ValueError(
                    f"{name} of a device is {str(getattr(device, name))[:20]}, expected 0 to {_MOST_BYTES}"
                )


def check_columns(columns: Mapping[str, Sequence[Any]]) -> None:
    """Check measurements, in the columns of `Evidence.frame`.

    Operators, variants and dtypes are words, as they begin lines of output. Samples exist exactly where the status is
    `ok`, are positive and have ascending round numbers; a failure has a reason; configs are canonical JSON of values
    that launch rules accept; rows and hidden are positive.

    Raises:
        ValueError: a rule is broken; the message names the first wrong value.
    """
    for name in ("operator", "dtype", "run", "fingerprint"):
        if "" in set(columns[name]):
            raise ValueError(f"{name} is empty")
    for name, is_valid, example in _NAMES:
        for text in sorted({*columns[name]}):
            if not is_valid(text):
                raise ValueError(f"{name} is {text[:40]!r}, expected {example}")
    for name in ("rows", "hidden"):
        for extreme in (min(columns[name], default=1), max(columns[name], default=1)):
            if not 1 <= extreme <= MAX_ROWS:
                raise ValueError(f"{name} is {extreme}, expected a positive integer of at most {MAX_ROWS}")
    for status in sorted(set(columns["status"]) - set(STATUSES)):
        raise ValueError(f"status is {status!r}, expected one of {', '.join(STATUSES)}")
    for operator, text in sorted(set(zip(columns["operator"], columns["config"], strict=True))):
        _check_config(operator, text)
    for code in filter(None, set(columns["code"])):
        if not code.launch or any(len(digest) > _MOST_DIGEST for digest in code):
            sizes = ", ".join(str(len(digest)) for digest in code)
            raise ValueError(f"digests of code have {sizes} bytes, expected 1 to {_MOST_DIGEST} of the launch")
    _check_samples(columns)


@lru_cache(maxsize=1 << 16)
def _check_config(operator: str, text: str) -> None:
    config = read_config(operator, text)
    if config.to_json() != text:
        raise ValueError(f"config is not canonical: {text!r}")
    check_values(config)


def _check_samples(columns: Mapping[str, Sequence[Any]]) -> None:
    count = len(columns["status"])
    lengths, numbers = (np.fromiter(map(len, columns[name]), np.int64, count) for name in ("samples", "rounds"))
    ok = np.fromiter(map("ok".__eq__, columns["status"]), np.bool_, count)
    reasoned = np.fromiter(map(bool, columns["reason"]), np.bool_, count)
    for index in np.flatnonzero((numbers != lengths) | (ok != (lengths > 0)) | (ok == reasoned)).tolist():
        samples, status = lengths[index], columns["status"][index]
        if numbers[index] != samples:
            raise ValueError(f"{samples} samples have {numbers[index]} round numbers ({_name(columns, index)})")
        if ok[index] != (samples > 0):
            raise ValueError(f"status {status} with {samples} samples ({_name(columns, index)})")
        raise ValueError(f"status {status} with reason {columns['reason'][index]!r} ({_name(columns, index)})")
    if not count:
        return
    samples = np.concatenate([*columns["samples"]])
    if len(samples) and samples.min() < 1:
        raise ValueError(f"a sample is {samples.min()} ns, expected a positive time")
    rounds = np.concatenate([*columns["rounds"]])
    steps = np.diff(rounds, prepend=np.int32(-1))
    starts = (np.cumsum(lengths) - lengths)[lengths > 0]
    if len(rounds) and rounds.min() < 0:
        raise ValueError(f"a round is {rounds.min()}, expected 0 or more")
    steps[starts] = 1
    if (steps < 1).any():
        raise ValueError("the rounds of a measurement do not ascend")


def _name(columns: Mapping[str, Sequence[Any]], index: int) -> str:
    values = {name: columns[name][index] for name in ("operator", "dtype", "rows", "hidden", "config", "run")}
    return "{operator} {dtype} {rows} x {hidden} {config} of run {run}".format_map(values)
