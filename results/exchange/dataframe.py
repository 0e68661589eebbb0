"""Evidence from a pandas DataFrame of measurements of another program.

In: a DataFrame with one row per measurement or sample, and the device. Out: `Evidence` of unpaired runs, or an error of
one line. The files of `normtune data export` have the same columns. `naming` finds the columns.
"""

import hashlib
import json
import keyword
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from normtune.errors import UsageError
from normtune.kernels.config import COPY, Config, is_word
from normtune.kernels.fingerprint import UNKNOWN
from normtune.kernels.key import Key
from normtune.kernels.operator import OperatorSpec, operator
from normtune.kernels.problem import BUFFER_ITEMSIZE, Problem
from normtune.kernels.undeclared import undeclared
from normtune.results.elsewhere import Columns
from normtune.results.evidence import Evidence
from normtune.results.exchange.naming import NEEDED, SAMPLES, UNITS, Named, dtype_of, named, whole
from normtune.results.options import number_of
from normtune.results.records import ROUNDS_PER_BLOCK, UNKNOWN_START, UNPAIRED, Device, Measurement, Run
from normtune.results.validate import check_runs

Converted = TypeVar("Converted")
# Longest part of an untrusted value in a message.
_MOST_CHARACTERS = 60
# Times and rounds are stored as int32.
_MOST_INT32 = 2**31 - 1
# Texts of booleans, as pandas and JSON write them.
_BOOLEANS = {"True": 1, "true": 1, "False": 0, "false": 0}


class Rows(NamedTuple):
    """Measurements in rows.

    Attributes:
        frame: one row per measurement or sample.
        source: of the frame, for messages.
        lines: the number of each row in its file; empty for the rows of a DataFrame, which count from 0.
    """

    frame: pd.DataFrame
    source: str = "the DataFrame"
    lines: Sequence[int] = ()

    def row(self, place: int) -> str:
        """A row, for messages."""
        return f"line {self.lines[place]} of {self.source}" if len(self.lines) else f"row {place}"


def evidence_of(
    data: object, device: Device, columns: Columns | None = None, operators: Sequence[str] = ()
) -> Evidence:
    """Convert a DataFrame, one row per measurement or sample.

    Args:
        data: columns `operator` (a variant as `name:variant`, or in a column `variant`), `dtype`, `rows`, `hidden`;
            `config`, a `Config` or its JSON, or a column for each knob; and either `samples`, a sequence of
            nanoseconds, with their round numbers in `rounds` if configs were timed in turns, or one time per row in
            `nanoseconds`, `microseconds`, `milliseconds` or `seconds`, with `round` likewise. Optional: `run`,
            `started`, `status`, `reason`, `fingerprint`, `regime`. Without round numbers each sample counts as a
            separate block, and a single time as a median. If an operator is not registered, its knobs are the other
            columns of `columns`, or else all others.
        device: the GPU of all measurements.
        columns: names of columns that differ from the usual ones.
        operators: a single one names that of all rows if there is no such column.

    Raises:
        UsageError: a column is missing or has an invalid value.
    """
    if not isinstance(data, pd.DataFrame):
        raise UsageError(f"the measurements are a {type(data).__name__}: expected a pandas DataFrame, or evidence")
    return evidence_in(Rows(data.reset_index(drop=True)), device, columns or {}, operators)


def evidence_in(given: Rows, device: Device, columns: Columns, operators: Sequence[str]) -> Evidence:
    """As `evidence_of`, of rows that messages name."""
    of = named(given.frame, columns, operators, given.source)
    rows = given._replace(frame=of.frame)
    frame = rows.frame
    if frame.empty:
        raise UsageError(f"{rows.source} has no rows: expected one for each measurement")
    for column in ("device", "sms", "regime"):
        # As text, because a column of objects may hold lists, which cannot be hashed.
        values = frame[column].dropna().astype(str).nunique() if column in frame else 0
        if values > 1:
            raise UsageError(f"column {column!r} has {values} values: a table is for one, fit them separately")
    for column in NEEDED:
        if frame[column].isna().any():
            place = int(np.flatnonzero(frame[column].isna())[0])
            raise UsageError(f"column {column!r} has no value in {rows.row(place)}")
    names, variants = frame["operator"].astype(str).tolist(), _texts(frame, "variant", "")
    dtypes = frame["dtype"].astype(str).map(dtype_of).tolist()
    specs = _specs(rows, names)
    shapes = (frame[axis].tolist() for axis in NEEDED[2:])
    problems = _each_once(
        zip(names, variants, dtypes, *shapes, strict=True), lambda value, place: _problem(value, specs, rows.row(place))
    )
    configs = _configs(rows, of, columns, [specs[problem.operator] for problem in problems])
    runs, statuses, reasons = _texts(frame, "run", "1"), _texts(frame, "status", "ok"), _texts(frame, "reason", "")
    prints = _texts(frame, "fingerprint", UNKNOWN)
    times = frame[of.time].tolist()
    round_column = "rounds" if of.time == SAMPLES else "round"
    rounds = frame[round_column].tolist() if round_column in frame else None
    # The fields of each measurement, and its samples. A cell of samples is a whole one, a time is one of its samples.
    cells: dict[Hashable, tuple[tuple[Any, ...], list[tuple[int | None, int]]]] = {}
    for place, (problem, config, run, status, reason, mark) in enumerate(
        zip(problems, configs, runs, statuses, reasons, prints, strict=True)
    ):
        is_ok = status == "ok"
        key = (problem, config, run) if is_ok and of.time != SAMPLES else place
        fields = problem, config, run, mark, status, "" if is_ok else reason or "unknown"
        pairs = cells.setdefault(key, (fields, []))[1]
        if is_ok:
            pairs += _samples(of.time, times[place], rounds[place] if rounds else None, rows.row(place))
    all_runs = _runs(frame, runs, device)
    try:
        check_runs(all_runs)
        return _identified([_measurement(*cell) for cell in cells.values()], all_runs)
    except ValueError as error:
        raise UsageError(f"{rows.source} cannot be fitted: {error}") from None


def _specs(rows: Rows, names: Sequence[str]) -> dict[str, OperatorSpec]:
    """The spec of each operator: the registered one, or one of which only times are known."""
    specs: dict[str, OperatorSpec] = {}
    for text in dict.fromkeys(names):
        name = Key.parse(text, "").operator
        try:
            specs[name] = operator(name)
        except UsageError:
            if not re.match("[A-Za-z_]", name):
                raise UsageError(
                    f"an operator of {rows.source} is {_shortened(repr(name))}: expected a name such as my_op"
                ) from None
            specs[name] = undeclared(name, Config, tuple(BUFFER_ITEMSIZE))
    return specs


def _configs(rows: Rows, of: Named, columns: Columns, specs: Sequence[OperatorSpec]) -> list[Config]:
    """The config of each row."""
    frame, by_name = rows.frame, {spec.name: spec for spec in specs}
    if "config" in frame:
        given = zip((spec.name for spec in specs), frame["config"].tolist(), strict=True)
        return _each_once(given, lambda value, place: _config(by_name[value[0]], value[1], rows.row(place)))
    knobs = {name: [knob for knob in _fields(spec, of) if knob in frame] for name, spec in by_name.items()}
    every = {knob for of_one in knobs.values() for knob in of_one}
    if odd := [name for name in columns if name in of.knobs and name not in every]:
        raise UsageError(
            f"--columns names {odd[0]!r}, which is no column that is read and no knob of {', '.join(knobs)}"
        )
    cells = {knob: frame[knob].tolist() for knob in every}
    kinds: dict[tuple[str, str], tuple[type, int]] = {}

    def config(value: tuple[str, tuple[tuple[str, Any], ...]], place: int) -> Config:
        name, pairs = value
        spec, row = by_name[name], rows.row(place)
        if spec.kernel_module:
            return _config(spec, dict(pairs), row)
        # A knob that another operator of the file has is empty here.
        knobs = {knob: _knob(knob, cell, row) for knob, cell in pairs if not pd.isna(cell) and cell != ""}
        for knob, cell in knobs.items():
            kind, first = kinds.setdefault((name, knob), (type(cell), place))
            if type(cell) is not kind:
                raise UsageError(
                    f"{knob} of {row} is {cell!r}, and of {rows.row(first)} a {'number' if kind is int else 'name'}: "
                    "expected either of them in all rows"
                )
        return _config(spec, knobs, row)

    values = (
        (spec.name, tuple((knob, cells[knob][place]) for knob in knobs[spec.name])) for place, spec in enumerate(specs)
    )
    return _each_once(values, config)


def _fields(spec: OperatorSpec, of: Named) -> Sequence[str]:
    """The knobs of an operator: those that it declares, or the columns that may be knobs."""
    if spec.kernel_module:
        return spec.config._fields
    for name in of.knobs:
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise UsageError(
                f"column {_shortened(repr(name))} has no name of a knob of {spec.name}: name the columns that are "
                "knobs with --columns, as BLOCK=NAME"
            )
    return of.knobs


def _knob(knob: str, cell: Any, row: str) -> int | str:
    """The value of a knob that nobody declared; of a boolean, which is text in a CSV file, 0 or 1."""
    try:
        if isinstance(cell, str):
            if not is_word(cell):
                raise ValueError
            return _BOOLEANS.get(cell, cell)
        return int(cell) if isinstance(cell, bool | np.bool_) else whole(cell)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(
            f"{knob} of {row} is {_shortened(repr(cell))}, no whole number and no word such as 128x64, so {knob} is no "
            "knob: name the columns that are with --columns"
        ) from None


def _config(spec: OperatorSpec, value: Any, row: str) -> Config:
    """A config of plain values, from a config, its JSON, or its fields."""
    try:
        if isinstance(value, Config) and not spec.kernel_module:
            value = value._asdict()
        if not isinstance(value, str | dict | tuple):
            raise TypeError("neither a Config nor its JSON")
        if value == COPY.to_json():
            return COPY
        if isinstance(value, str):
            return spec.config.from_json(value)
        fields = value if isinstance(value, dict) else spec.config(*value)._asdict()
        plain = {knob: v if isinstance(v, str) else whole(v) for knob, v in fields.items()}
        return spec.config(**plain) if spec.kernel_module else spec.config.from_json(json.dumps(plain))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"config of {row} is {_shortened(repr(value))}: expected a Config or its JSON ({error})"
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


def _problem(value: tuple[str, str, str, Any, Any], specs: Mapping[str, OperatorSpec], row: str) -> Problem:
    text, variant, dtype, rows, hidden = value
    key = Key.parse(text, dtype)
    try:
        return specs[key.operator].problem(whole(rows), whole(hidden), dtype, key.variant or variant)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{row}: {error}") from None


def _samples(column: str, value: Any, rounds: Any, row: str) -> list[tuple[int | None, int]]:
    """(round, nanoseconds) of each sample of a row, whose cell in `column` is `value`.

    `rounds` has the round number of each sample; None if there is no such column.
    """
    several = column == SAMPLES
    unit = UNITS.get(column, 1)
    try:
        times = [round(_time(time) * unit) for time in (value if several else [value])]
        if not times or min(times) < 1 or max(times) > _MOST_INT32:
            most = _MOST_INT32 / 1e9
            raise ValueError(f"times of 1 ns to {most:.3f} s; as only ratios count, divide all times alike")
    except (TypeError, ValueError, OverflowError) as error:
        expected = "nanoseconds" if several else column
        failure = "; leave failures out, or tell them in a column status" * isinstance(value, str | None)
        raise UsageError(
            f"{column} of {row} is {_shortened(repr(value))}: expected {expected} ({error}){failure}"
        ) from None
    if rounds is None:
        return [(None, time) for time in times]
    try:
        numbers = [whole(number) for number in (rounds if several else [rounds])]
        if len(numbers) != len(times):
            raise ValueError(f"{len(numbers)} rounds of {len(times)} samples")
        if min(numbers) < 0 or max(numbers) > _MOST_INT32:
            raise ValueError(f"expected rounds of 0 to {_MOST_INT32}")
    except (TypeError, ValueError) as error:
        name = "rounds" if several else "round"
        raise UsageError(
            f"{name} of {row} is {_shortened(repr(rounds))}: expected numbers of rounds ({error})"
        ) from None
    return list(zip(numbers, times, strict=True))


def _time(value: Any) -> float:
    read = number_of(value) if isinstance(value, str) else float(value)
    if read is None:
        raise ValueError("no number")
    return read


def _runs(frame: pd.DataFrame, runs: Sequence[str], device: Device) -> list[Run]:
    started = _texts(frame, "started", UNKNOWN_START)
    regimes = _texts(frame, "regime", "")
    by_id: dict[str, Run] = {}
    for run, start, regime in zip(runs, started, regimes, strict=True):
        protocol = {UNPAIRED: True} | ({"regime": regime} if regime else {})
        by_id.setdefault(run, Run(run, device, {}, start, protocol))
    return list(by_id.values())


def _identified(measurements: Sequence[Measurement], runs: Sequence[Run]) -> Evidence:
    """The evidence, with ids of runs that say what was measured: a file has the same in each store, and no other's."""
    digest = Evidence.from_measurements(measurements, runs).digest()
    ids = {run.id: hashlib.sha256(f"{digest} {run.id}".encode()).hexdigest()[:32] for run in runs}
    return Evidence.from_measurements(
        [one._replace(run=ids[one.run]) for one in measurements], [run._replace(id=ids[run.id]) for run in runs]
    )


def _measurement(fields: Sequence[Any], pairs: Sequence[tuple[int | None, int]]) -> Measurement:
    if any(number is None for number, _ in pairs):
        # A single time is a median: it counts in both halves of the blocks.
        times = [time for _, time in pairs] * (2 if len(pairs) == 1 else 1)
        pairs = [(ROUNDS_PER_BLOCK * number, time) for number, time in enumerate(times)]
    pairs = sorted((number or 0, time) for number, time in pairs)
    arrays = (np.array([pair[place] for pair in pairs], np.int32) for place in (0, 1))
    return Measurement._make((*fields, *arrays, None))


def _texts(frame: pd.DataFrame, column: str, default: str) -> list[str]:
    """Texts of a column, `default` where there is none."""
    if column not in frame:
        return [default] * len(frame)
    texts = frame[column].astype(object).where(frame[column].notna(), "").astype(str)
    return texts.where(texts != "", default).tolist()


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "..."
