"""Evidence from a pandas DataFrame of measurements of another program.

In: a DataFrame with one row per measurement or sample, and the device. Out: `Evidence` of unpaired runs, or an error of
one line. The files of `normtune data export` have the same columns. `naming` finds the columns.
"""

import hashlib
import json
import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normtune.errors import UsageError, shortened
from normtune.kernels.config import COPY, Config, is_word
from normtune.kernels.fingerprint import UNKNOWN
from normtune.kernels.key import Key, dtype_of
from normtune.kernels.operator import OperatorSpec, find
from normtune.kernels.problem import BUFFER_ITEMSIZE, Problem
from normtune.kernels.undeclared import undeclared_spec
from normtune.results.elsewhere import Columns
from normtune.results.evidence import Evidence
from normtune.results.exchange.naming import NEEDED, RESERVED, SAMPLES, Named, named, whole
from normtune.results.exchange.samples import Rows, samples_of
from normtune.results.records import UNKNOWN_START, UNPAIRED, Device, Measurement, Run
from normtune.results.validate import check_runs

# Texts of booleans, as pandas and JSON write them.
_BOOLEANS = {"True": 1, "true": 1, "False": 0, "false": 0}


def evidence_of(
    data: object,
    device: Device,
    columns: Columns | None = None,
    where: Columns | None = None,
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
        where: by column, the value of the rows that are read; `*` for all.

    Raises:
        UsageError: a column is missing, has an invalid value, or differs among the samples of a config.
    """
    if not isinstance(data, pd.DataFrame):
        raise UsageError(f"the measurements are a {type(data).__name__}: expected a pandas DataFrame, or evidence")
    return evidence_in(Rows(data.reset_index(drop=True)), device, columns or {}, where or {})


def evidence_in(raw: Rows, device: Device, columns: Columns, where: Columns) -> Evidence:
    """As `evidence_of`, of rows that messages name."""
    of = named(raw.frame, columns, raw.source, where)
    rows = raw._replace(frame=of.frame)
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
    in_file = {Key.parse(name, "").operator for name in dict.fromkeys(names)}
    specs = {name: find(name) or undeclared_spec(name, Config, tuple(BUFFER_ITEMSIZE)) for name in in_file}
    shapes = (frame[axis].tolist() for axis in NEEDED[2:])
    problems: list[Problem] = _converted(
        zip(names, variants, dtypes, *shapes, strict=True), lambda value, place: _problem(value, specs, rows.row(place))
    )
    configs, knobs = _configs(rows, of, columns, [specs[problem.operator] for problem in problems])
    runs, fingerprints = _texts(frame, "run", "1"), _texts(frame, "fingerprint", UNKNOWN)
    statuses, reasons = _texts(frame, "status", "ok"), _texts(frame, "reason", "unknown")
    is_ok = np.array([status == "ok" for status in statuses])
    # Configs of two classes may be equal.
    keys = zip(problems, map(type, configs), configs, runs, strict=True)
    cells, _ = pd.factorize(np.fromiter(keys, object, len(frame)))
    _check_pooled(rows, knobs, cells, is_ok)
    # A cell of samples is a measurement, and so is a failure; a time is one of the samples of its measurement.
    singles = -1 - np.arange(len(frame))
    measurements, _ = pd.factorize(singles if of.time == SAMPLES else np.where(is_ok, cells, singles))
    first = np.unique(measurements, return_index=True)[1].tolist()
    items = [
        Measurement(
            problems[place],
            configs[place],
            runs[place],
            fingerprints[place],
            statuses[place],
            "" if is_ok[place] else reasons[place],
            *times,
        )
        for place, times in zip(first, samples_of(rows, of.time, measurements, is_ok), strict=True)
    ]
    all_runs = _runs(frame, runs, device)
    try:
        check_runs(all_runs)
        return _identified(items, all_runs)
    except ValueError as error:
        raise UsageError(f"{rows.source} cannot be fitted: {error}") from None


def _check_pooled(rows: Rows, knobs: set[str], cells: NDArray[np.int64], is_ok: NDArray[np.bool_]) -> None:
    """Refuse a column that nobody named and that differs among the rows of one config at one shape of one run.

    Their times would be averaged, milliseconds with megabytes.
    """
    places = np.flatnonzero(is_ok)
    _, first, inverse = np.unique(cells[places], return_index=True, return_inverse=True)
    for name in rows.frame.columns:
        if name in RESERVED or name in knobs:
            continue
        values = rows.frame[name].map(str).to_numpy(object)[places]
        odd = np.flatnonzero(values != values[first][inverse])
        if len(odd):
            place, other = int(odd[0]), int(first[inverse[odd[0]]])
            raise UsageError(
                f"column {shortened(repr(name))} is {shortened(repr(values[other]))} in "
                f"{rows.row(places[other])}, and in {rows.row(places[place])}, of the same shape and config, "
                f"{shortened(repr(values[place]))}: --where {name}={shortened(values[other])} picks rows, "
                f"--where '{name}=*' takes all as samples, --columns names it as a knob, and a third size needs the "
                "operator's file, --load FILE"
            )


def _configs(rows: Rows, of: Named, columns: Columns, specs: Sequence[OperatorSpec]) -> tuple[list[Config], set[str]]:
    """The config of each row, and the columns that are knobs; `specs` has the operator of each row."""
    frame, by_name = rows.frame, {spec.name: spec for spec in specs}
    if "config" in frame:
        entries = zip((spec.name for spec in specs), frame["config"].tolist(), strict=True)
        return _converted(entries, lambda value, place: _config(by_name[value[0]], value[1], rows.row(place))), set()
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
        if spec.kernel_calls:
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
    return _converted(values, config), every


def _fields(spec: OperatorSpec, of: Named) -> Sequence[str]:
    """The knobs of an operator: those that it declares, or the columns that may be knobs."""
    if spec.kernel_calls:
        return spec.config._fields
    for name in of.knobs:
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise UsageError(
                f"column {shortened(repr(name))} has no name of a knob of {spec.name}: name the columns that are "
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
            f"{knob} of {row} is {shortened(repr(cell))}, no whole number and no word such as 128x64, so {knob} is no "
            "knob: name the columns that are with --columns"
        ) from None


def _config(spec: OperatorSpec, value: Any, row: str) -> Config:
    """A config of plain values, from a config, its JSON, or its fields."""
    try:
        if isinstance(value, Config) and not spec.kernel_calls:
            value = value._asdict()
        if not isinstance(value, str | dict | tuple):
            raise TypeError("neither a Config nor its JSON")
        if value == COPY.to_json():
            return COPY
        if isinstance(value, str):
            return spec.config.from_json(value)
        fields = value if isinstance(value, dict) else spec.config(*value)._asdict()
        knobs = {knob: v if isinstance(v, str) else whole(v) for knob, v in fields.items()}
        return spec.config(**knobs) if spec.kernel_calls else spec.config.from_json(json.dumps(knobs))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"config of {row} is {shortened(repr(value))}: expected a Config or its JSON ({error})"
        ) from None


def _converted(values: Iterable[Any], convert: Callable[[Any, int], Any]) -> list[Any]:
    """Convert each value, equal ones once: a file of samples repeats values hundreds of times."""
    results: dict[Any, Any] = {}
    of_rows = []
    for place, value in enumerate(values):
        try:
            hash(value)
            key = value
        except TypeError:  # a list, which `convert` refuses
            key = repr(value)
        if key not in results:
            results[key] = convert(value, place)
        of_rows.append(results[key])
    return of_rows


def _problem(value: tuple[str, str, str, Any, Any], specs: Mapping[str, OperatorSpec], row: str) -> Problem:
    text, variant, dtype, rows, hidden = value
    key = Key.parse(text, dtype)
    try:
        return specs[key.operator].problem(whole(rows), whole(hidden), dtype, key.variant or variant)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{row}: {error}") from None


def _runs(frame: pd.DataFrame, runs: Sequence[str], device: Device) -> list[Run]:
    started = _texts(frame, "started", UNKNOWN_START)
    regimes = _texts(frame, "regime", "")
    by_id: dict[str, Run] = {}
    for run, start, regime in zip(runs, started, regimes, strict=True):
        protocol = {UNPAIRED: True} | ({"regime": regime} if regime else {})
        by_id.setdefault(run, Run(run, device, {}, start, protocol))
    return list(by_id.values())


def _identified(items: Sequence[Measurement], runs: Sequence[Run]) -> Evidence:
    """The evidence, with ids of runs that say what was measured: a file has the same in each store, and no other's."""
    digest = Evidence.from_measurements(items, runs).digest()
    ids = {run.id: hashlib.sha256(f"{digest} {run.id}".encode()).hexdigest()[:32] for run in runs}
    return Evidence.from_measurements(
        [item._replace(run=ids[item.run]) for item in items], [run._replace(id=ids[run.id]) for run in runs]
    )


def _texts(frame: pd.DataFrame, column: str, default: str) -> list[str]:
    """Texts of a column, `default` where there is none; timestamps without a time zone are UTC."""
    if column not in frame:
        return [default] * len(frame)
    values = frame[column]
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        values = pd.to_datetime(values, utc=True).dt.strftime("%Y-%m-%dT%H:%M:%S+00:00")
    texts = values.astype(object).where(values.notna(), "").astype(str)
    return texts.where(texts != "", default).tolist()
