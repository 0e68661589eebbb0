"""Evidence from a pandas DataFrame of measurements made elsewhere.

In: a DataFrame with one row per measurement or sample, and the device. Out: `Evidence`, or one line about the fault of
the DataFrame. The files of `normtune data export` have such columns.
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

Made = TypeVar("Made")
_NEEDED = ("operator", "dtype", "rows", "hidden")
_TIMES = ("samples", "nanoseconds")
# What a message takes of a value that somebody else wrote.
_MOST_CHARACTERS = 60
# Times and rounds are stored as int32.
_MOST_INT32 = 2**31 - 1


def evidence_of(data: object, device: Device) -> Evidence:
    """Convert a DataFrame, one row per measurement or sample.

    Args:
        data: its columns: `operator` (a variant as `name:variant`, or in a column `variant`), `dtype`, `rows`,
            `hidden`; `config`, a `Config` or its JSON, or a column for each of its fields; and `samples`, a sequence of
            nanoseconds, with `rounds`, their round numbers, where configs were timed in turns; or `nanoseconds`, one
            time, with `round` where a row is one sample of several. Optional are `run`, `started`, `status`, `reason`,
            `fingerprint` and `regime`. Without round numbers each sample is a block of its own, and a single time
            counts as a median.
        device: of all measurements.

    Raises:
        UsageError: a column is missing or has an invalid value.
    """
    if not isinstance(data, pd.DataFrame):
        raise UsageError(f"the measurements are a {type(data).__name__}: expected a pandas DataFrame, or evidence")
    frame = data.reset_index(drop=True)
    _check_columns([str(column) for column in frame.columns])
    if frame.empty:
        raise UsageError("the DataFrame has no rows: expected one a measurement")
    for column in ("device", "sms", "regime"):
        # As text: a column of objects may hold lists, which have no hash to be counted by.
        values = frame[column].dropna().astype(str).nunique() if column in frame else 0
        if values > 1:
            raise UsageError(f"column {column!r} has {values} values: a table is for one, fit them apart")
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
    own_prints = {name: fingerprint(operator(name)) for name in {problem.operator for problem in problems}}
    column = "samples" if "samples" in frame else "nanoseconds"
    times = frame[column].tolist()
    counted = "rounds" if column == "samples" else "round"
    rounds = frame[counted].tolist() if counted in frame else None
    cells: dict[Hashable, tuple[Measurement, list[tuple[int, int]]]] = {}
    for place, (problem, config, run, status, reason, mark) in enumerate(
        zip(problems, configs, runs, statuses, reasons, prints, strict=True)
    ):
        mark = mark or own_prints[problem.operator]
        if status != "ok":
            cells[place] = Measurement(problem, config, run, mark, status, reason or "unknown", *_none()), []
            continue
        # A row that has a round is one sample of several; another one is all of them.
        key = (problem, config, run) if column == "nanoseconds" and rounds else place
        found = cells.setdefault(key, (Measurement(problem, config, run, mark, "ok", "", *_none()), []))[1]
        found += _samples(column, times[place], rounds[place] if rounds else None, place)
    of_frame = _runs(frame, runs, device)
    try:
        check_runs(of_frame)
        return Evidence.from_measurements(
            [_filled(measurement, pairs) for measurement, pairs in cells.values()], of_frame
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
        raise UsageError(f"the DataFrame has no column {', '.join(missing)}: it has {_told(', '.join(columns))}")
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise UsageError(f"the DataFrame has the column {twice[0]!r} {columns.count(twice[0])} times: expected once")


def _configs(frame: pd.DataFrame, names: Sequence[str]) -> list[Config]:
    """The configs of the rows, which are of the operators `names`."""
    if "config" in frame:
        return _each_once(zip(names, frame["config"].tolist(), strict=True), _config)
    knobs = {name: [knob for knob in operator(name).config._fields if knob in frame] for name in set(names)}
    columns = {knob: frame[knob].tolist() for knob in {knob for own in knobs.values() for knob in own}}
    rows = ((name, tuple((knob, columns[knob][place]) for knob in knobs[name])) for place, name in enumerate(names))
    return _each_once(rows, lambda row, place: _config((row[0], dict(row[1])), place))


def _config(given: tuple[str, Any], place: int) -> Config:
    """Convert a config of an operator, its JSON or its fields to a config of plain values."""
    name, value = given
    try:
        if isinstance(value, str):
            return COPY if value == COPY.to_json() else operator(name).config.from_json(value)
        if not isinstance(value, dict | tuple):
            raise TypeError("neither a Config nor its JSON")
        of = operator(name).config
        fields = value if isinstance(value, dict) else of(*value)._asdict()
        return of(**{knob: one if isinstance(one, str) else _whole(one) for knob, one in fields.items()})
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"config of row {place} is {_told(repr(value))}: expected a Config or its JSON ({error})"
        ) from None


def _each_once(values: Iterable[Any], made: Callable[[Any, int], Made]) -> list[Made]:
    """Convert each value, distinct ones once: a file of samples repeats values hundreds of times."""
    known: dict[Any, Made] = {}
    found = []
    for place, value in enumerate(values):
        try:
            hash(value)
            key = value
        except TypeError:  # a list, of which whoever makes something of it says that it is wrong
            key = repr(value)
        if key not in known:
            known[key] = made(value, place)
        found.append(known[key])
    return found


def _problem(value: tuple[str, str, str, Any, Any], place: int) -> Problem:
    text, variant, dtype, rows, hidden = value
    key = Key.parse(text, dtype)
    try:
        return operator(key.operator).problem(_whole(rows), _whole(hidden), dtype, key.variant or variant)
    except (TypeError, ValueError) as error:
        raise UsageError(f"row {place} of the DataFrame: {error}") from None


def _samples(column: str, value: Any, rounds: Any, place: int) -> list[tuple[int, int]]:
    """(round, nanoseconds) of a row.

    Args:
        column: `samples`, of which a row has several, or `nanoseconds`.
        value: the cell.
        rounds: round number of each sample; None if there is no such column.
        place: of the row, for messages.

    Raises:
        UsageError: the times or the round numbers are invalid.
    """
    several = column == "samples"
    try:
        found = [round(float(time)) for time in (value if several else [value])]
        if not found or min(found) < 1 or max(found) > _MOST_INT32:
            raise ValueError(f"expected times of 1 to {_MOST_INT32} ns")
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{column} of row {place} is {_told(repr(value))}: expected nanoseconds ({error})") from None
    if rounds is not None:
        try:
            numbers = [_whole(one) for one in (rounds if several else [rounds])]
            if len(numbers) != len(found):
                raise ValueError(f"{len(numbers)} rounds of {len(found)} samples")
            if min(numbers) < 0 or max(numbers) > _MOST_INT32:
                raise ValueError(f"expected rounds of 0 to {_MOST_INT32}")
        except (TypeError, ValueError) as error:
            name = "rounds" if several else "round"
            raise UsageError(
                f"{name} of row {place} is {_told(repr(rounds))}: expected numbers of rounds ({error})"
            ) from None
        return list(zip(numbers, found, strict=True))
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
    """Texts of a column; the default if there is none."""
    if column not in frame:
        return [default] * len(frame)
    found = frame[column].astype(object).where(frame[column].notna(), "").astype(str)
    return found.where(found != "", default).tolist()


def _whole(value: Any) -> int:
    """Convert a number to an integer.

    Raises:
        ValueError: it is not whole.
    """
    if isinstance(value, bool) or value in (inf, -inf) or int(value) != value:
        raise ValueError(f"{value!r} is no whole number")
    return int(value)


def _first(mask: "pd.Series[bool]") -> int:
    return int(np.flatnonzero(mask.to_numpy())[0])


def _told(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."
