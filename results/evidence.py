"""Measurements as a table in memory, for the fit, exports and recordings.

In: measurements and their runs, or the columns of a store or a file. Out: `Evidence`, in a total order, with a digest
of its content. `store` and `parquet_csv` read and write.
"""

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normtune.kernels.config import COPY, Config
from normtune.kernels.key import Key, family_of
from normtune.kernels.operator import read_config
from normtune.kernels.problem import AXES, Problem, Shape, axes_at, function_key
from normtune.results.columns import COLUMNS, TEXTS, columns_of, first_rounds, flatten
from normtune.results.records import SEARCHED, UNPAIRED, Counted, Device, Measurement, Run, TimedCode
from normtune.results.regimes import COLD
from normtune.results.validate import check_columns

_KEY = ("operator", "variant", "dtype")
_SORT = (*_KEY, "hidden", "rows", "config", "run")
# The first part of the hashed content; to be changed when digests have to change.
_DIGEST_FORMAT = "normtune evidence 1"


@dataclass(frozen=True, eq=False)
class Evidence:
    """Measurements and the runs they were taken in. Equal content has an equal digest.

    Attributes:
        frame: one row per stored measurement: operator, variant, dtype (str), rows, hidden (int64), config (canonical
            JSON), run, fingerprint, status, reason (str), rounds, samples (int32 arrays of one length; ns), code
            (`TimedCode` or None, in no digest). Sorted by operator, variant, dtype, hidden, rows, config, run, first
            round.
        runs: the runs that have measurements, by start and id.
    """

    frame: pd.DataFrame
    runs: tuple[Run, ...]

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[Any]], runs: Iterable[Run]) -> "Evidence":
        """Check columns and convert them; they are those of `frame`, in any order of rows, possibly without `code`.

        Raises:
            ValueError: the columns break a rule of `validate`, a run is missing, or a measurement is there twice.
        """
        columns = {"code": [None] * len(columns["run"]), **columns}
        check_columns(columns)
        by_id = {run.id: run for run in runs}
        used = set(columns["run"])
        for run in sorted(used - set(by_id)):
            raise ValueError(f"run {run!r} of a measurement is not among the runs")
        order = _order(columns)
        parts = {}
        for name in COLUMNS:
            if name in ("rows", "hidden"):
                parts[name] = pd.Series(np.asarray(columns[name], dtype=np.int64)[order])
            else:
                parts[name] = pd.Series(_objects(columns[name])[order], dtype=object)
        used_runs = sorted((by_id[run] for run in used), key=lambda run: (run.started, run.id))
        return cls(pd.DataFrame(parts), tuple(used_runs))

    @classmethod
    def concat(cls, parts: Sequence["Evidence"]) -> "Evidence":
        """Concatenate evidence.

        Raises:
            ValueError: a measurement is there twice.
        """
        runs = {run.id: run for part in parts for run in part.runs}
        pairs = [(key, part) for part in parts for key in part.measured_keys()]
        pairs.sort(key=lambda pair: pair[0].columns)
        if pairs and all(one.columns < other.columns for (one, _), (other, _) in pairwise(pairs)):
            frames = [part.part(key) for key, part in pairs]  # each key is in one part
            by_start = sorted(runs.values(), key=lambda run: (run.started, run.id))
            return cls(pd.concat(frames, ignore_index=True), tuple(by_start))
        columns = {name: [value for part in parts for value in part.frame[name].tolist()] for name in COLUMNS}
        return cls.from_columns(columns, runs.values())

    @classmethod
    def from_measurements(cls, measurements: Iterable[Measurement], runs: Iterable[Run]) -> "Evidence":
        """Evidence of measurements in any order; runs without measurements are left out.

        Raises:
            ValueError: as `from_columns`.
        """
        return cls.from_columns(columns_of(measurements), runs)

    def measurements(self) -> list[Measurement]:
        """The rows as values, in the order of the frame."""
        configs = self._configs()
        columns = [self.frame[name].tolist() for name in COLUMNS]
        return [
            Measurement(Problem.of(operator, rows, hidden, dtype, variant), configs[operator, config], *rest)
            for operator, variant, dtype, rows, hidden, config, *rest in zip(*columns, strict=True)
        ]

    def knobs(self) -> tuple[str, ...]:
        """The names of the knobs of all configs, in the order of their operators."""
        names = dict.fromkeys(name for config in self._configs().values() for name in config._fields)
        return tuple(names) or COPY._fields

    def _configs(self) -> dict[tuple[str, str], Config]:
        """Each config by its operator and text, in the order of the frame."""
        pairs = zip(self.frame["operator"].tolist(), self.frame["config"].tolist(), strict=True)
        return {pair: read_config(*pair) for pair in dict.fromkeys(pairs)}

    def devices(self) -> list[Device]:
        """One device of each kind (label and SMs), from its newest run, by label and SMs."""
        newest = {run.device.kind: run.device for run in self.runs}
        return [newest[kind] for kind in sorted(newest)]

    def of(self, device: Device) -> "Evidence":
        """Measurements of devices of this kind."""
        return self._of_runs([run for run in self.runs if run.device.kind == device.kind])

    def labelled(self, label: str) -> "Evidence":
        """Measurements of devices of this label."""
        return self._of_runs([run for run in self.runs if run.device.label == label])

    def counts(self) -> list[Counted]:
        """Number of measurements by run, problem and status."""
        runs = {run.id: run for run in self.runs}
        names = ["run", "status", "operator", "rows", "hidden", "dtype", "variant"]
        counts = self.frame.groupby(names, as_index=False).size()
        return [
            Counted(runs[run], Problem.of(*problem), status, count)
            for run, status, *problem, count in zip(*(counts[name].tolist() for name in (*names, "size")), strict=True)
        ]

    def codes(self) -> dict[tuple[Problem, Config], tuple[str, TimedCode]]:
        """Version of Triton and launched code of each config in its newest run, if it is known."""
        triton = {run.id: run.software.get("triton", "") for run in self.runs}
        order = {run.id: number for number, run in enumerate(self.runs)}
        items = self.where(self.frame["code"].notna()).measurements()
        items.sort(key=lambda item: order[item.run])
        return {(item.problem, item.config): (triton[item.run], item.code) for item in items if item.code}

    def regimes(self) -> list[str]:
        """Regimes of the times, in order."""
        return sorted({run.regime for run in self.runs})

    def regime(self, name: str) -> "Evidence":
        """Measurements of one regime."""
        return self._of_runs([run for run in self.runs if run.regime == name])

    def fingerprints(self) -> dict[str, str]:
        """Kernel fingerprint of each operator in its newest run; paired runs outrank unpaired ones."""
        order = {run.id: (not run.is_unpaired, number) for number, run in enumerate(self.runs)}
        newest: dict[str, tuple[tuple[bool, int], str]] = {}
        pairs = self.frame[["operator", "run", "fingerprint"]].drop_duplicates()
        for operator, run, fingerprint in pairs.itertuples(index=False):
            newest[operator] = max(newest.get(operator, ((False, -1), "")), (order[run], fingerprint))
        return {operator: newest[operator][1] for operator in sorted(newest)}

    def current(self) -> "Evidence":
        """Measurements with the newest kernels of their operator and device, and of each config with the newest code.

        Unpaired ones of an operator are left out if it has paired ones.
        """
        mask = pd.Series(False, index=self.frame.index)
        for device in self.devices():
            part = self.of(device)
            mask[self.frame["run"].isin([run.id for run in part.runs])] = part._is_current().to_numpy()
        return self.where(mask)

    def _is_current(self) -> "pd.Series[bool]":
        """Which rows of `frame`, of one device, are `current`."""
        operators, unpaired = self.frame["operator"], self.unpaired_rows()
        mask = self.frame["fingerprint"] == operators.map(self.fingerprints())
        if unpaired.any():
            mask &= ~unpaired | ~operators.isin(operators[~unpaired].unique())
        return mask & ~self._is_of_other_code(mask)

    def _is_of_other_code(self, mask: "pd.Series[bool]") -> NDArray[np.bool_]:
        """Which of these rows of `frame` are of other code than the newest of their config, as far as that is known."""
        tritons = {run.id: run.software.get("triton", "") for run in self.runs}
        numbers = self.frame["run"].map({run.id: number for number, run in enumerate(self.runs)})
        coded = numbers[mask & self.frame["code"].notna()].sort_values(ascending=False, kind="stable").index
        is_other = np.zeros(len(self.frame), np.bool_)
        newest: dict[tuple[Any, ...], tuple[TimedCode, str]] = {}
        for row, *measured, run, code in self.frame.loc[coded, [*_SORT, "code"]].itertuples(name=None):
            newest_code, triton = newest.setdefault(tuple(measured), (code, tritons[run]))
            is_other[row] = not code.is_of(newest_code, tritons[run] == triton)
        return is_other

    def unpaired_rows(self) -> "pd.Series[bool]":
        """Which rows of `frame` another program measured."""
        return self.frame["run"].isin([run.id for run in self.runs if run.is_unpaired])

    def unpaired(self) -> tuple[str, ...]:
        """The operators with measurements of another program, by name."""
        return tuple(sorted(self.frame.loc[self.unpaired_rows(), "operator"].unique()))

    def measured_keys(self) -> list[Key]:
        """The keys of the measurements, ordered."""
        columns = [self.frame[name].to_numpy() for name in _KEY]
        keys: list[Key] = []
        row = 0
        while row < len(self.frame):
            keys.append(Key.of(*(column[row] for column in columns)))
            row = self._bounds(keys[-1])[1]
        return keys

    def function_keys(self) -> list[Key]:
        """The keys of the functions that answer for the measured problems, ordered."""
        return sorted({*map(function_key, self.measured_keys())})

    def places(self) -> dict[Any, NDArray[np.int64]]:
        """The positions in `frame` of the rows of each problem, by `Problem.columns`."""
        return self.frame.groupby(["operator", "rows", "hidden", "dtype", "variant"]).indices  # type: ignore[return-value]

    def part(self, key: Key) -> pd.DataFrame:
        """Rows of `frame` of one key, found by bisection; of a function with a third size, of all of its keys."""
        if len(axes_at(key)) == len(AXES):
            return self.frame.iloc[slice(*self._bounds(key))]
        of_function = (other for other in self.measured_keys() if function_key(other) == key)
        return pd.concat([self.frame.iloc[slice(*self._bounds(other))] for other in of_function])

    @staticmethod
    def shapes(part: pd.DataFrame, key: Key) -> list[Shape]:
        """The shape of each of the rows of `part(key)`."""
        third = axes_at(key)[2:]
        columns = [part[axis].tolist() for axis in AXES]
        if third:
            sizes = {name: dict(Key.of(name, "", "").sizes) for name in part["operator"].unique()}
            columns += [[sizes[name][axis] for name in part["operator"]] for axis in third]
        return list(zip(*columns, strict=True))

    def _bounds(self, key: Key) -> tuple[int, int]:
        """First row and end of the rows of a key, by which the frame is ordered first."""
        low, high = 0, len(self.frame)
        for name, value in zip(_KEY, key.columns, strict=True):
            column = self.frame[name].to_numpy()
            low, high = bisect_left(column, value, low, high), bisect_right(column, value, low, high)
        return low, high

    def select(self, keys: Collection[str] = (), dtypes: Collection[str] = ()) -> "Evidence":
        """Only these operators and dtypes; empty means all.

        A key `a` is operator a in all variants, and a family at all named integers; `a:b` is its variant b.
        """
        mask = pd.Series(True, index=self.frame.index)
        if keys:
            mask &= False
            for key in (Key.parse(text, "") for text in keys):
                names = [name for name in self.frame["operator"].unique() if key.operator in (name, family_of(name))]
                match = self.frame["operator"].isin(names)
                mask |= match & (self.frame["variant"] == key.variant) if key.variant else match
        if dtypes:
            mask &= self.frame["dtype"].isin(list(dtypes))
        return self.where(mask)

    def digest(self) -> str:
        """`sha256:` and the hash of the content: runs with their device and software, and every measurement.

        Of the protocol of a run, which changes during a sweep, only what a search chose among, a regime other than cold
        and that the times are unpaired are included.
        """
        runs = [
            [
                *(run.id, run.started, run.device._asdict(), run.software),
                *([run.regime] if run.regime != COLD else []),
                *([run.protocol[SEARCHED]] if SEARCHED in run.protocol else []),
                *([UNPAIRED] if run.is_unpaired else []),
            ]
            for run in self.runs
        ]
        hashed = hashlib.sha256(_canonical([_DIGEST_FORMAT, runs, len(self.frame)]))
        for name in TEXTS:
            codes, names = _coded(self.frame[name].tolist())
            hashed.update(_canonical([name, names]))
            hashed.update(codes.astype("<i4").tobytes())
        for name in ("rows", "hidden"):
            hashed.update(self.frame[name].to_numpy(np.int64).astype("<i8").tobytes())
        for name in ("rounds", "samples"):
            lengths, flat = flatten(self.frame[name].tolist())
            hashed.update(lengths.astype("<i8").tobytes())
            hashed.update(flat.astype("<i4").tobytes())
        return f"sha256:{hashed.hexdigest()}"

    def _of_runs(self, runs: Sequence[Run]) -> "Evidence":
        """Measurements of these of its runs."""
        if len(runs) == len(self.runs):
            return self
        return self.where(self.frame["run"].isin([run.id for run in runs]))

    def where(self, mask: "pd.Series[bool]") -> "Evidence":
        """The measurements of these rows of `frame`."""
        if mask.all():
            return self
        frame = self.frame[mask.to_numpy()].reset_index(drop=True)
        used = set(frame["run"])
        return Evidence(frame, tuple(run for run in self.runs if run.id in used))


def _order(columns: Mapping[str, Sequence[Any]]) -> NDArray[np.int64]:
    """Indices of the rows in their total order; ValueError if two rows are the same measurement."""
    keys = []
    for name in _SORT:
        if name in TEXTS:
            keys.append(_coded(columns[name])[0])
        else:
            keys.append(np.asarray(columns[name], dtype=np.int64))
    keys.append(np.array(first_rounds(columns["rounds"]), dtype=np.int64))
    order = np.lexsort(keys[::-1])
    stacked = np.stack(keys)[:, order]
    twice = np.flatnonzero((stacked[:, 1:] == stacked[:, :-1]).all(axis=0))
    if len(twice):
        row = int(order[twice[0]])
        text = " ".join(str(columns[name][row]) for name in _SORT)
        raise ValueError(f"the same measurement is there twice: {text}")
    return order


def _coded(values: Sequence[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Index of each value among the sorted distinct values, and these values."""
    codes, distinct = pd.factorize(_objects(values))
    names = sorted(distinct.tolist())
    indices = {name: index for index, name in enumerate(names)}
    return np.array([indices[name] for name in distinct.tolist()], np.int64)[codes] if len(names) else codes, names


def _objects(values: Sequence[Any]) -> NDArray[np.object_]:
    """An array of objects, even if they are arrays of equal length, which numpy would stack."""
    return np.fromiter(values, dtype=object, count=len(values))


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
