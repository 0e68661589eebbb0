"""Options of a fit: as Python arguments, as options of the command, and as data in a table's header and back.

`pipeline` applies them; `check` fits again with the options in the header.
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from normtune.errors import UsageError
from normtune.kernels.arguments import check
from normtune.results.options import (
    DEVICE_DOC,
    DEVICE_HELP,
    as_names,
    documented,
    keyword,
    option,
    option_of,
)
from normtune.results.regimes import COLD, check_regime

TIE_PERCENT = 0.1
# The solver takes 5 MB per leaf on the recording grid, and time with the square of leaves.
MOST_LEAVES = 128
# Larger integers may have no exact float.
_EXACT = 1 << 53


@dataclass(frozen=True, kw_only=True)
class FitKeywords:
    """Options of a fit in Python. A new option is declared here, and used where it takes effect."""

    leaves: int | None = option(
        "At most so many leaves per function. Default: one for every four shapes, 24 to 64.", "N"
    )
    operators: str | Iterable[str] = option(
        "Only this operator. Repeatable.",
        default=(),
        name="operator",
        before="force",
        doc="One or several operators or variants (rms_norm_forward:no_rstd). Default: all that were measured.",
    )
    max_slowdown: float | None = option(
        "Longest time at a measured shape as a multiple of its best time: 1.10.", "FACTOR"
    )
    tie_percent: float = keyword(
        "Choose the simplest tree whose mean loss exceeds the best tree's by at most so many percent.",
        default=TIE_PERCENT,
    )
    weights: str | os.PathLike[str] | None = option(
        "CSV file of the shapes to fit: columns rows,hidden (or the operator's axes) and optionally weight, operator "
        "and dtype. Default: all shapes, of equal weight.",
        "FILE",
    )
    max_configs: int | None = option(
        "At most so many distinct configs per function; each is a binary that users compile.", "N", before="weights"
    )
    baseline: str | os.PathLike[str] | None = option(
        "Rule (liger, ...), shipped table or file; configs that are measured slower are barred, if --leaves and "
        "--max-configs allow it. default: the operator's default config; none: no comparison. Default: only a "
        "comparison with the table that is replaced."
    )
    batch_invariant: bool = keyword("Also fit functions that give a row the same bits in every batch.", default=False)
    portable: bool = option(
        "Choose only configs that are legal on every GPU of this vendor whose limits normtune knows.",
        default=False,
        before="install",
    )
    regime: str = keyword("Fit times measured `cold`, `warm` or `eager`.", default=COLD)
    device: str | None = option(DEVICE_HELP, "NAME", before="install", doc=DEVICE_DOC)


@documented
@dataclass(frozen=True, kw_only=True)
class FitOptions(FitKeywords):
    """Options of a fit.

    Raises:
        UsageError: a value is out of range.
    """

    operators: tuple[str, ...] = option_of(FitKeywords, "operators")
    weights: str | None = option_of(FitKeywords, "weights")
    baseline: str | None = option_of(FitKeywords, "baseline")

    def __post_init__(self) -> None:
        """Refuse invalid values, in one place for the command line and for Python."""
        for field in fields(self):
            if kind_of(field) is not tuple:
                check(field.name, getattr(self, field.name), field.type)
        if self.leaves is not None and not 1 <= self.leaves <= MOST_LEAVES:
            raise UsageError(f"--leaves is {self.leaves}: expected 1 to {MOST_LEAVES}")
        if self.max_configs is not None and self.max_configs < 1:
            raise UsageError(f"--max-configs is {self.max_configs}: expected a positive number")
        check_regime(self.regime)
        if self.max_slowdown is not None and not 1 <= self.max_slowdown < math.inf:
            raise UsageError(f"--max-slowdown is {self.max_slowdown:g}: expected a ratio of at least 1, as 1.10")
        if not 0 <= self.tie_percent <= 100:
            raise UsageError(f"tie_percent is {self.tie_percent:g}: expected percent from 0 to 100, as {TIE_PERCENT}")

    @classmethod
    def of(cls, request: object) -> "FitOptions":
        """The options that are attributes of a request, paths as text; the others keep their defaults.

        Raises:
            UsageError: a value is out of range.
        """
        values = {one.name: getattr(request, one.name) for one in fields(cls) if hasattr(request, one.name)}
        paths = {name: os.fspath(value) for name, value in values.items() if isinstance(value, os.PathLike)}
        return cls(**values | paths | {"operators": as_names("operators", values["operators"])})

    @property
    def tie(self) -> int:
        """The tie in log_ppm."""
        return round(1e6 * math.log1p(self.tie_percent / 100))

    @property
    def cap(self) -> int | None:
        """The greatest regret of a problem, log_ppm; None for no bound."""
        return None if self.max_slowdown is None else round(1e6 * math.log(self.max_slowdown))

    def seen_from(self, folder: Path, place: Path = Path()) -> "FitOptions":
        """The options of a fit in `place` with files named relative to a folder, as in the header of a table there."""
        from normtune.heuristics.fitting.baseline import NAMES

        weights, baseline = self.weights, self.baseline
        if weights is not None:
            weights = seen_from(place / weights, folder)
        if baseline is not None and baseline not in NAMES and os.path.lexists(place / baseline):
            baseline = seen_from(place / baseline, folder)
        return replace(self, weights=weights, baseline=baseline)

    def facts(self) -> dict[str, Any]:
        """Options that differ from their defaults, as JSON."""
        values = {option.name: (getattr(self, option.name), option.default) for option in fields(self)}
        return {name: _json(value) for name, (value, default) in values.items() if value != default}

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> "FitOptions":
        """The inverse of `facts`, of any JSON.

        Raises:
            UsageError: an option is unknown, or its value out of range.
        """
        types, values = {option.name: kind_of(option) for option in fields(cls)}, dict(facts)
        for name, value in facts.items():
            if name not in types:
                raise UsageError(f"it has the option {name[:40]!r}: expected one of {', '.join(types)}")
            if types[name] is tuple:
                if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                    raise UsageError(f"{name} is {str(value)[:40]!r}: expected a list of names")
                values[name] = tuple(value)
        return cls(**values)


def kind_of(option: "Field[Any]") -> type:
    """The type of an option's values: int, float, str, bool, or tuple for a repeated option."""
    (kind,) = {*(get_args(option.type) if isinstance(option.type, UnionType) else (option.type,))} - {NoneType}
    return get_origin(kind) or kind


def seen_from(path: str | os.PathLike[str], folder: Path) -> str:
    """The relative path from a folder; links are resolved first, as `..` follows them."""
    parent, name = os.path.split(path)
    return os.path.relpath(os.path.join(os.path.realpath(parent), name), os.path.realpath(folder))


def _json(value: Any) -> Any:
    """A value as JSON, without NumPy's numbers; 2.0 becomes 2, so that equal options give equal text."""
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, bool | str | NoneType):
        return value
    return int(value) if value == value // 1 and abs(value) < _EXACT else float(value)
