"""The columns of a frame of measurements, under the names that `dataframe` reads.

In: a frame, the names of its columns by what they hold, and the operator of a frame without that column. Out: the frame
with these names, and which columns are knobs; or an error of one line.
"""

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any, NamedTuple

import pandas as pd

from normtune.errors import UsageError, shortened
from normtune.kernels.key import Key, dtype_of, family_of
from normtune.kernels.problem import AXES, BUFFER_ITEMSIZE, axes_of, named_axes
from normtune.results.elsewhere import Columns

NEEDED = ("operator", "dtype", *AXES)
# Nanoseconds by the column of single times.
UNITS = {"nanoseconds": 1, "microseconds": 10**3, "milliseconds": 10**6, "seconds": 10**9}
SAMPLES = "samples"
_RUN = ("run", "started", "regime", "device", "sms", "unpaired")
_RESULT = ("status", "reason", "fingerprint", "rounds", "round")
# Every column with a meaning of its own; others are knobs.
RESERVED = (*NEEDED, "variant", "config", SAMPLES, *UNITS, *_RUN, *_RESULT)
# The value of `--where` that all rows have.
ANY = "*"
# What gives a missing column.
_ADVICE = {
    "operator": "--columns operator=NAME says which has that, or names that of all rows",
    SAMPLES: "--columns milliseconds=NAME says which has times, and their unit",
}


class Named(NamedTuple):
    """A frame with known names.

    Attributes:
        frame: the columns, each once.
        time: the column of times: `SAMPLES`, or one of `UNITS`.
        knobs: for operators that are not registered, the columns of their knobs.
    """

    frame: pd.DataFrame
    time: str
    knobs: tuple[str, ...]


def whole(value: Any) -> int:
    """A whole number, possibly as a float.

    Raises:
        TypeError, ValueError: it is none.
    """
    if isinstance(value, bool | str) or value in (inf, -inf) or int(value) != value:
        raise ValueError(f"{value!r} is no whole number")
    return int(value)


def named(frame: pd.DataFrame, columns: Columns, source: str, where: Columns) -> Named:
    """Give the columns their names.

    Args:
        frame: as it was read.
        columns: as in `elsewhere.Columns`.
        source: of the frame, for messages.
        where: by column, the value of the rows that are read; `ANY` for all.

    Raises:
        UsageError: a column is missing, or is there twice.
    """
    labels = [str(column) for column in frame.columns]
    if twice := sorted({name for name in labels if labels.count(name) > 1}):
        raise UsageError(f"{source} has the column {twice[0]!r} {labels.count(twice[0])} times: expected once")
    frame = _renamed(_picked(frame.set_axis(labels, axis=1), where, columns, source), columns, source)
    frame, sizes = _with_own_sizes(frame, source)
    times = [name for name in UNITS if name in frame]
    _check(frame, labels, times, source)
    if len(times) > 1 and SAMPLES not in frame:
        raise UsageError(f"{source} has times in {' and '.join(times)}: expected one of these columns")
    knobs = [name for name in columns if name not in (*RESERVED, *sizes)]
    return Named(
        frame,
        SAMPLES if SAMPLES in frame else times[0],
        tuple(knobs or [name for name in frame.columns if name not in RESERVED]),
    )


def _picked(frame: pd.DataFrame, where: Columns, columns: Columns, source: str) -> pd.DataFrame:
    """The rows that have these values, without the columns that nothing else names."""
    for label, value in where.items():
        if label not in frame:
            raise UsageError(f"--where has {label}={value}, but {source} has no column {label!r}: {_listed(frame)}")
        if value == ANY:
            continue
        texts = frame[label].map(_text)
        if not (texts == str(value)).any():
            others = ", ".join(repr(text[:40]) for text in texts.unique()[:3])
            raise UsageError(f"--where has {label}={value}, but {source} has there {others}")
        frame = frame[texts == str(value)]
    return frame.drop(columns=[label for label in where if label not in (*RESERVED, *map(str, columns.values()))])


def _text(value: Any) -> str:
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _renamed(frame: pd.DataFrame, columns: Columns, source: str) -> pd.DataFrame:
    values: dict[str, Any] = {}
    sizes = {name for axes in named_axes() for name in axes}
    for name, column in columns.items():
        label = str(column)
        if label in frame:
            values[name] = frame[label]
        elif name in sizes and label.isascii() and label.isdecimal() and len(label) <= 18:
            values[name] = int(label)
        elif name == "operator" or (name == "dtype" and dtype_of(label) in BUFFER_ITEMSIZE):
            values[name] = label
        else:
            raise UsageError(f"--columns has {name}={label}, but {source} has no column {label!r}: {_listed(frame)}")
    rest = [name for name in frame.columns if name not in values and name not in map(str, columns.values())]
    return frame[rest].assign(**values)


def _with_own_sizes(frame: pd.DataFrame, source: str) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The frame with rows and hidden for the sizes of an operator that names its own, and these names.

    A third size becomes a named integer of the operator.
    """
    names = frame["operator"].astype(str) if "operator" in frame else pd.Series(dtype=str)
    axes_by_name = {name: axes_of(family_of(Key.parse(name, "").operator)) for name in names.unique()}
    other_axes = {*axes_by_name.values()} - {AXES}
    if len(other_axes) != 1:
        return frame, ()
    (axes,) = other_axes
    frame = frame.rename(columns={axis: name for name, axis in zip(AXES, axes, strict=False) if name not in frame})
    if lacking := [axis for name, axis in zip(AXES, axes, strict=False) if name not in frame]:
        raise UsageError(_no_size(lacking[0], axes, frame, source))
    for third in axes[2:]:
        is_bare = names.map(lambda name: axes_by_name[name] == axes) & ~names.str.contains(f".{third}=", regex=False)
        if is_bare.any() and third not in frame:
            raise UsageError(_no_size(third, axes, frame, source))
        if third in frame:
            parts = names.str.partition(":")
            sizes = frame[third].map(partial(_positive, third))
            named_ones = parts[0] + f".{third}=" + sizes.astype(str) + parts[1] + parts[2]
            frame = frame.assign(operator=names.where(~is_bare, named_ones)).drop(columns=third)
    return frame, axes


def _positive(column: str, value: Any) -> int:
    try:
        if (size := whole(value)) < 1:
            raise ValueError
    except (TypeError, ValueError):
        raise UsageError(f"column {column!r} has {str(value)[:40]!r}: expected positive whole numbers") from None
    return size


def _no_size(size: str, axes: Sequence[str], frame: pd.DataFrame, source: str) -> str:
    operator = family_of(Key.parse(str(frame["operator"].iloc[0]), "").operator)
    return (
        f"{source} has no column {size}: {_listed(frame)}; the sizes of {operator} are {', '.join(axes)}: --columns "
        f"{size}=NAME says which has that"
    )


def _check(frame: pd.DataFrame, labels: Sequence[str], times: Sequence[str], source: str) -> None:
    lacking = [name for name in NEEDED if name not in frame]
    if "config" not in frame and all(name in RESERVED for name in frame.columns):
        lacking.append("config (or a column for each knob of the configs)")
    if not times and SAMPLES not in frame:
        lacking.append(f"{SAMPLES} (or {', '.join(UNITS)})")
    if lacking:
        names = [name.partition(" ")[0] for name in lacking]
        advice = [_ADVICE[name] for name in names if name in _ADVICE]
        if others := [name for name in names if name not in _ADVICE]:
            advice.append(f"--columns {others[0]}=NAME says which has {others[0]}")
        if {*AXES} & {*names}:
            advice.append("sizes of other names, or three, are those of an operator that --load FILE declares")
        raise UsageError(f"{source} has no column {', '.join(lacking)}: {_listed(frame, labels)}; {'; '.join(advice)}")


def _listed(frame: pd.DataFrame, labels: Sequence[str] = ()) -> str:
    return "it has " + shortened(", ".join(labels or map(str, frame.columns)), 200)
