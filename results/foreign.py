"""Measurements that somebody else made, in a pandas DataFrame, as evidence.

In: a DataFrame with one row a measurement or a sample, and the device. Out: `Evidence`, or one line about what is wrong
with the DataFrame. The files of `normtune data export` have such columns.
"""

from collections.abc import Hashable, Sequence
from math import inf
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normtune.errors import UsageError
from normtune.kernels.config import Config
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.operator import operator
from normtune.kernels.problem import Problem, split_key
from normtune.results.frame import Evidence
from normtune.results.records import ROUNDS_PER_BLOCK, Device, Measurement, Run

_NEEDED = ("operator", "dtype", "rows", "hidden")
_TIMES = ("samples", "nanoseconds")
# What a message takes of a value that somebody else wrote.
_MOST_CHARACTERS = 60
_MOST_NANOSECONDS = 2**31 - 1


def evidence_of(data: object, device: Device) -> Evidence:
    """The measurements of a DataFrame, one row a measurement or a sample.

    Args:
        data: its columns: `operator` (a variant as `name:variant`, or in a column `variant`), `dtype`, `rows`,
            `hidden`; `config`, a `Config` or its JSON, or a column for each of its fields; and `samples`, a sequence of
            nanoseconds, with `rounds`, their round numbers, where configs were timed in turns; or `nanoseconds`, one
            time, with `round` where a row is one sample of several. Optional are `run`, `started`, `status`, `reason`,
            `fingerprint` and `regime`. Without round numbers each sample is a block of its own, and a single time
            counts as a median.
        device: on which all of it was measured.

    Raises:
        UsageError: a column is missing or holds what it may not.
    """
    if not isinstance(data, pd.DataFrame):
        raise UsageError(f"the measurements are a {type(data).__name__}: expected a pandas DataFrame, or evidence")
    frame = data.reset_index(drop=True)
    _check_columns([str(column) for column in frame.columns])
    if frame.empty:
        raise UsageError("the DataFrame has no rows: expected one a measurement")
    for column in ("device", "sms", "regime"):
        if column in frame and frame[column].nunique() > 1:
            raise UsageError(
                f"column {column!r} has {frame[column].nunique()} values: a table is for one, fit them apart"
            )
    for column in _NEEDED:
        if frame[column].isna().any():
            raise UsageError(f"column {column!r} has no value in row {_first(frame[column].isna())}")
    configs = _configs(frame)
    keys = [split_key(text) for text in frame["operator"].astype(str)]
    variants = _texts(frame, "variant", "")
    problems = [
        _problem(key, own, dtype, rows, hidden, place)
        for place, (key, own, dtype, rows, hidden) in enumerate(
            zip(keys, variants, frame["dtype"].astype(str), frame["rows"], frame["hidden"], strict=True)
        )
    ]
    runs, statuses, reasons = _texts(frame, "run", "1"), _texts(frame, "status", "ok"), _texts(frame, "reason", "")
    prints = _texts(frame, "fingerprint", "")
    own_prints = {name: fingerprint(operator(name)) for name in {problem.operator for problem in problems}}
    cells: dict[Hashable, tuple[Measurement, list[tuple[int, int]]]] = {}
    for place, (problem, config, run, status, reason, mark) in enumerate(
        zip(problems, configs, runs, statuses, reasons, prints, strict=True)
    ):
        mark = mark or own_prints[problem.operator]
        if status != "ok":
            cells[place] = Measurement(problem, config, run, mark, status, reason or "unknown", *_none()), []
            continue
        # A row that has a round is one sample of several; another one is all of them.
        one_of_many = "samples" not in frame and "round" in frame
        key = (problem, config, run) if one_of_many else place
        found = cells.setdefault(key, (Measurement(problem, config, run, mark, "ok", "", *_none()), []))[1]
        found += _samples(frame, place)
    try:
        return Evidence.from_measurements(
            [_filled(measurement, pairs) for measurement, pairs in cells.values()], _runs(frame, runs, device)
        )
    except ValueError as error:
        raise UsageError(f"the DataFrame cannot be fitted: {error}") from None


def _check_columns(columns: Sequence[str]) -> None:
    missing = [name for name in _NEEDED if name not in columns]
    if "config" not in columns and "schedule" not in columns:
        missing.append("config (or schedule and the other fields of a config)")
    if not any(name in columns for name in _TIMES):
        missing.append("samples (or nanoseconds)")
    if missing:
        raise UsageError(f"the DataFrame has no column {', '.join(missing)}: it has {_told(', '.join(columns))}")
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise UsageError(f"the DataFrame has the column {twice[0]!r} {columns.count(twice[0])} times: expected once")


def _configs(frame: pd.DataFrame) -> list[Config]:
    if "config" in frame:
        values = frame["config"].tolist()
    else:
        names = [name for name in Config._fields if name in frame]
        rows = zip(*(frame[name].tolist() for name in names), strict=True)
        values = [dict(zip(names, row, strict=True)) for row in rows]
    found: list[Config] = []
    for place, value in enumerate(values):
        try:
            if isinstance(value, str):
                config = Config.from_json(value)
            elif isinstance(value, dict | tuple):
                fields = value if isinstance(value, dict) else Config(*value)._asdict()
                given: dict[str, Any] = {
                    name: one if isinstance(one, str) else _whole(one) for name, one in fields.items()
                }
                config = Config(**given)
            else:
                raise TypeError("neither a Config nor its JSON")
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"config of row {place} is {_told(repr(value))}: expected a Config or its JSON ({error})"
            ) from None
        found.append(config)
    return found


def _problem(key: tuple[str, str], variant: str, dtype: str, rows: Any, hidden: Any, place: int) -> Problem:
    try:
        return operator(key[0]).problem(_whole(rows), _whole(hidden), dtype, key[1] or variant)
    except (TypeError, ValueError) as error:
        raise UsageError(f"row {place} of the DataFrame: {error}") from None


def _samples(frame: pd.DataFrame, place: int) -> list[tuple[int, int]]:
    """(round, nanoseconds) of a row."""
    column = "samples" if "samples" in frame else "nanoseconds"
    value = frame[column].iloc[place]
    try:
        times = [value] if column == "nanoseconds" else list(value)
        found = [round(float(time)) for time in times]
        if not found or min(found) < 1 or max(found) > _MOST_NANOSECONDS:
            raise ValueError(f"expected times of 1 to {_MOST_NANOSECONDS} ns")
        if column == "nanoseconds" and "round" in frame:
            return [(_whole(frame["round"].iloc[place]), found[0])]
        if column == "samples" and "rounds" in frame:
            rounds = [_whole(one) for one in frame["rounds"].iloc[place]]
            if len(rounds) != len(found):
                raise ValueError(f"{len(rounds)} rounds of {len(found)} samples")
            return list(zip(rounds, found, strict=True))
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{column} of row {place} is {_told(repr(value))}: expected nanoseconds ({error})") from None
    # One time is a median already: it stands in both halves.
    found = found * 2 if len(found) == 1 else found
    return [(ROUNDS_PER_BLOCK * number, time) for number, time in enumerate(found)]


def _runs(frame: pd.DataFrame, runs: Sequence[str], device: Device) -> list[Run]:
    started = _texts(frame, "started", "1970-01-01T00:00:00")
    regimes = _texts(frame, "regime", "")
    found: dict[str, Run] = {}
    for run, start, regime in zip(runs, started, regimes, strict=True):
        found.setdefault(run, Run(run, device, {}, start, {"regime": regime} if regime else {}))
    return list(found.values())


def _filled(measurement: Measurement, pairs: list[tuple[int, int]]) -> Measurement:
    pairs = sorted(pairs)
    rounds, samples = (np.array([pair[place] for pair in pairs], np.int32) for place in (0, 1))
    return measurement._replace(rounds=rounds, samples=samples)


def _none() -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return np.empty(0, np.int32), np.empty(0, np.int32)


def _texts(frame: pd.DataFrame, column: str, default: str) -> list[str]:
    """The texts of a column; the default where there is none."""
    if column not in frame:
        return [default] * len(frame)
    return [default if pd.isna(value) or value == "" else str(value) for value in frame[column].tolist()]


def _whole(value: Any) -> int:
    """A number as an integer.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, bool) or value in (inf, -inf) or int(value) != value:
        raise ValueError(f"{value!r} is no whole number")
    return int(value)


def _first(mask: "pd.Series[bool]") -> int:
    return int(np.flatnonzero(mask.to_numpy())[0])


def _told(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."
