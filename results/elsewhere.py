"""Measurements of another program: what their file or DataFrame does not say.

In: options of a command, or arguments of a Python function. Out: the GPU, and which columns hold what.
`exchange.foreign_file` reads the measurements. Light, because the command line has these options.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from normtune.errors import UsageError
from normtune.kernels.target import MOST_SMS, TARGETS, target_for
from normtune.results.options import LIST, option

if TYPE_CHECKING:
    from normtune.results.records import Device

# By what it holds, the name of a column; or a size, dtype or operator that all rows share.
Columns: TypeAlias = Mapping[str, str | int]
_CSV, _PARQUET = ".csv", ".parquet"


def _pairs(flag: str, example: str, parts: Iterable[str]) -> dict[str, str | int]:
    """Values by name, of `rows=M`, `hidden=N`, `BLOCK_M`, where a name alone is its own value.

    Raises:
        UsageError: a part has another form, or two have one name.
    """
    values: dict[str, str | int] = {}
    for part in parts:
        name, equals, value = (text.strip() for text in part.partition("="))
        if not name or (equals and not value):
            raise UsageError(f"{flag} has {part[:80]!r}: expected {example}")
        if name in values:
            raise UsageError(f"{flag} names {name} twice: expected once")
        values[name] = value or name
    return values


columns_of = partial(_pairs, "--columns", "NAME=COLUMN, as rows=M,milliseconds=time")
_values_of = partial(_pairs, "--where", "COLUMN=VALUE, as unit=ms")


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """Facts that a file or a DataFrame of another program's measurements lacks."""

    name: str | None = option(
        "The driver's name of the GPU of FILE.",
        "TEXT",
        doc="The driver's name of the GPU of a DataFrame or of another program's file, which also need the target.",
    )
    target: str | None = option("The compiler's name of this GPU: sm_90.", doc="The compiler's name of the GPU.")
    sms: int | None = option(
        "Multiprocessors of this GPU. Default: those of the best-known GPU of the target.",
        "N",
        doc="Multiprocessors. Default: those of the best-known GPU of the target.",
    )
    columns: Columns | None = option(
        "Names of columns of FILE, rows=M,hidden=N,milliseconds=time,BLOCK_M; or a value of all rows, "
        "hidden=4096,dtype=float16,operator=my_op.",
        LIST,
        read=columns_of,
        doc="Names of columns that differ from the usual ones, {'rows': 'M', 'milliseconds': 'time'}; or a size, "
        "dtype or operator of all rows, {'hidden': 4096, 'dtype': 'float16', 'operator': 'my_op'}.",
    )
    where: Columns | None = option(
        "Only rows of FILE with this value in a column, unit=ms,mode=forward; unit=* for any.",
        LIST,
        read=_values_of,
        doc="Only rows with these values, by the column, {'unit': 'ms'}; '*' for any. A column without a meaning that "
        "differs among the rows of one config at one shape needs one.",
    )

    @classmethod
    def said_by(cls, request: object) -> "Elsewhere":
        """The attributes of a request that have the names of these fields."""
        return cls(**{field.name: getattr(request, field.name) for field in fields(cls)})

    def facts(self) -> dict[str, Any]:
        """The fields that are not None, as JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def device(self, l2_bytes: int | None = None) -> "Device":
        """The GPU; `l2_bytes` None for those of the best-known GPU of the target.

        Raises:
            UsageError: a fact of it is missing, or out of range.
        """
        from normtune.results.records import Device

        for argument, value in (("--name", self.name), ("--target", self.target)):
            if not isinstance(value, str) or not value.strip():
                state = "is missing" if value is None else f"is {value!r}"
                raise UsageError(f"{argument} {state}: name the GPU, such as --name 'NVIDIA H200' --target sm_90")
        for argument, number in (("--sms", self.sms), ("l2_bytes", l2_bytes)):
            if number is not None and (isinstance(number, bool) or not isinstance(number, Integral) or number < 1):
                raise UsageError(f"{argument} is {number!r}: expected a positive integer")
        name, target, sms = str(self.name), str(self.target), self.sms
        if sms is None:
            if target not in TARGETS:
                raise UsageError(
                    f"--sms is None: expected the number of multiprocessors, as no GPU of {target!r} is known"
                )
            sms = TARGETS[target].sms
        if sms > MOST_SMS:
            raise UsageError(f"--sms is {str(sms)[:20]}: expected at most {MOST_SMS}")
        limits = target_for(target, int(sms))
        return Device(name, target, limits.sms, int(l2_bytes or limits.l2_bytes), 0, "unknown", "unknown")

    def is_of(self, path: str | os.PathLike[str]) -> bool:
        """Whether a file is another program's: CSV, or Parquet with facts that normtune's own has inside.

        Raises:
            UsageError: there are facts, and the file is neither.
        """
        text = os.fspath(path)
        ending = "" if "://" in text else Path(text).suffix.lower()
        if self.facts() and ending not in (_CSV, _PARQUET):
            flags = ", ".join(f"--{name}" for name in self.facts())
            raise UsageError(f"{text!r} is read with {flags}: expected a file that ends in {_CSV} or {_PARQUET}")
        return ending == _CSV or (ending == _PARQUET and bool(self.facts()))
