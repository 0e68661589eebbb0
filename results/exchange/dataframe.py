"""Evidence from a pandas DataFrame of measurements made elsewhere.

In: a DataFrame with one row per measurement or sample, and the device. Out: `Evidence`, or an error of one line. The
files of `normtune data export` have the same columns.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import inf
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normtune.errors import UsageError
from normtune.kernels.config import COPY, Config
from normtune.kernels.fingerprint import fingerprint
from normtune.kernels.key import Key
from normtune.kernels.operator import operator, operators
from normtune.kernels.problem import Problem
from normtune.results.evidence import Evidence
from normtune.results.records import ROUNDS_PER_BLOCK, Device, Measurement, Run
from normtune.results.validate import check_runs

Converted = TypeVar("Converted")
_NEEDED = ("operator", "dtype", "rows", "hidden")
_TIMES = ("samples", "nanoseconds")
# Longest part of an untrusted value in a message.
_MOST_CHARACTERS = 60
# Times and rounds are stored as int32.
_MOST_INT32 = 2**31 - 1


def evidence_of(data: object, device: Device) -> Evidence:
    """Convert a DataFrame, one row per measurement or sample.

    Args:
        data: columns `operator` (a variant as `name:variant`, or in a column `variant`), `dtype`, `rows`, `hidden`;
            `config`, a `Config` or its JSON, or a column for each knob; and either `samples`, a sequence of
            nanoseconds, with their round numbers in `rounds` if configs were timed in turns, or `nanoseconds`, one time
            per row, with `round` if a measurement has several rows. Optional: `run`, `started`, `status`, `reason`,
            `fingerprint`, `regime`. Without round numbers each sample counts as a separate block, and a single time as
            a median.
        device: of all measurements.

    Raises:
        UsageError: a column is missing or has an invalid value.
    """
    if not isinstance(data, pd.DataFrame):
        raise UsageError(f"the measurements are a {type(data).__name__}: expected a pandas DataFrame, or evidence")
    frame = data.reset_index(drop=True)
    _check_columns([str(column) for column in frame.columns])
    if frame.empty:
        raise UsageError("the DataFrame has no rows: expected one for each measurement")
    for column in ("device", "sms", "regime"):
        # As text, because a column of objects may hold lists, which cannot be hashed.
        values = frame[column].dropna().astype(str).nunique() if column in frame else 0
        if values > 1:
            raise UsageError(f"column {column!r} has {values} values: a table is for one, fit them separately")
    for column in _NEEDED:
        if frame[column].isna().any():
            raise UsageError(f"column {column!r} has no value in row {_first(frame[column].isna())}")
    names = zip(
        *(frame["operator"].astype(str), _texts(frame, "variant", ""), frame["dtype"].astype(str)),
        *(frame["rows"].tolist(), frame["hidden"].tolist()),
        strict=True,
    )
    problems = _each_once(names, _problem)
    configs = _configs(frame, [problem.operator for problem in problems])
    runs, statuses, reasons = _texts(frame, "run", "1"), _texts(frame, "status", "ok"), _texts(frame, "reason", "")
    prints = _texts(frame, "fingerprint", "")
    present_prints = {name: fingerprint(operator(name)) for name in {problem.operator for problem in problems}}
    column = "samples" if "samples" in frame else "nanoseconds"
    times = frame[column].tolist()
    round_column = "rounds" if column == "samples" else "round"
    rounds = frame[round_column].tolist() if round_column in frame else None
    cells: dict[Hashable, tuple[Measurement, list[tuple[int, int]]]] = {}
    for place, (problem, config, run, status, reason, mark) in enumerate(
        zip(problems, configs, runs, statuses, reasons, prints, strict=True)
    ):
        mark = mark or present_prints[problem.operator]
        if status != "ok":
            cells[place] = Measurement(problem, config, run, mark, status, reason or "unknown", *_none()), []
            continue
        # With round numbers, a row is one of several samples; otherwise it is a whole measurement.
        key = (problem, config, run) if column == "nanoseconds" and rounds else place
        pairs = cells.setdefault(key, (Measurement(problem, config, run, mark, "ok", "", *_none()), []))[1]
        pairs += _samples(column, times[place], rounds[place] if rounds else None, place)
    all_runs = _runs(frame, runs, device)
    try:
        check_runs(all_runs)
        return Evidence.from_measurements(
            [_filled(measurement, pairs) for measurement, pairs in cells.values()], all_runs
        )
    except ValueError as error:
        raise UsageError(f"the DataFrame cannot be fitted: {error}") from None


def _check_columns(columns: Sequence[str]) -> None:
    missing = [name for name in _NEEDED if name not in columns]
    if "config" not in columns and not {knob for spec in operators().values() for knob in spec.config._fields} & {
        *columns
    }:
        missing.append("config (or a column for each knob of the configs)")
    if not any(name in columns for name in _TIMES):
        missing.append("samples (or nanoseconds)")
    if missing:
        raise UsageError(f"the DataFrame has no column {', '.join(missing)}: it has {_shortened(', '.join(columns))}")
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise UsageError(f"the DataFrame has the column {twice[0]!r} {columns.count(twice[0])} times: expected once")


def _configs(frame: pd.DataFrame, names: Sequence[str]) -> list[Config]:
    """The config of each row, by the operators' `names`."""
    if "config" in frame:
        return _each_once(zip(names, frame["config"].tolist(), strict=True), _config)
    knobs = {name: [knob for knob in operator(name).config._fields if knob in frame] for name in set(names)}
    columns = {knob: frame[knob].tolist() for knob in {knob for names in knobs.values() for knob in names}}
    rows = ((name, tuple((knob, columns[knob][place]) for knob in knobs[name])) for place, name in enumerate(names))
    return _each_once(rows, lambda row, place: _config((row[0], dict(row[1])), place))


def _config(row: tuple[str, Any], place: int) -> Config:
    """A config of plain values, from an operator's name and a config, its JSON, or its fields."""
    name, value = row
    try:
        if isinstance(value, str):
            return COPY if value == COPY.to_json() else operator(name).config.from_json(value)
        if not isinstance(value, dict | tuple):
            raise TypeError("neither a Config nor its JSON")
        config_class = operator(name).config
        fields = value if isinstance(value, dict) else config_class(*value)._asdict()
        return config_class(**{knob: v if isinstance(v, str) else _whole(v) for knob, v in fields.items()})
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"config of row {place} is {_shortened(repr(value))}: expected a Config or its JSON ({error})"
        ) from None


def _each_once(values: Iterable[Any], convert: Callable[[Any, int], Converted]) -> list[Converted]:
    """Convert each value, equal ones once: a file of samples repeats values hundreds of times."""
    converted: dict[Any, Converted] = {}
    results = []
    for place, value in enumerate(values):
        try:
            hash(value)
            key = value
        except TypeError:  # a list, which `convert` refuses
            key = repr(value)
        if key not in converted:
            converted[key] = convert(value, place)
        results.append(converted[key])
    return results


def _problem(value: tuple[str, str, str, Any, Any], place: int) -> Problem:
    text, variant, dtype, rows, hidden = value
    key = Key.parse(text, dtype)
    try:
        return operator(key.operator).problem(_whole(rows), _whole(hidden), dtype, key.variant or variant)
    except (TypeError, ValueError) as error:
        raise UsageError(f"row {place} of the DataFrame: {error}") from None


def _samples(column: str, value: Any, rounds: Any, place: int) -> list[tuple[int, int]]:
    """(round, nanoseconds) of each sample of a row.

    Args:
        column: `samples`, with several times in a cell, or `nanoseconds`, with one.
        value: the cell.
        rounds: round number of each sample; None if there is no such column.
        place: index of the row, for messages.
    """
    several = column == "samples"
    try:
        times = [round(float(time)) for time in (value if several else [value])]
        if not times or min(times) < 1 or max(times) > _MOST_INT32:
            raise ValueError(f"expected times of 1 to {_MOST_INT32} ns")
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"{column} of row {place} is {_shortened(repr(value))}: expected nanoseconds ({error})"
        ) from None
    if rounds is not None:
        try:
            numbers = [_whole(number) for number in (rounds if several else [rounds])]
            if len(numbers) != len(times):
                raise ValueError(f"{len(numbers)} rounds of {len(times)} samples")
            if min(numbers) < 0 or max(numbers) > _MOST_INT32:
                raise ValueError(f"expected rounds of 0 to {_MOST_INT32}")
        except (TypeError, ValueError) as error:
            name = "rounds" if several else "round"
            raise UsageError(
                f"{name} of row {place} is {_shortened(repr(rounds))}: expected numbers of rounds ({error})"
            ) from None
        return list(zip(numbers, times, strict=True))
    # A single time is a median: it counts in both halves of the blocks.
    times = times * 2 if len(times) == 1 else times
    return [(ROUNDS_PER_BLOCK * number, time) for number, time in enumerate(times)]


def _runs(frame: pd.DataFrame, runs: Sequence[str], device: Device) -> list[Run]:
    started = _texts(frame, "started", "1970-01-01T00:00:00")
    regimes = _texts(frame, "regime", "")
    by_id: dict[str, Run] = {}
    for run, start, regime in zip(runs, started, regimes, strict=True):
        by_id.setdefault(run, Run(run, device, {}, start, {"regime": regime} if regime else {}))
    return list(by_id.values())


def _filled(measurement: Measurement, pairs: list[tuple[int, int]]) -> Measurement:
    pairs = sorted(pairs)
    rounds, samples = (np.array([pair[place] for pair in pairs], np.int32) for place in (0, 1))
    return measurement._replace(rounds=rounds, samples=samples)


def _none() -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    return np.empty(0, np.int32), np.empty(0, np.int32)


def _texts(frame: pd.DataFrame, column: str, default: str) -> list[str]:
    """Texts of a column, `default` where there is none."""
    if column not in frame:
        return [default] * len(frame)
    texts = frame[column].astype(object).where(frame[column].notna(), "").astype(str)
    return texts.where(texts != "", default).tolist()


def _whole(value: Any) -> int:
    if isinstance(value, bool) or value in (inf, -inf) or int(value) != value:
        raise ValueError(f"{value!r} is no whole number")
    return int(value)


def _first(mask: "pd.Series[bool]") -> int:
    return int(np.flatnonzero(mask.to_numpy())[0])


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."
